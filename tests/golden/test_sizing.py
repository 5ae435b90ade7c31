"""Sizes for the hit rates of `hit_counts.json` on two public traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.hitrate import replay
from tests.golden.test_hit_counts import CAPACITIES, GOLDENS, NAMES, trace_named

if TYPE_CHECKING:
    from pathlib import Path

BOTH = pytest.mark.parametrize("name", NAMES)


@pytest.mark.parametrize("capacity", CAPACITIES)
@BOTH
def test_a_golden_hit_rate_is_reached_at_its_capacity_or_just_before(
    name: str, capacity: int, public_traces: Path
) -> None:
    trace, golden = trace_named(public_traces, name), GOLDENS[name]
    hits = golden["leaf_lru_blocks"][str(capacity)]
    found = kvsim.size(trace, target_hit=hits / golden["refs"], definition="block", gpu_blocks=500)
    alone, both = found.answers
    assert alone.gpu_blocks <= capacity
    assert (both.gpu_blocks, both.cpu_blocks) == (500, alone.gpu_blocks - 500)
    # One replay of one capacity is another way to count: the least block matters.
    reached = [
        replay(trace, "lru", at).hits["block"]["hits"] >= hits
        for at in (alone.gpu_blocks - 1, alone.gpu_blocks)
    ]
    assert reached == [False, True]


@BOTH
def test_the_worth_of_more_room_is_the_difference_of_the_goldens(
    name: str, public_traces: Path
) -> None:
    golden = GOLDENS[name]["leaf_lru_blocks"]
    found = kvsim.size(trace_named(public_traces, name), definition="block", gpu_blocks=1000)
    at_1k, at_3k, at_10k, at_30k = (golden[str(capacity)] for capacity in CAPACITIES)
    assert found.worth(10_000, 0, 20_000)[1:] == (at_30k - at_10k, 0)
    assert found.worth(3_000, 7_000, 20_000)[1:] == (at_30k - at_10k, at_10k - at_3k)
    assert found.worth(1_000, 29_000, 2_000).moved_hits == at_3k - at_1k


def test_a_rate_above_the_infinite_cache_is_refused_with_that_rate(public_traces: Path) -> None:
    found = kvsim.size(trace_named(public_traces, "conversation"), target_hit=0.4)
    assert found.verdict == "no size reaches 0.4000: the infinite cache hits 0.3736"
