"""From the settings of a run to pools; and runs on tensors of every kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kvsim
from kvsim.backends.paddle.allotment import make_lower_pool, make_memory, plan_ranks
from kvsim.backends.paddle.cudart import Cuda
from kvsim.backends.paddle.layout import Layout
from kvsim.backends.paddle.pool import PinnedPool
from kvsim.backends.paddle.runtime import device_index
from kvsim.backends.setup import BackendSetup
from kvsim.config import FaultConfig, LinkConfig
from kvsim.core.ops import Place
from kvsim.cost import LinearCost
from kvsim.presets import MODELS
from tests.unit.backends.paddle.bits import SHAPE
from tests.unit.backends.paddle.fake_cuda import FakeCuda

pytest.importorskip("paddle", reason="the tensor backend needs PaddlePaddle")

SETUP = BackendSetup(
    requests=[],
    block_size=16,
    tier_blocks=(4, 6),
    cost=LinearCost(),
    host_link=LinkConfig(bytes_per_second=1, latency_ns=0, overhead_ns=0),
    num_ranks=2,
    faults=FaultConfig(),
    seed=0,
)


def test_a_tier_more_is_a_pool_more_and_one_without_blocks_is_none() -> None:
    one, other = plan_ranks(replace(SETUP, tier_blocks=(4, 0, 9)))
    assert one.sizes == {Place(instance=0, tier=0): 4, Place(instance=0, tier=2): 9}
    # 13 blocks of 4 KiB (half of the heads of 8 KiB) on each of two ranks.
    assert one.shape.block_bytes == 4096
    assert one.host_bytes == other.host_bytes == 13 * 4096
    assert [list(plan.shape.heads) for plan in (one, other)] == [[0], [1]]
    assert make_memory(other).num_blocks == one.sizes


def test_what_is_on_a_gpu_is_no_memory_of_the_host() -> None:
    plans = plan_ranks(replace(SETUP, tier_blocks=(2**40, 9), device="gpu:1"))
    assert {plan.host_bytes for plan in plans} == {9 * 4096}


def test_the_settings_decide_shape_type_layout_and_extra_layers() -> None:
    plan, _ = plan_ranks(
        replace(
            SETUP,
            shape="tiny-mla",
            kv_dtype="fp8",
            layout="layer-major",
            extra_layers=2,
            expand_ratio=1.5,
        )
    )
    assert (plan.shape.dtype, plan.layout) == ("uint8", Layout.LAYER_MAJOR)
    # A latent of 48 bytes, 16 tokens: 768 bytes a layer, and 6 layers move with a block.
    assert plan.shape.block_bytes == 6 * 768
    # 4 layers of 4 and of 6 blocks; 2 layers of 6 and of 9.
    assert plan.host_bytes == 768 * (4 * (4 + 6) + 2 * (6 + 9))


def test_the_shape_of_a_model_is_its_own_cache() -> None:
    model = MODELS["llama-3.1-8b"]
    plans = plan_ranks(replace(SETUP, shape="model", model=model, num_ranks=8))
    sizes = {plan.shape.block_bytes for plan in plans}
    assert sizes == {16 * model.kv_bytes_per_rank(16, num_ranks=8)}


def test_the_number_of_a_device_is_all_of_it() -> None:
    """Not its last digit, which is that of another GPU."""
    assert device_index("gpu:12") == 12


def test_below_a_gpu_memory_is_pinned_for_that_gpu() -> None:
    fake = FakeCuda()
    pool = PinnedPool(SHAPE, 3, device="gpu:2", cuda=Cuda(2, bindings=fake.bindings))
    assert fake.pinned == {pool.region.ptr: 3 * SHAPE.block_bytes}
    assert fake.device == 2
    below = make_lower_pool(SHAPE, 3, device="cpu", layout=Layout.BLOCK_MAJOR)
    assert below.region.num_bytes == 3 * 256


VARIANTS: dict[str, dict[str, object]] = {
    "layer-major": {"layout": "layer-major"},
    "latent": {"shape": "tiny-mla", "ranks": 3},
    "8 bits": {"kv_dtype": "fp8", "layout": "layer-major"},
    "16 bits": {"kv_dtype": "fp16"},
    "draft": {"extra_layers": 1, "expand_ratio": 1.5},
    "more ranks than heads": {"ranks": 3, "fail_rate": 0.02},
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_a_run_has_no_wrong_byte_whatever_its_tensors_are_like(
    settings: dict[str, object],
) -> None:
    result = kvsim.replay(
        "sample:chat",
        gpu_blocks=700,
        cpu_blocks=2000,
        limit=40,
        backend="paddle",
        forward="none",
        time_scale=100_000,
        **{"ranks": 2, **settings},  # type: ignore[arg-type]
    )
    assert result.tensors is not None
    assert result.tensors["wrong_bytes"] == 0
    assert result.tensors["blocks_checked"] > 0
    assert result.tensors["blocks_swapped"] > 0
