"""Planes of tiers, and the bound of two, against tiers that are simulated block by block.

Each rule that the planes rest on has a wrong way beside it (docs/hit-rate.md), which must show.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.hitrate import TierCosts, tier_plane, two_tier_bound
from kvsim.testing import Prompt
from tests.property.lab import paths_of, random_trace, trace_of, traces
from tests.property.slow_caches import exclusive_hits, inclusive_hits, least_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvsim.trace import Trace

SIZES = st.integers(1, 9), st.integers(0, 9)
COSTS = [(1, 10, 0), (2, 10, 3), (4, 10, 6), (4, 10, 9), (0, 10, 4), (1, 10, 1)]
"""Of a CPU hit, a miss and a demotion: free demotions; both together less than, equal to and more
than a miss; free hits; both small."""


def sums(hits: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the hits of each tier over all requests."""
    return tuple(map(sum, zip(*hits, strict=True)))


def plane_hits(trace: Trace, mode: str, *sizes: int) -> tuple[int, ...]:
    """Return the block hits of each tier."""
    plane = tier_plane(trace, mode, tiers=[[size] for size in sizes])  # type: ignore[arg-type]
    figures = plane.at(*sizes)
    assert figures["all"]["block"]["hits"] == sum(figures[n]["block"]["hits"] for n in plane.names)
    return tuple(figures[name]["block"]["hits"] for name in plane.names)


@settings(max_examples=300)
@given(trace=traces(), gpu=SIZES[0], cpu=SIZES[1])
def test_exclusive_tiers_are_one_stack_cut_in_two(trace: Trace, gpu: int, cpu: int) -> None:
    # Requests longer than the GPU tier included: their tail goes to the CPU.
    naive = sums(exclusive_hits(paths_of(trace), (gpu, cpu)))
    assert plane_hits(trace, "exclusive", gpu, cpu) == naive


@settings(max_examples=150)
@given(trace=traces(), sizes=st.tuples(SIZES[0], *[SIZES[1]] * 2))
def test_three_exclusive_tiers_are_cut_at_the_running_sums(
    trace: Trace, sizes: tuple[int, int, int]
) -> None:
    naive = sums(exclusive_hits(paths_of(trace), sizes))
    assert plane_hits(trace, "exclusive", *sizes) == naive


@settings(max_examples=300)
@given(trace=traces(), gpu=SIZES[0], cpu=SIZES[1])
def test_inclusive_tiers_are_two_cuts_of_one_stack(trace: Trace, gpu: int, cpu: int) -> None:
    naive = sums(inclusive_hits(paths_of(trace), gpu, cpu))
    assert plane_hits(trace, "inclusive", gpu, cpu) == naive


def wrong_share(
    mode: str,
    simulate: Callable[[list[Sequence[object]], int, int], Iterable[Sequence[int]]],
    *,
    least_gpu: int = 2,
) -> float:
    """Return in which share of 400 random cases a way of working differs from the plane."""
    rng, wrong = Random(3), 0
    for _ in range(400):
        trace = random_trace(rng)
        gpu, cpu = rng.randint(least_gpu, 8), rng.randint(1, 8)
        wrong += plane_hits(trace, mode, gpu, cpu) != sums(simulate(paths_of(trace), gpu, cpu))
    return wrong / 400


def test_tiers_that_demote_before_they_promote_are_caught() -> None:
    # Every path fits on the GPU, so that nothing else is at work.
    share = wrong_share(
        "exclusive", lambda p, g, h: exclusive_hits(p, (g, h), demotes_first=True), least_gpu=6
    )
    assert share > 0.01


def test_tiers_that_drop_the_tail_of_a_long_path_are_caught() -> None:
    share = wrong_share("exclusive", lambda p, g, h: exclusive_hits(p, (g, h), drops_tail=True))
    assert share > 0.1


def test_a_lower_tier_that_a_hit_above_does_not_refresh_is_caught() -> None:
    share = wrong_share("inclusive", lambda p, g, h: inclusive_hits(p, g, h, refreshes=False))
    assert share > 0.005


def test_a_lower_tier_that_is_written_from_the_second_use_on_is_caught() -> None:
    share = wrong_share("inclusive", lambda p, g, h: inclusive_hits(p, g, h, writes_from_use=2))
    assert share > 0.1


@settings(max_examples=100)
@given(
    prompts=st.lists(
        st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=3).map(tuple),
        min_size=1, max_size=6,
    ),
    cpu=st.integers(0, 3),
    extra=st.integers(0, 2),
    costs=st.sampled_from(COSTS),
)  # fmt: skip
def test_the_bound_of_two_tiers_is_what_a_search_finds(
    prompts: list[tuple[int, ...]], cpu: int, extra: int, costs: tuple[int, int, int]
) -> None:
    trace = trace_of([Prompt(letters, 3) for letters in prompts])
    gpu = max(map(len, prompts)) + extra
    cpu_hit, miss, demotion = costs
    bound = two_tier_bound(
        trace, gpu, cpu, TierCosts(cpu_hit=cpu_hit, miss=miss, demotion=demotion)
    )
    assert bound.cost == least_cost(paths_of(trace), gpu, cpu, costs)
    # Its hits and demotions are what that cost is made of.
    counts = bound.counts["block"]
    misses = counts.total - counts.gpu - counts.cpu
    paid = cpu_hit * counts.cpu + miss * misses + demotion * bound.num_demotions
    assert bound.cost == paid
    assert bound.cost_with_kept_copies <= bound.cost


@pytest.mark.thorough
def test_planes_hold_on_ten_thousand_traces() -> None:
    rng = Random(4)
    for _ in range(10_000):
        trace = random_trace(rng, max_requests=25)
        sizes = rng.randint(1, 9), rng.randint(0, 9), rng.randint(0, 9)
        paths = paths_of(trace)
        assert plane_hits(trace, "exclusive", *sizes) == sums(exclusive_hits(paths, sizes))
        gpu, cpu, _ = sizes
        assert plane_hits(trace, "inclusive", gpu, cpu) == sums(inclusive_hits(paths, gpu, cpu))
