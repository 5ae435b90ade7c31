"""What steps and copies cost, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.config import LinkConfig
from kvsim.cost import (
    Hardware,
    KvKind,
    LinearCost,
    ModelShape,
    RooflineCost,
    arithmetic_sum,
    duration_ns,
    prefill_attention_tokens,
    sum_of_larger,
)
from kvsim.errors import ConfigError
from kvsim.presets import find_hardware, find_model

LINK = LinkConfig(bytes_per_second=1, latency_ns=0, overhead_ns=0)
# One head of width 1 in one layer: 4 bytes of KV a token (K and V, 2 bytes each) and 4 FLOP for
# each token attended to. A million weights of one byte: 2 million FLOP a token.
TINY = ModelShape(
    name="tiny",
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=1,
    num_parameters=1_000_000,
    num_active_parameters=1_000_000,
    weight_bits=8,
)
# 0.001 ns a FLOP (2,000 ns a token) and 0.01 ns a byte (10,000 ns for the weights).
ROUND = Hardware(
    name="round",
    num_gpus=1,
    flops_per_second=10**12,
    memory_bytes_per_second=10**11,
    memory_bytes=10**9,
    host_link=LINK,
    compute_efficiency_percent=100,
    memory_efficiency_percent=100,
    step_overhead_ns=500,
)


def test_a_duration_is_rounded_up_to_a_whole_nanosecond() -> None:
    assert duration_ns(0, 3) == 0
    assert duration_ns(1, 10**9) == 1
    assert duration_ns(1, 3 * 10**9) == 1  # a third
    assert duration_ns(7, 3 * 10**9) == 3  # 2.33


def test_a_prefix_of_4096_tokens_takes_21_47_ms_over_25_gigabytes_a_second() -> None:
    # 4,096 * 131,072 = 536,870,912 bytes; / 25 = 21,474,836.48 ns. Two ranks move half each.
    cost = RooflineCost(
        find_model("llama-3.1-8b"), replace(find_hardware("a100-8x"), num_gpus=1), block_size=512
    )
    assert duration_ns(cost.transfer_bytes(8), 25_000_000_000) == 21_474_837
    two = RooflineCost(cost.model, replace(cost.hardware, num_gpus=2), block_size=512)
    assert two.transfer_bytes(8) == 268_435_456
    assert duration_ns(two.transfer_bytes(8), 25_000_000_000) == 10_737_419


def test_key_and_value_of_every_layer_and_head_are_counted() -> None:
    model = find_model("llama-3.1-8b")
    assert model.kv_bytes_per_token(16) == 131_072  # 32 layers * 8 heads * 128 * 2 * 2 bytes
    assert model.kv_bytes_per_token(8) == 65_536
    assert model.kv_bytes_per_token(4) == 32_768


def test_a_latent_is_counted_once_and_is_whole_on_every_rank() -> None:
    model = find_model("deepseek-v3")
    assert model.kv_bytes_per_token(16) == 70_272  # 61 * (512 + 64) * 2
    assert model.kv_bytes_per_rank(16, num_ranks=8) == 70_272


@pytest.mark.parametrize(
    ("num_ranks", "num_bytes"), [(1, 131_072), (2, 65_536), (8, 16_384), (16, 16_384)]
)
def test_heads_are_divided_among_ranks_and_copied_beyond(num_ranks: int, num_bytes: int) -> None:
    model = find_model("llama-3.1-8b")
    assert model.kv_bytes_per_rank(16, num_ranks=num_ranks) == num_bytes


@pytest.mark.parametrize("kv_bits", [0, 2, 32])
def test_other_widths_of_the_cache_are_refused(kv_bits: int) -> None:
    with pytest.raises(ConfigError, match=f"kv_bits must be 4, 8 or 16, not {kv_bits}"):
        TINY.kv_bytes_per_token(kv_bits)


def test_a_decode_step_is_bound_by_memory() -> None:
    cost = RooflineCost(TINY, ROUND, block_size=16)
    # Arithmetic 2,000 + 0.004 * 25,000 = 2,100 ns. Memory 10,000 for the weights + 0.04 * 25,000
    # read + 0.04 written = 11,000.04. With 500 of overhead 11,500.04, rounded up.
    assert cost.forward_ns(0, 0, 1, 25_000, 1) == 11_501


def test_a_prefill_step_is_bound_by_arithmetic() -> None:
    cost = RooflineCost(TINY, ROUND, block_size=16)
    # 100 tokens at 2,000 ns, and 5,050 attended to at 0.004 ns: 200,020.2; memory is 10,006 or so.
    assert cost.forward_ns(100, 5_050, 0, 0, 1) == 200_521


def test_a_prompt_token_attends_to_all_before_it_and_to_itself() -> None:
    assert prefill_attention_tokens(0, 3) == 1 + 2 + 3
    assert prefill_attention_tokens(10, 3) == 11 + 12 + 13


def test_a_mixture_of_experts_reads_at_most_the_weights_that_its_tokens_select() -> None:
    sparse = replace(TINY, num_active_parameters=100_000)
    cost = RooflineCost(sparse, ROUND, block_size=16)
    # Weights read: 1,000 ns a token up to 10,000 in all; KV 0.04 ns a token; overhead 500.
    assert cost.forward_ns(0, 0, 1, 0, 1) == 1_501
    assert cost.forward_ns(0, 0, 3, 0, 1) == 3_501
    assert cost.forward_ns(0, 0, 25, 0, 1) == 10_501


def test_a_run_changes_from_memory_to_arithmetic_while_its_contexts_grow() -> None:
    # Arithmetic starts at 0 and grows by 3, memory stays at 5: 5, 5, 6, 9.
    assert sum_of_larger(0, 3, 5, 0, 4) == 25
    assert sum_of_larger(5, 0, 0, 3, 4) == 25
    # And the other way: 5, 5, 5, 6, 8 over a line that falls behind.
    assert sum_of_larger(5, 0, 0, 2, 5) == 5 + 5 + 5 + 6 + 8


_TERMS = st.integers(0, 1000)


@given(_TERMS, _TERMS, _TERMS, _TERMS, st.integers(1, 200))
def test_the_closed_form_equals_a_loop_over_steps(a: int, b: int, c: int, d: int, n: int) -> None:
    assert sum_of_larger(a, b, c, d, n) == sum(max(a + b * i, c + d * i) for i in range(n))
    assert arithmetic_sum(a, b, n) == sum(a + b * i for i in range(n))


@given(
    st.sampled_from(["llama-3.1-8b", "llama-3.1-70b", "deepseek-v3"]),
    st.integers(1, 256),
    st.integers(0, 10_000_000),
    st.integers(1, 100),
)
def test_a_run_costs_its_single_steps_less_their_roundings(
    name: str, num_decodes: int, context_tokens: int, num_steps: int
) -> None:
    cost = RooflineCost(find_model(name), find_hardware("h200-8x"), block_size=16)
    singles = sum(
        cost.forward_ns(0, 0, num_decodes, context_tokens + num_decodes * step, 1)
        for step in range(num_steps)
    )
    run_ns = cost.forward_ns(0, 0, num_decodes, context_tokens, num_steps)
    assert singles - num_steps < run_ns <= singles


def test_a_deeper_block_costs_more_to_compute_again() -> None:
    cost = RooflineCost(TINY, ROUND, block_size=16)
    # 16 tokens at 2,000 ns; the first block attends to 136 tokens at 0.004 ns, the fourth to
    # 16 * 48 + 136 = 904.
    assert cost.recompute_ns(0) == 32_001
    assert cost.recompute_ns(3) == 32_004


def test_tensor_parallel_ranks_share_the_work() -> None:
    two_heads = replace(TINY, num_heads=2, num_kv_heads=2)
    cost = RooflineCost(two_heads, replace(ROUND, num_gpus=2), block_size=16)
    # Half the weights (5,000 ns) and one of two heads (0.04 ns a token) on each rank.
    assert cost.forward_ns(0, 0, 1, 24_999, 1) == 5_000 + 1_000 + 500


def test_efficiency_slows_both_roofs() -> None:
    slow = replace(ROUND, compute_efficiency_percent=50, memory_efficiency_percent=80)
    cost = RooflineCost(TINY, slow, block_size=16)
    assert cost.forward_ns(0, 0, 1, 0, 1) == 13_001  # 10,000.04 / 0.8 + 500
    assert cost.forward_ns(100, 5_050, 0, 0, 1) == 400_541  # 200,020.2 / 0.5 + 500, rounded up


def test_the_gpu_holds_what_the_weights_leave_free() -> None:
    cost = RooflineCost(TINY, ROUND, block_size=16)
    # 90 % of 10**9 less 10**6 for the weights, in blocks of 64 bytes.
    assert cost.max_gpu_blocks() == 899_000_000 // 64
    with pytest.raises(ConfigError, match="leaves no room for a block on 'round'"):
        RooflineCost(TINY, replace(ROUND, memory_bytes=10**6), block_size=16).max_gpu_blocks()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_layers": 0}, "num_layers of model 'tiny' must be positive"),
        ({"num_heads": 3, "num_kv_heads": 2}, "must be a multiple of num_kv_heads"),
        ({"latent_dim": 512}, "latent_dim and rope_dim"),
        ({"kv_kind": KvKind.MLA}, "latent_dim and rope_dim"),
    ],
)
def test_impossible_models_are_refused(change: dict[str, int], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        replace(TINY, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_gpus": 0}, "num_gpus of hardware 'round' must be positive"),
        ({"compute_efficiency_percent": 101}, "must be 1 to 100, not 101"),
        ({"step_overhead_ns": -1}, "step_overhead_ns must be at least 0, not -1"),
    ],
)
def test_impossible_hardware_is_refused(change: dict[str, int], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        replace(ROUND, **change)  # type: ignore[arg-type]


def test_heads_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(ConfigError, match="the 1 heads of 'tiny' cannot be divided among 2 GPUs"):
        RooflineCost(TINY, replace(ROUND, num_gpus=2), block_size=16)
    with pytest.raises(ConfigError, match="block_size must be at least 1, not 0"):
        RooflineCost(TINY, ROUND, block_size=0)


def test_the_linear_cost_adds_up() -> None:
    cost = LinearCost(step_ns=1000, token_ns=10, attention_ns=2, block_bytes=7, block_size=4)
    assert cost.forward_ns(5, 15, 3, 100, 1) == 1000 + 10 * 8 + 2 * 115
    # Contexts grow by 3 tokens a step: 1,230, 1,236, 1,242.
    assert cost.forward_ns(0, 0, 3, 100, 3) == 1230 + 1236 + 1242
    assert cost.transfer_bytes(3) == 21
    assert cost.recompute_ns(1) == 10 * 4 + 2 * (5 + 6 + 7 + 8)
