"""The optimum, and every policy below it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.config import CacheConfig
from kvsim.core.instant import replay_instantly
from kvsim.core.manager import CacheManager
from kvsim.hitrate import miss_attribution, opt_curve, replay
from kvsim.policies import policy_factory, policy_names
from kvsim.testing import Prompt
from kvsim.trace import annotate_next_use
from kvsim.types import PartialRule
from tests.property.lab import paths_of, random_trace, trace_of, traces
from tests.property.slow_caches import most_hits

if TYPE_CHECKING:
    from kvsim.trace import Trace

TINY = st.lists(
    st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=3).map(tuple), min_size=1, max_size=7
)


@settings(max_examples=300)
@given(letters=TINY, capacity=st.integers(1, 6))
@pytest.mark.parametrize("residency", ["resident", "bypass"])
def test_the_optimum_is_what_a_search_finds(
    residency: str, letters: list[tuple[int, ...]], capacity: int
) -> None:
    trace = trace_of([Prompt(each, 3) for each in letters])
    best = most_hits(paths_of(trace), capacity, may_bypass=residency == "bypass")
    curve = opt_curve(trace, [capacity], residency)  # type: ignore[arg-type]
    assert curve.counts[0]["block"].gpu == best


@settings(max_examples=30)
@given(trace=traces(), capacity=st.integers(1, 12))
@pytest.mark.parametrize("policy", policy_names())
def test_no_policy_has_more_hits_than_the_optimum(policy: str, trace: Trace, capacity: int) -> None:
    found = replay(trace, policy, capacity).counts
    best = opt_curve(trace, [capacity]).counts[0]
    bound = opt_curve(trace, [capacity], "bypass").counts[0]
    assert found["block"].gpu <= best["block"].gpu <= bound["block"].gpu
    if policy == "belady":
        assert found["block"] == best["block"]


@settings(max_examples=100)
@given(trace=traces())
@pytest.mark.parametrize("residency", ["resident", "bypass"])
def test_more_room_never_costs_the_optimum_a_hit(residency: str, trace: Trace) -> None:
    curve = opt_curve(trace, range(1, 30), residency)  # type: ignore[arg-type]
    rates = curve.rates("block")
    assert rates == sorted(rates)
    assert rates[-1] == curve.infinite["block"].figure()["rate"]


@settings(max_examples=30)
@given(trace=traces(), capacity=st.integers(1, 12), warmup=st.sampled_from([0.0, 0.3]))
@pytest.mark.parametrize("policy", policy_names())
def test_every_reference_has_one_cause(
    policy: str, trace: Trace, capacity: int, warmup: float
) -> None:
    causes = miss_attribution(trace, policy, capacity, warmup=warmup).counts
    found = replay(trace, policy, capacity, warmup=warmup).counts
    for definition, counts in causes.items():
        assert min(counts.values()) >= 0
        assert counts["hit"] == found[definition].gpu
        assert sum(counts.values()) == found[definition].total


@settings(max_examples=30)
@given(trace=traces(max_requests=30), capacity=st.integers(6, 14))
@pytest.mark.parametrize("policy", policy_names())
def test_the_lab_hits_what_the_core_hits_with_nothing_in_flight(
    policy: str, trace: Trace, capacity: int
) -> None:
    # From 6 blocks on, so that the core refuses nothing; the lab keeps the first blocks then.
    config = CacheConfig(block_size=trace.block_size, tier_blocks=(capacity,))
    manager = CacheManager(config, policy_factory(policy)[1], rng=Random(0))
    core = replay_instantly(manager, annotate_next_use(trace).requests)
    lab = replay(trace, policy, capacity)
    assert list(lab.runs) == [hit.num_gpu_blocks for hit in core]


@pytest.mark.thorough
def test_the_optimum_is_what_a_search_finds_on_two_thousand_traces() -> None:
    rng = Random(5)
    for _ in range(2_000):
        trace = random_trace(rng, max_blocks=3, max_requests=8)
        assert trace.partial is PartialRule.COUNT
        for capacity in (1, 2, 3, 4, 5):
            for residency in ("resident", "bypass"):
                best = most_hits(paths_of(trace), capacity, may_bypass=residency == "bypass")
                curve = opt_curve(trace, [capacity], residency)
                assert curve.counts[0]["block"].gpu == best
