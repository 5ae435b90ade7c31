from __future__ import annotations

from dataclasses import replace

import pytest

import kvsim
from kvsim.errors import ConfigError
from kvsim.replay_config import ReplayConfig
from kvsim.sizing import cost_model, needed_blocks, resolve, tight_tiers, without_excess
from tests.unit.stories import three_prompts

GIB = 2**30


def test_k_and_v_of_all_ranks_are_counted_in_a_size_in_gib() -> None:
    # llama-3.1-8b: 32 layers * 2 (K, V) * 8 heads * 128 * 2 bytes = 131,072 bytes a token, so a
    # block of 4 tokens has 512 KiB over the 8 ranks, and a GiB has 2,048 of them.
    config = resolve(ReplayConfig(gpu_gib=1, cpu_gib=2.5, kv_dtype="bf16"), three_prompts())
    assert (config.gpu_blocks, config.cpu_blocks) == (2048, 5120)
    assert (config.gpu_gib, config.cpu_gib) == (None, None)


@pytest.mark.parametrize(("kv_dtype", "blocks"), [(16, 2048), (8, 4096), (4, 8192)])
def test_smaller_values_make_more_blocks(kv_dtype: int, blocks: int) -> None:
    config = resolve(ReplayConfig(gpu_gib=1, kv_dtype=kv_dtype), three_prompts())
    assert config.gpu_blocks == blocks


def test_a_latent_that_every_rank_keeps_is_counted_once_for_each() -> None:
    # deepseek-v3: 61 layers * (512 + 64) * 2 bytes = 70,272 bytes a token and rank; 4 tokens on 8
    # ranks make 2,248,704 bytes a block, and 1 GiB / 2,248,704 = 477.5.
    config = resolve(ReplayConfig(gpu_gib=1, model="deepseek-v3"), three_prompts())
    assert config.gpu_blocks == 477


def test_without_a_size_the_tier_is_what_the_hardware_leaves() -> None:
    config = resolve(ReplayConfig(), three_prompts())
    assert config.gpu_blocks == cost_model(config, 4).max_gpu_blocks()
    assert config.cpu_blocks == 0


def test_a_resolved_config_leaves_nothing_open_and_resolves_to_itself() -> None:
    config = resolve(ReplayConfig(gpu_blocks=640, cpu_blocks=7), three_prompts())
    # 640 / 32 blocks a write-back
    assert (config.swap_batch_blocks, config.low_watermark_blocks) == (20, 20)
    assert (config.block_size, config.partial) == (4, "count")
    assert resolve(config, three_prompts()) == config


def test_a_size_without_room_for_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gpu_gib must hold a block at least, 0\.000488 GiB"):
        resolve(ReplayConfig(gpu_gib=0.0001), three_prompts())


def test_no_gib_for_the_cpu_is_no_tier() -> None:
    assert resolve(ReplayConfig(gpu_blocks=1, cpu_gib=0), three_prompts()).cpu_blocks == 0


def test_an_instant_replay_needs_no_blocks_for_output() -> None:
    request = three_prompts().requests[0]
    # 3 for the prompt; the one token of output never needs its KV.
    assert needed_blocks(request, ReplayConfig(), 4) == 3
    assert needed_blocks(request, ReplayConfig(instant=True), 4) == 3


def test_blocks_that_the_trace_can_never_take_are_left_out() -> None:
    # Prompts of 3, 3 and 2 blocks; swap batch and low-water mark are 128 each.
    config = ReplayConfig(gpu_blocks=10**12, cpu_blocks=10**12)
    less = without_excess(config, three_prompts())
    assert (less.gpu_blocks, less.cpu_blocks) == (8 + 256, 8 + 256)
    # An attempt that failed may hold its blocks for a while: 16 attempts.
    less = without_excess(ReplayConfig(gpu_blocks=10**12, fail_rate=0.1), three_prompts())
    assert less.gpu_blocks == 8 * 16 + 256


def test_a_size_within_reach_stays() -> None:
    config = ReplayConfig(gpu_blocks=200, cpu_blocks=3)
    # 8 blocks; 200 // 32 = 6 each for batch and mark
    less = without_excess(config, three_prompts())
    assert (less.gpu_blocks, less.cpu_blocks) == (20, 3)
    assert without_excess(ReplayConfig(gpu_blocks=7), three_prompts()).gpu_blocks == 7


def test_sizes_are_shares_of_the_blocks_that_differ_and_never_too_small() -> None:
    trace = kvsim.sample("chat")
    # 49,987 blocks differ (of 116,117 references): 5 % and 15 %, rounded down.
    num_unique = len({key for each in trace.requests for key in each.block_keys})
    sized = tight_tiers(ReplayConfig(), trace)
    assert (sized.gpu_blocks, sized.cpu_blocks) == (num_unique // 20, num_unique * 15 // 100)
    few = replace(trace, requests=trace.requests[:5])
    # Twice the longest request with its output, and the reserve of 1 block.
    most = max(
        -(-(each.num_input_tokens + each.num_output_tokens - 1) // 64) for each in few.requests
    )
    assert tight_tiers(ReplayConfig(), few).gpu_blocks == 2 * (most + 1)
    given = tight_tiers(ReplayConfig(gpu_blocks=7, cpu_blocks=8), trace)
    assert (given.gpu_blocks, given.cpu_blocks) == (7, 8)
    one = replace(few.requests[0], block_keys=(1,), num_input_tokens=64, num_output_tokens=1)
    # 15 % of one block is none: a tier is a block at least.
    assert tight_tiers(ReplayConfig(), replace(few, requests=(one,))).cpu_blocks == 1
