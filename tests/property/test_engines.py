"""The replays of the engines' rules, against searches; and what must hold between the rules."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engines import ENGINES, explain
from kvsim.engines.radix import radix_runs
from kvsim.engines.replays import list_runs
from tests.property.lab import paths_of, random_trace, traces
from tests.property.slow_caches import lru_hits
from tests.property.slow_radix import list_hits, radix_hits

if TYPE_CHECKING:
    from kvsim.trace import Trace

CAPACITIES = range(1, 15)  # the longest path has 6 blocks, so the first five are smaller than it


@settings(max_examples=500)
@given(trace=traces(), capacity=st.integers(1, 14), renews_tail=st.booleans())
def test_a_compressed_tree_hits_what_a_search_hits(
    trace: Trace, capacity: int, renews_tail: bool
) -> None:
    paths = paths_of(trace)
    found = radix_runs(paths, capacity, renews_tail=renews_tail)
    assert found == radix_hits(paths, capacity, renews_tail=renews_tail)


@settings(max_examples=200)
@given(trace=traces(), capacity=st.integers(1, 14))
def test_a_plain_list_hits_what_a_search_hits(trace: Trace, capacity: int) -> None:
    assert list_runs(paths_of(trace), capacity) == list_hits(paths_of(trace), capacity)


@settings(max_examples=200)
@given(trace=traces(max_requests=8), capacity=st.integers(1, 14), renews_tail=st.booleans())
def test_nodes_of_one_block_are_evicted_as_blocks(
    trace: Trace, capacity: int, renews_tail: bool
) -> None:
    # Each path one block longer than the one before it: no node ever gets a second block.
    paths = [path[: end + 1] for path in paths_of(trace) for end in range(len(path))]
    assert radix_runs(paths, capacity, renews_tail=renews_tail) == lru_hits(paths, capacity)


@settings(max_examples=100)
@given(trace=traces())
def test_nothing_differs_where_nothing_is_evicted(trace: Trace) -> None:
    paths = paths_of(trace)
    enough = sum(map(len, paths))
    expected = lru_hits(paths, enough)
    assert list_runs(paths, enough) == expected
    for renews_tail in (True, False):
        assert radix_runs(paths, enough, renews_tail=renews_tail) == expected


@settings(max_examples=100)
@given(trace=traces(), capacity=st.integers(1, 14), warmup=st.sampled_from([0.0, 0.5]))
def test_the_steps_of_a_waterfall_make_up_the_whole_difference(
    trace: Trace, capacity: int, warmup: float
) -> None:
    found = explain(trace, gpu_blocks=capacity, warmup=warmup)
    assert [each.engine.name for each in found.rows] == list(ENGINES)
    for row in found.rows:
        first, *others = row.steps
        assert first.figure == found.ours
        assert first.delta == 0
        assert row.reported == row.steps[-1].figure
        for before, after in zip(row.steps, others, strict=False):
            assert after.delta == after.figure["rate"] - before.figure["rate"]
        whole = row.reported["rate"] - found.ours["rate"]
        assert sum(step.delta for step in row.steps) == pytest.approx(whole, abs=1e-12)


def test_each_way_to_evict_is_told_from_the_others() -> None:
    rng, differ = Random(3), [0, 0, 0]
    for _ in range(100):
        paths = paths_of(random_trace(rng))
        for capacity in CAPACITIES:
            blocks = lru_hits(paths, capacity)
            nodes = radix_runs(paths, capacity, renews_tail=False)
            differ[0] += blocks != nodes
            differ[1] += nodes != radix_runs(paths, capacity, renews_tail=True)
            differ[2] += blocks != list_runs(paths, capacity)
    assert min(differ) > 50  # of 1,400 cases
