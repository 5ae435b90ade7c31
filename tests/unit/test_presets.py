"""The presets, against the figures that people know them by."""

from __future__ import annotations

import pytest

from kvsim.cost import RooflineCost
from kvsim.errors import UnknownNameError
from kvsim.presets import HARDWARE, MODELS, find_hardware, find_model


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("llama-3.1-8b", 131_072),  # 32 * 8 * 128 * 2 * 2
        ("llama-3.1-70b", 327_680),  # 80 * 8 * 128 * 2 * 2
        ("deepseek-v3", 70_272),  # 61 * (512 + 64) * 2
    ],
)
def test_a_token_takes_the_bytes_of_its_published_shape(name: str, num_bytes: int) -> None:
    assert find_model(name).kv_bytes_per_token(16) == num_bytes


@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.parametrize("hardware", sorted(HARDWARE))
def test_each_model_has_a_cost_on_each_machine(model: str, hardware: str) -> None:
    cost = RooflineCost(find_model(model), find_hardware(hardware), block_size=512)
    assert 0 < cost.recompute_ns(0) < cost.recompute_ns(100)
    assert cost.forward_ns(0, 0, 1, 1000, 1) < cost.forward_ns(8192, 8192 * 4096, 0, 0, 1)


def test_eight_h200_hold_a_large_model_and_eight_a100_do_not() -> None:
    # 671 GB in FP8 are 83.9 GB a GPU: less than 141, more than 80.
    model = find_model("deepseek-v3")
    assert RooflineCost(model, find_hardware("h200-8x"), block_size=512).max_gpu_blocks() > 0
    with pytest.raises(ValueError, match="leaves no room"):
        RooflineCost(model, find_hardware("a100-8x"), block_size=512).max_gpu_blocks()


def test_an_unknown_name_is_answered_with_a_guess_and_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown model 'llama-3.1-7b'\. Did you mean"):
        find_model("llama-3.1-7b")
    with pytest.raises(UnknownNameError, match=r"unknown hardware 'tpu'\. Known: a100-8x, h200-8x"):
        find_hardware("tpu")
