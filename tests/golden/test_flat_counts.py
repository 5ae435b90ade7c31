"""Exact hits of plain caches on two public traces, against `hit_counts.json`.

One access a block, in file order, the first block of a prompt first: the counts of libCacheSim
0.3.5 with its defaults, and those of kvcache-simulator 0.1.3 for the second half of the requests.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvsim.hitrate.flat import flat_replay
from kvsim.trace import load

if TYPE_CHECKING:
    from kvsim.hitrate.flat import FlatHits
    from kvsim.trace import Trace

# Millions of calls: measuring their coverage takes ten times as long as making them.
pytestmark = pytest.mark.no_cover

NAMES = ["conversation", "synthetic"]
LARGE = "conversation"
POLICIES = ["lru", "fifo", "lfu", "sieve", "arc", "s3fifo"]
CAPACITIES = [1_000, 3_000, 10_000, 30_000]
CASES = [
    # The larger trace takes seconds a case: one capacity of it is enough for every day.
    pytest.param(
        name, capacity, marks=[pytest.mark.thorough] * (name == LARGE and capacity != 10_000)
    )
    for name in NAMES
    for capacity in CAPACITIES
]
GOLDENS = json.loads((Path(__file__).parent / "hit_counts.json").read_text(encoding="utf-8"))


@cache
def trace_at(path: Path) -> Trace:
    return load(path)


@cache
def replayed(path: Path, policy: str, capacity: int) -> FlatHits:
    return flat_replay(trace_at(path), policy, capacity)


def path_of(folder: Path, name: str) -> Path:
    """Return where a public trace is; skip the test where it is absent."""
    path = folder / "mooncake" / f"{name}_trace.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return path


def test_every_flat_golden_is_asked_for() -> None:
    for name in NAMES:
        flat = {key: row for key, row in GOLDENS[name].items() if key.startswith("flat_")}
        assert set(flat) == {f"flat_{policy}_blocks" for policy in POLICIES}
        assert all(sorted(map(int, row)) == CAPACITIES for row in flat.values())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("name", "capacity"), CASES)
def test_a_plain_cache_has_the_hits_that_were_published(
    name: str, policy: str, capacity: int, public_traces: Path
) -> None:
    hits = replayed(path_of(public_traces, name), policy, capacity)
    assert hits.num_references == GOLDENS[name]["refs"]
    assert hits.num_block_hits == GOLDENS[name][f"flat_{policy}_blocks"][str(capacity)]


@pytest.mark.parametrize("capacity", [1_000, 10_000, 30_000])
@pytest.mark.parametrize("name", NAMES)
def test_fifo_has_the_leading_tokens_that_were_published_for_the_second_half(
    name: str, capacity: int, public_traces: Path
) -> None:
    path = path_of(public_traces, name)
    trace, hits = trace_at(path), replayed(path, "fifo", capacity)
    half = trace.num_requests // 2
    tokens = [request.num_input_tokens for request in trace.requests]
    found = [
        min(num_blocks * trace.block_size, num_tokens)  # the last block of a prompt may be partial
        for num_blocks, num_tokens in zip(hits.leading_hits, tokens, strict=True)
    ]
    golden = GOLDENS[name]["last_half_tokens"]
    assert sum(tokens[half:]) == golden["measured_tokens"]
    assert sum(found[half:]) == golden["fifo_flat"][str(capacity)]
