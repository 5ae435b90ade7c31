"""Requests one after another, counted by hand. A block is four tokens."""

from __future__ import annotations

from random import Random

import pytest

from kvsim.config import CacheConfig
from kvsim.core.instant import replay_instantly
from kvsim.core.manager import CacheManager
from kvsim.policies import policy_factory
from tests.unit.core.stage import ask

A, B, C = range(1, 9), range(21, 29), range(41, 49)


def hits(
    *prompts: range, gpu: int, cpu: int = 0, policy: str = "lru", num_output_tokens: int = 1
) -> list[tuple[int, int]]:
    """Return (GPU blocks, CPU blocks) that each prompt finds; (-1, -1) if it is refused."""
    _, make, _ = policy_factory(policy)
    config = CacheConfig(
        block_size=4, tier_blocks=(gpu, cpu), swap_batch_blocks=1, low_watermark_blocks=0
    )
    manager = CacheManager(config, make, rng=Random(0))
    requests = [
        ask(i, prompt, at=i, num_output_tokens=num_output_tokens)
        for i, prompt in enumerate(prompts)
    ]
    found = []
    for hit in replay_instantly(manager, requests):
        manager.check()
        found.append((-1, -1) if hit.is_refused else (hit.num_gpu_blocks, hit.num_cpu_blocks))
    assert not manager.has_open_ops
    assert manager.num_free_blocks() + manager.num_evictable_blocks == gpu
    return found


def test_a_prompt_finds_what_an_earlier_one_left() -> None:
    assert hits(A, A, range(1, 14), gpu=9) == [(0, 0), (2, 0), (2, 0)]


def test_the_least_recently_used_chain_goes_and_its_end_first() -> None:
    # A and B fill the four blocks; C takes the two of A. Then A's two come for B's: B is older.
    assert hits(A, B, C, A, C, gpu=4) == [(0, 0), (0, 0), (0, 0), (0, 0), (2, 0)]
    # C needs two, one is free: only the end of A goes.
    assert hits(A, B, C, A, gpu=5) == [(0, 0), (0, 0), (0, 0), (1, 0)]


def test_what_does_not_stay_above_is_found_below() -> None:
    assert hits(A, B, A, B, gpu=2, cpu=4) == [(0, 0), (0, 0), (0, 2), (0, 2)]
    # B goes before A has come: with A still below there is no room for it.
    assert hits(A, B, A, B, gpu=2, cpu=2) == [(0, 0), (0, 0), (0, 2), (0, 0)]
    # Six blocks do not fit four: all miss, as with LRU over any loop that is too long.
    assert hits(A, B, C, A, B, gpu=2, cpu=2) == [(0, 0)] * 5


def test_a_prompt_may_come_from_both_tiers() -> None:
    # B needs three blocks of five: A's end goes down.
    assert hits(A, range(20, 36), A, gpu=5, cpu=2) == [(0, 0), (0, 0), (1, 1)]


def test_a_prompt_that_cannot_fit_is_refused_and_changes_nothing() -> None:
    assert hits(A, range(100, 120), A, gpu=4) == [(0, 0), (-1, -1), (2, 0)]


def test_outputs_and_tails_take_no_room() -> None:
    longer = range(1, 12)  # two blocks and three tokens
    assert hits(longer, B, longer, gpu=4, num_output_tokens=1000) == [(0, 0), (0, 0), (2, 0)]


def test_a_prompt_shorter_than_a_block_finds_nothing_and_needs_nothing() -> None:
    assert hits(range(3), range(3), gpu=1) == [(0, 0), (0, 0)]


@pytest.mark.parametrize("cpu", [0, 3])
def test_a_tier_that_holds_everything_misses_each_block_once(cpu: int) -> None:
    rng = Random(1)
    prompts = [range(20 * start, 20 * start + 8) for start in rng.choices(range(6), k=40)]
    found = hits(*prompts, gpu=12, cpu=cpu)
    assert sum(map(sum, found)) == 2 * (40 - len(set(prompts)))
