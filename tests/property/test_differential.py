"""The manager against a naive cache, one request after another."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.config import CacheConfig
from kvsim.core.instant import InstantHit, replay_instantly
from kvsim.core.manager import CacheManager
from kvsim.core.residency import READY
from kvsim.policies import policy_factory
from kvsim.testing import PerBlockLRU, Prompt, make_request, prompts
from kvsim.types import NEVER
from tests.property.naive import NaiveCache, belady, fifo, lru

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.types import BlockKey, Request, TierIndex

    RankOf = Callable[[Request, int, int, int | None], int]

ARGUMENTS = ("policy", "rank_of")
PLAIN = [("lru", lru), ("fifo", fifo), (PerBlockLRU, lru)]
POLICIES_WITHOUT_TIES = pytest.mark.parametrize(ARGUMENTS, PLAIN)
# Blocks that are never needed again tie under belady: which of them goes changes no hit.
POLICIES = pytest.mark.parametrize(ARGUMENTS, [*PLAIN, ("belady", belady)])
TRACES = st.lists(prompts(max_blocks=6, max_tail_tokens=1), min_size=1, max_size=40)
GPU, CPU = st.integers(1, 12), st.integers(0, 12)


def requests_of(prompts_: Sequence[Prompt]) -> list[Request]:
    """Return the requests of a trace of one-token blocks, with the true next uses."""
    next_use: dict[BlockKey, int] = {}
    requests = []
    for i, prompt in reversed(list(enumerate(prompts_))):
        request = make_request(i, prompt, block_size=1)
        uses = [next_use.get(key, NEVER) for key in request.block_keys]
        next_use.update(dict.fromkeys(request.block_keys, i))
        requests.append(replace(request, next_use_at=uses))
    return requests[::-1]


def new_manager(policy: object, *tier_blocks: int, swap_batch: int = 1) -> CacheManager:
    """Return a manager that writes back exactly what it must."""
    config = CacheConfig(
        block_size=1,
        tier_blocks=tier_blocks,
        swap_batch_blocks=swap_batch,
        low_watermark_blocks=0,
    )
    return CacheManager(config, policy_factory(policy)[1], rng=Random(0))  # type: ignore[arg-type]


def gpu_hits(hits: Sequence[InstantHit]) -> list[int | None]:
    """Return the GPU hits of each request, None where it was refused."""
    return [None if hit.is_refused else hit.num_gpu_blocks for hit in hits]


def resident_keys(manager: CacheManager, tier: TierIndex) -> set[BlockKey]:
    """Return the keys with a copy in a tier."""
    cache = manager._cache  # noqa: SLF001  (what is compared is its inside)
    state = cache.tiers[tier].copies.state
    return {key for key, node in cache.tree.index.items() if state[node] == READY}


@POLICIES
@settings(max_examples=150)
@given(trace=TRACES, gpu=GPU)
def test_one_tier_hits_what_the_naive_cache_hits(
    policy: object, rank_of: RankOf, trace: list[Prompt], gpu: int
) -> None:
    requests = requests_of(trace)
    manager, naive = new_manager(policy, gpu), NaiveCache(gpu, rank_of)
    hits = gpu_hits(list(replay_instantly(manager, requests)))
    assert hits == [naive.access(request) for request in requests]
    manager.check()


@POLICIES_WITHOUT_TIES
@settings(max_examples=150)
@given(trace=TRACES, gpu=GPU)
def test_one_tier_holds_what_the_naive_cache_holds(
    policy: object, rank_of: RankOf, trace: list[Prompt], gpu: int
) -> None:
    manager, naive = new_manager(policy, gpu), NaiveCache(gpu, rank_of)
    for request in requests_of(trace):
        assert len(list(replay_instantly(manager, [request]))) == 1
        naive.access(request)
        assert resident_keys(manager, 0) == naive.rank.keys()


@POLICIES
@settings(max_examples=150)
@given(trace=TRACES, gpu=GPU, cpu=CPU)
def test_a_tier_below_changes_nothing_above(
    policy: object, rank_of: RankOf, trace: list[Prompt], gpu: int, cpu: int
) -> None:
    # What comes up takes a block on the GPU like what is computed, so the GPU tier lives its own
    # life: the one it has alone.
    requests = requests_of(trace)
    manager, naive = new_manager(policy, gpu, cpu), NaiveCache(gpu, rank_of)
    hits = gpu_hits(list(replay_instantly(manager, requests)))
    assert hits == [naive.access(request) for request in requests]
    manager.check()


@settings(max_examples=300)
@given(trace=TRACES, gpu=GPU, cpu=CPU, swap_batch=st.integers(1, 5))
def test_two_lru_tiers_never_hit_more_than_one_as_large_as_both(
    trace: list[Prompt], gpu: int, cpu: int, swap_batch: int
) -> None:
    # The exact plane is one LRU stack cut in two; the manager may have fewer hits, because a
    # victim needs its block below while the source of a copy on its way up still has one.
    requests = [each for each in requests_of(trace) if len(each.block_keys) <= gpu]
    manager = new_manager("lru", gpu, cpu, swap_batch=swap_batch)
    naive = NaiveCache(gpu + cpu, lru)
    hits = list(replay_instantly(manager, requests))
    total = sum(hit.num_gpu_blocks + hit.num_cpu_blocks for hit in hits)
    assert total <= sum(naive.access(request) or 0 for request in requests)


@settings(max_examples=150)
@given(trace=TRACES, gpu=GPU, cpu=CPU)
def test_blocks_below_hang_together_with_those_above(
    trace: list[Prompt], gpu: int, cpu: int
) -> None:
    # resident(child) implies resident(parent), in some tier: nothing is out of reach.
    manager = new_manager("lru", gpu, cpu)
    for _ in replay_instantly(manager, requests_of(trace)):
        above, below = resident_keys(manager, 0), resident_keys(manager, 1) if cpu else set()
        assert above.isdisjoint(below)  # the tiers are exclusive
        resident = above | below
        for key in resident:
            assert isinstance(key, tuple)
            letters, size = key
            assert len(letters) == 1 or (letters[:-1], size) in resident
