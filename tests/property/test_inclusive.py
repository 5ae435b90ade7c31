"""The manager with inclusive tiers that are written through, against one LRU stack with two cuts.

Requests one after another, every op done at once. The theory: a block used again within G others
is hit on the GPU, one within H on the CPU, whatever G and H are (docs/hit-rate.md).
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.config import CacheConfig, TierInclusion, WritePolicy
from kvsim.core.instant import replay_instantly
from kvsim.core.manager import CacheManager
from kvsim.hitrate import tier_plane
from kvsim.policies import policy_factory
from tests.golden.test_hit_counts import trace_named
from tests.property.lab import traces

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.trace import Trace


def hits_of(trace: Trace, *tier_blocks: int) -> tuple[int, ...]:
    """Return the block hits of each tier."""
    config = CacheConfig(
        block_size=trace.block_size,
        tier_blocks=tier_blocks,
        tier_inclusion=TierInclusion.INCLUSIVE,
        write_policy=WritePolicy.THROUGH,
    )
    manager = CacheManager(config, policy_factory("lru")[1], rng=Random(0))
    hits = [
        (hit.num_gpu_blocks, hit.num_cpu_blocks, hit.num_disk_blocks)
        for hit in replay_instantly(manager, trace.requests)
    ]
    if len(trace.requests) < 100:
        manager.check()
    return tuple(map(sum, zip(*hits, strict=True)))[: len(tier_blocks)]


def longest_path(trace: Trace) -> int:
    """Return the blocks of the longest prompt: a shorter GPU tier refuses it, and the stack not."""
    return max(len(request.block_keys) for request in trace.requests)


@settings(max_examples=200)
@given(trace=traces(), more=st.integers(0, 8), cpu=st.integers(1, 14))
def test_inclusive_tiers_hit_what_the_plane_says(trace: Trace, more: int, cpu: int) -> None:
    gpu = longest_path(trace) + more
    plane = tier_plane(trace, "inclusive", gpu=[gpu], cpu=[cpu]).at(gpu, cpu)
    wanted = tuple(plane[name]["block"]["hits"] for name in ("gpu", "cpu"))
    assert hits_of(trace, gpu, cpu) == wanted


@settings(max_examples=100)
@given(trace=traces(), more=st.integers(0, 4), cpu_more=st.integers(0, 6), disk=st.integers(1, 20))
def test_three_inclusive_tiers_are_three_cuts_of_one_stack(
    trace: Trace, more: int, cpu_more: int, disk: int
) -> None:
    # As long as every block finds room on its way through the CPU tier: it holds a whole prompt.
    longest = longest_path(trace)
    gpu, cpu = longest + more, longest + cpu_more
    within = [
        tier_plane(trace, "inclusive", gpu=[size], cpu=[0]).at(size, 0)["gpu"]["block"]["hits"]
        for size in (gpu, max(gpu, cpu), max(gpu, cpu, disk))
    ]
    wanted = (within[0], within[1] - within[0], within[2] - within[1])
    assert hits_of(trace, gpu, cpu, disk) == wanted


@pytest.mark.parametrize(
    ("num_requests", "gpu", "cpu"),
    [
        (3_000, 1_000, 9_000),
        *[
            pytest.param(None, gpu, cpu, marks=pytest.mark.thorough)
            for gpu, cpu in ((1_000, 9_000), (3_000, 3_000), (3_000, 9_000), (10_000, 20_000))
        ],
    ],
)
def test_inclusive_tiers_hit_what_the_plane_says_on_a_public_trace(
    public_traces: Path, num_requests: int | None, gpu: int, cpu: int
) -> None:
    trace = trace_named(public_traces, "conversation")
    trace = replace(trace, requests=trace.requests[:num_requests])
    plane = tier_plane(trace, "inclusive", gpu=[gpu], cpu=[cpu]).at(gpu, cpu)
    wanted = tuple(plane[name]["block"]["hits"] for name in ("gpu", "cpu"))
    assert hits_of(trace, gpu, cpu) == wanted
