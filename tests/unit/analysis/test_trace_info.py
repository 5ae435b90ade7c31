from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvsim
from kvsim.analysis.trace_info import describe, reuse_distances
from kvsim.trace import Trace, load
from kvsim.types import PartialRule, Request

if TYPE_CHECKING:
    from pathlib import Path


def made(*requests: tuple[int, tuple[int, ...], int, str | None]) -> Trace:
    """Make a trace of (arrival in s, keys, input tokens, session) in blocks of 4."""
    return Trace(
        requests=tuple(
            Request(
                request_id=i,
                arrived_at=at * 10**9,
                block_keys=keys,
                num_input_tokens=length,
                num_output_tokens=i + 1,
                session_id=session,
            )
            for i, (at, keys, length, session) in enumerate(requests)
        ),
        block_size=4,
        partial=PartialRule.COUNT,
        name="made",
        format="made",
        repairs=("one",),
        num_disordered=3,
    )


STORY = made((0, (1, 2), 8, "a"), (2, (1, 3), 7, "b"), (2, (1, 2, 4), 9, "a"), (5, (1, 3), 7, None))


def test_the_summary_has_these_keys_and_no_others() -> None:
    summary = describe(STORY).summary()
    assert json.loads(json.dumps(summary)) == {
        "format": "made",
        "rows": 4,
        "refs": 9,
        "unique_blocks": 4,
        "input_tokens": 31,
        "output_tokens": 10,  # 1 + 2 + 3 + 4
        "block_size": 4,
        "span_s": 5.0,
        "ties": 1,
        "disorder": 3,
        "repairs": ["one"],
        # hits: nothing; block 1; blocks 1 2; blocks 1 3. Tokens 0 + 4 + 8 + 7 = 19. Usable: one
        # token must be computed, so of the last 7 tokens only block 1: 0 + 4 + 8 + 4.
        "infinite_hits": {
            "block": {"hits": 5, "total": 9, "rate": 5 / 9},
            "prefix_block": {"hits": 5, "total": 9, "rate": 5 / 9},
            "prefix_token": {"hits": 19, "total": 31, "rate": 19 / 31},
            "prefix_token_usable": {"hits": 16, "total": 31, "rate": 16 / 31},
        },
    }


def test_the_warm_up_fills_the_cache_and_does_not_count() -> None:
    hits = describe(STORY, warmup=0.5).infinite_hits
    assert hits is not None
    assert (hits["block"]["hits"], hits["block"]["total"]) == (4, 5)


def test_depths_distances_sessions_and_gaps() -> None:
    info = describe(STORY)
    # At depth 1 all but the first; at depth 2 the last two of four; at depth 3 none
    assert info.depth_shares == {1: (0.75, 4), 2: (0.5, 4), 3: (0.0, 1)}
    # 1 2 | 1 3 | 1 2 4 | 1 3: the 1s after {2}, {3}, {2 4}; the 2 after {1 3}; the 3 after {1 2 4}
    assert info.reuse_distances.tolist() == [1, 1, 2, 2, 3]
    assert info.num_sessions == 2
    assert info.turns is not None
    assert (info.turns["mean"], info.turns["max"]) == (1.5, 2)
    # gaps 2, 0, 3: mean 5/3, variance (4 + 0 + 9) / 3 - 25/9 = 14/9
    assert info.burstiness == pytest.approx((14 / 9) ** 0.5 / (5 / 3))
    details = json.loads(json.dumps(info.details()))
    assert details["sharing_by_depth"]["2"] == {"share": 0.5, "refs": 4}


def test_a_trace_without_blocks_or_sessions_has_its_figures() -> None:
    info = describe(made((0, (), 0, None)))
    assert (info.num_references, info.num_unique_blocks, info.depth_shares) == (0, 0, {})
    assert (info.burstiness, info.num_sessions, info.turns) == (None, None, None)
    assert json.dumps(info.details())
    assert info.tables()


@given(st.lists(st.integers(0, 9), max_size=40))
def test_reuse_distances_are_those_counted_one_by_one(ids: list[int]) -> None:
    expected = []
    last: dict[int, int] = {}
    for i, each in enumerate(ids):
        if each in last:
            expected.append(len(set(ids[last[each] + 1 : i])))
        last[each] = i
    assert reuse_distances(np.array(ids, dtype=np.int64)).tolist() == expected


@pytest.mark.parametrize(
    ("name", "counts", "rates"),
    [
        ("conversation", (12_031, 288_500, 182_790), (0.36641, 0.37362, 0.37338, 0.39811)),
        ("synthetic", (3_993, 121_877, 43_924), (0.63960, 0.65124, 0.65043, 0.86275)),
    ],
)
def test_the_public_traces_have_the_published_figures(
    public_traces: Path, name: str, counts: tuple[int, ...], rates: tuple[float, ...]
) -> None:
    trace = load(public_traces / "mooncake" / f"{name}_trace.jsonl")
    info, half = describe(trace), describe(trace, warmup=0.5)
    assert info.infinite_hits is not None
    assert half.infinite_hits is not None
    assert (trace.num_requests, info.num_references, info.num_unique_blocks) == counts
    found = [
        info.infinite_hits[each]["rate"]
        for each in ("prefix_block", "prefix_token", "prefix_token_usable")
    ]
    assert (
        *(round(each, 5) for each in found),
        round(half.infinite_hits["prefix_token"]["rate"], 5),
    ) == rates


def test_an_unlimited_replay_hits_the_same() -> None:
    trace = kvsim.sample("chat")
    hits = describe(trace).infinite_hits
    assert kvsim.replay(trace, gpu_blocks=10**9, instant=True).hits == hits


def test_distances_below_a_capacity_are_its_lru_hits() -> None:
    # A path is stamped as a whole at its release, so a path's own blocks leave deepest first: not
    # quite the order of single references that the distances count. One block a prompt is the same.
    trace = Trace(
        requests=tuple(
            Request(
                request_id=i,
                arrived_at=i,
                block_keys=(key,),
                num_input_tokens=4,
                num_output_tokens=1,
            )
            for i, key in enumerate([1, 2, 3, 1, 4, 2, 1, 5, 3, 4, 1, 2])
        ),
        block_size=4,
        partial=PartialRule.NEVER,
        name="flat",
        format="made",
    )
    distances = describe(trace).reuse_distances
    for capacity in range(1, 6):
        replayed = kvsim.replay(trace, gpu_blocks=capacity, instant=True).hits["block"]["hits"]
        assert replayed == int((distances < capacity).sum())
