"""Exact hits on two public traces, against `hit_counts.json`.

The file holds published counts (its `_about` says how each is defined). They are a specification,
not a snapshot of this program: nothing here regenerates them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from kvsim.config import CacheConfig
from kvsim.core.instant import replay_instantly
from kvsim.core.manager import CacheManager
from kvsim.policies import policy_factory
from kvsim.trace import annotate_next_use, load

if TYPE_CHECKING:
    from kvsim.trace import Trace

NAMES = ["conversation", "synthetic"]
CAPACITIES = [1_000, 3_000, 10_000, 30_000]
GOLDENS = json.loads((Path(__file__).parent / "hit_counts.json").read_text(encoding="utf-8"))

# An exclusive CPU tier cannot reach the hits of one tier as large as both: a victim needs its
# block below while the block of the copy on its way up is still taken. 56 fewer is the most that
# was measured (on synthetic, 1,000 and 3,000 blocks on the GPU); never more hits.
MOST_MISSED = 56


@cache
def trace_at(path: Path) -> Trace:
    """Return a trace with its next uses, read once."""
    return annotate_next_use(load(path))


def trace_named(folder: Path, name: str) -> Trace:
    """Return a public trace; skip the test where it is absent."""
    path = folder / "mooncake" / f"{name}_trace.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return trace_at(path)


def hits_of(trace: Trace, policy: str, *tier_blocks: int) -> tuple[int, int]:
    """Return the hits on the GPU and on the CPU tier, in blocks."""
    config = CacheConfig(
        block_size=trace.block_size,
        tier_blocks=tier_blocks,
        swap_batch_blocks=1,
        low_watermark_blocks=0,
    )
    manager = CacheManager(config, policy_factory(policy)[1], rng=Random(0))
    hits = list(replay_instantly(manager, trace.requests))
    manager.check()
    return sum(hit.num_gpu_blocks for hit in hits), sum(hit.num_cpu_blocks for hit in hits)


@pytest.mark.parametrize("name", NAMES)
def test_the_traces_have_the_size_that_the_goldens_are_for(name: str, public_traces: Path) -> None:
    requests = trace_named(public_traces, name).requests
    keys = [key for request in requests for key in request.block_keys]
    assert len(requests) == GOLDENS[name]["requests"]
    assert len(keys) == GOLDENS[name]["refs"]
    assert len(set(keys)) == GOLDENS[name]["unique"]


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("name", NAMES)
def test_lru_has_the_hits_of_leaf_only_lru(name: str, capacity: int, public_traces: Path) -> None:
    hits = hits_of(trace_named(public_traces, name), "lru", capacity)
    assert hits == (GOLDENS[name]["leaf_lru_blocks"][str(capacity)], 0)


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("name", NAMES)
def test_belady_has_the_most_hits_possible(name: str, capacity: int, public_traces: Path) -> None:
    hits = hits_of(trace_named(public_traces, name), "belady", capacity)
    assert hits == (GOLDENS[name]["opt_resident_blocks"][str(capacity)], 0)


@pytest.mark.parametrize(("gpu", "cpu"), [(1_000, 2_000), (3_000, 7_000), (10_000, 20_000)])
@pytest.mark.parametrize("name", NAMES)
def test_two_tiers_are_nearly_one_lru_stack_cut_in_two(
    name: str, gpu: int, cpu: int, public_traces: Path
) -> None:
    on_gpu, on_cpu = hits_of(trace_named(public_traces, name), "lru", gpu, cpu)
    golden = GOLDENS[name]["leaf_lru_blocks"]
    assert on_gpu == golden[str(gpu)]
    assert golden[str(gpu + cpu)] - MOST_MISSED <= on_gpu + on_cpu <= golden[str(gpu + cpu)]
