from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvsim.config import SwapIn
from kvsim.errors import ConfigError, UnknownNameError, UserError
from kvsim.presets import HARDWARE, MODELS
from kvsim.replay_config import FIELD_NAMES, ReplayConfig
from kvsim.settings import Settings


def test_every_field_can_be_given_as_a_keyword() -> None:
    assert {*Settings.__annotations__, "policy"} == {*FIELD_NAMES}


@pytest.mark.parametrize(
    ("kv_dtype", "bits"),
    [(4, 4), (8, 8), (16, 16), ("16", 16), ("bf16", 16), ("fp16", 16), ("fp8", 8), ("int4", 4)],
)
def test_a_kv_dtype_is_a_name_or_its_bits(kv_dtype: str | int, bits: int) -> None:
    assert ReplayConfig(kv_dtype=kv_dtype).kv_bits == bits


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpu_blocks": 0}, "gpu_blocks must be an integer of at least 1, not 0"),
        ({"gpu_blocks": 1.5}, "gpu_blocks must be an integer of at least 1, not 1.5"),
        ({"gpu_blocks": True}, "gpu_blocks must be an integer of at least 1, not True"),
        ({"cpu_blocks": -1}, "cpu_blocks must be an integer of at least 0, not -1"),
        ({"gpu_blocks": 2**53 + 1}, "gpu_blocks must be at most 2**53, not 9007199254740993"),
        ({"gpu_gib": float("nan")}, "gpu_gib must be a number of GiB, at least 0, not nan"),
        ({"cpu_gib": -1}, "cpu_gib must be a number of GiB, at least 0, not -1"),
        ({"cpu_gib": "4"}, "cpu_gib must be a number of GiB, at least 0, not '4'"),
        ({"kv_dtype": 5}, "kv_dtype must be 4, 8 or 16 (bits) or one of bf16,"),
        ({"kv_dtype": "fp7"}, "not 'fp7'"),
        ({"warmup": 1}, "warmup must be a share of the requests from 0 to less than 1, not 1"),
        ({"warmup": float("nan")}, "not nan"),
        ({"warmup": -0.1}, "not -0.1"),
        ({"limit": 0}, "limit must be an integer of at least 1, not 0"),
        ({"block_size": 0}, "block_size must be an integer of at least 1, not 0"),
        ({"seed": -1}, "seed must be an integer of at least 0, not -1"),
        ({"instant": 1}, "instant must be true or false, not 1"),
        ({"policy": 3}, "policy must be text, not 3"),
        ({"model": 3}, "model must be a name or a ModelShape, not 3"),
        ({"hardware": None}, "hardware must be a name or a Hardware, not None"),
        ({"model": "llama-3.1-8"}, "unknown model 'llama-3.1-8'. Did you mean 'llama-3.1-8b'?"),
        ({"hardware": "h100"}, "unknown hardware 'h100'"),
        ({"partial": "sometimes"}, "unknown partial 'sometimes'. Known: count, never."),
        ({"swap_in": "overlp"}, "unknown swap_in 'overlp'. Did you mean 'overlap'?"),
        ({"swap_batch_blocks": 0}, "swap_batch_blocks must be an integer of at least 1, not 0"),
        ({"token_budget": 10}, "token_budget (10) must be at least max_running (256)"),
        ({"fail_rate": 2.0}, "fail_rate must be between 0 and 1, not 2.0"),
        ({"fail_rate": float("nan")}, "fail_rate must be between 0 and 1, not nan"),
        ({"gpu_blocks": 5, "gpu_gib": 5.0}, "gpu_blocks and gpu_gib exclude each other"),
    ],
)
def test_an_impossible_value_is_refused_with_what_would_be_right(
    settings: Settings, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        ReplayConfig(**settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_fields_reach_the_part_they_are_about() -> None:
    config = ReplayConfig(
        gpu_blocks=100,
        cpu_blocks=200,
        swap_in="wait",
        max_running=3,
        delay_ns=7,
        keep_outputs=False,
    )
    cache, scheduler = config.cache(block_size=16), config.scheduler()
    assert (cache.block_size, cache.tier_blocks, cache.keep_outputs) == (16, (100, 200), False)
    assert (scheduler.max_running, scheduler.swap_in) == (3, SwapIn.WAIT)
    assert config.faults.delay_ns == 7


def test_no_cpu_blocks_make_one_tier() -> None:
    assert ReplayConfig(gpu_blocks=5, cpu_blocks=0).cache(block_size=1).tier_blocks == (5,)


def test_settings_go_before_fields_and_none_means_not_given() -> None:
    base = ReplayConfig(gpu_blocks=5, seed=3)
    assert base.with_settings({"seed": 4, "gpu_blocks": None}) == ReplayConfig(gpu_blocks=5, seed=4)


def test_a_size_in_gib_takes_the_place_of_one_in_blocks() -> None:
    assert ReplayConfig(gpu_blocks=5).with_settings({"gpu_gib": 1.5}) == ReplayConfig(gpu_gib=1.5)
    assert ReplayConfig(cpu_gib=5).with_settings({"cpu_blocks": 2}) == ReplayConfig(cpu_blocks=2)
    with pytest.raises(ConfigError, match="exclude each other"):
        ReplayConfig().with_settings({"gpu_gib": 1.5, "gpu_blocks": 3})


def test_a_misspelt_setting_is_guessed() -> None:
    with pytest.raises(UnknownNameError, match=r"'gpu_block'\. Did you mean 'gpu_blocks'\?"):
        ReplayConfig().with_settings({"gpu_block": 1})


def test_a_model_and_a_machine_of_ones_own_are_json_objects() -> None:
    model = replace(MODELS["llama-3.1-8b"], name="mine")
    machine = replace(HARDWARE["h200-8x"], num_gpus=4)
    config = ReplayConfig(model=model, hardware=machine, swap_in=SwapIn.WAIT)
    assert (config.model_shape, config.machine) == (model, machine)
    values = json.loads(json.dumps(config.to_dict()))
    assert values["model"]["name"] == "mine"
    assert values["hardware"]["host_link"]["latency_ns"] == 2_000
    assert values["swap_in"] == "wait"
