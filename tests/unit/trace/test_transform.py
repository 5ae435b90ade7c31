from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import ConfigError, UserError
from kvsim.trace import (
    ArrivalModel,
    Trace,
    annotate_next_use,
    close_loop,
    load,
    reblock,
    scale_time,
    spread_arrivals,
)
from kvsim.types import NEVER, PartialRule, Request

if TYPE_CHECKING:
    from pathlib import Path


def trace_of(*paths: tuple[int, ...], arrivals: list[int] | None = None) -> Trace:
    return Trace(
        requests=tuple(
            Request(
                request_id=i,
                arrived_at=arrivals[i] if arrivals else i,
                block_keys=path,
                num_input_tokens=8 * len(path) or 1,
                num_output_tokens=1,
                cancelled_at=arrivals[i] + 1000 if arrivals else None,
            )
            for i, path in enumerate(paths)
        ),
        block_size=8,
        partial=PartialRule.NEVER,
        name="made",
        format="synthetic",
    )


def test_next_use_is_the_next_request_with_the_block() -> None:
    annotated = annotate_next_use(trace_of((1, 2), (3,), (1, 2, 4), (1,)))
    # 1 is in requests 0, 2, 3; 2 in 0 and 2; 3 in 1; 4 in 2
    assert [r.next_use_at for r in annotated.requests] == [
        (2, 2),
        (NEVER,),
        (3, NEVER, NEVER),
        (NEVER,),
    ]


@given(st.lists(st.lists(st.integers(0, 5), unique=True, max_size=4), max_size=8))
def test_next_use_agrees_with_a_search(paths: list[list[int]]) -> None:
    annotated = annotate_next_use(trace_of(*map(tuple, paths)))
    for i, request in enumerate(annotated.requests):
        searched = [
            next((j for j in range(i + 1, len(paths)) if key in paths[j]), NEVER)
            for key in paths[i]
        ]
        assert list(request.next_use_at or ()) == searched


def test_twice_the_speed_halves_all_times() -> None:
    # 1000 ms and 3500 ms on the file's clock are 0 and 2.5 s, and 1.25 s at factor 2
    trace = scale_time(trace_of((1,), (2,), arrivals=[0, 2_500_000_000]), speed=2)
    assert [r.arrived_at for r in trace.requests] == [0, 1_250_000_000]
    assert [r.cancelled_at for r in trace.requests] == [500, 1_250_000_500]
    assert scale_time(trace_of((1,), (2,)), speed=0.5).requests[1].arrived_at == 2
    assert scale_time(trace, speed=1) == trace


@pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf"), True, "2"])
def test_a_speed_is_a_finite_number_above_zero(speed: float) -> None:
    with pytest.raises(ConfigError, match="speed must be"):
        scale_time(trace_of((1,)), speed=speed)


def test_equal_arrivals_are_spread_over_the_gap_in_order() -> None:
    arrivals = [0, 0, 0, 3000, 3000, 9000, 9000]
    trace = trace_of(*[()] * 7, arrivals=arrivals)
    spread = spread_arrivals(trace, Random(1))
    times = [r.arrived_at for r in spread.requests]
    assert times == sorted(times)
    assert [times[i] for i in (0, 3, 5, 6)] == [0, 3000, 9000, 9000]  # firsts, and the last group
    assert 0 < times[1] < times[2] < 3000 < times[4] < 9000
    assert [r.cancelled_at for r in spread.requests] == [time + 1000 for time in times]
    assert spread == spread_arrivals(trace, Random(1)) != spread_arrivals(trace, Random(2))
    assert spread_arrivals(replace(trace, requests=()), Random(1)).requests == ()


def mooncake(tmp_path: Path, *rows: tuple[int, list[int]]) -> Trace:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(
            json.dumps({"timestamp": 0, "input_length": n, "output_length": 1, "hash_ids": ids})
            + "\n"
            for n, ids in rows
        )
    )
    return load(path)


def test_blocks_of_512_are_cut_into_blocks_of_16(tmp_path: Path) -> None:
    trace = mooncake(tmp_path, (655, [0, 1]), (1024, [0, 1]), (655, [0, 1]))
    small = reblock(trace, 16)
    first, second, third = (r.block_keys for r in small.requests)
    assert (small.block_size, small.partial) == (16, PartialRule.NEVER)
    # 655 = 40 * 16 + 15 and 1024 = 64 * 16; 512 / 16 = 32 blocks of id 0, 143 // 16 = 8 of id 1
    assert [len(first), len(second)] == [40, 64]
    assert first == tuple(range(40)) == tuple(second[:40]) == third
    assert small.num_unique_blocks == 64
    assert small.repairs[-1] == "blocks of 512 tokens cut into 16"


def test_a_partial_small_block_is_not_the_full_one_that_begins_alike(tmp_path: Path) -> None:
    trace = mooncake(tmp_path, (655, [0, 1]), (1024, [0, 1]), (655, [0, 1]))
    first, second, third = (
        r.block_keys for r in reblock(trace, 16, partial=PartialRule.COUNT).requests
    )
    assert [len(first), len(second)] == [41, 64]
    assert first == third
    assert first[:40] == second[:40]
    assert first[40] not in second


def test_blocks_are_cut_only_where_that_is_possible(tmp_path: Path) -> None:
    trace = mooncake(tmp_path, (655, [0, 1]))
    for size in (0, 3, 1024, True):
        with pytest.raises(ConfigError, match="must divide the trace's 512 tokens a block, not"):
            reblock(trace, size)
    with pytest.raises(ConfigError, match="only of a trace under partial='count'"):
        reblock(trace_of((1,)), 4, partial=PartialRule.COUNT)


def test_what_follows_the_last_full_block_is_the_prompt_s_own() -> None:
    requests = tuple(
        Request(
            request_id=i, arrived_at=0, block_keys=(7,), num_input_tokens=15, num_output_tokens=1
        )
        for i in range(2)
    )
    trace = Trace(
        requests=requests, block_size=8, partial=PartialRule.NEVER, name="two", format="made"
    )
    small = reblock(trace, 4)
    # 15 // 4 = 3 blocks: two are in the full block of 8, the third is in the 7 tokens after it
    assert [each.block_keys for each in small.requests] == [(0, 1, 2), (0, 1, 3)]
    assert small.repairs == (
        "blocks of 8 tokens cut into 4; 2 after the last full one are their prompt's own",
    )


def session_of(*turns: tuple[int, str | None, int]) -> Trace:
    """Make a trace of (arrival in s, session, output tokens)."""
    return Trace(
        requests=tuple(
            Request(
                request_id=i,
                arrived_at=at * 10**9,
                block_keys=(),
                num_input_tokens=1,
                num_output_tokens=num_output,
                session_id=name,
                cancelled_at=(at + 1) * 10**9,
            )
            for i, (at, name, num_output) in enumerate(turns)
        ),
        block_size=8,
        partial=PartialRule.NEVER,
        name="turns",
        format="made",
    )


def test_in_a_closed_loop_a_turn_follows_the_answer_to_the_one_before() -> None:
    trace = session_of((0, "a", 100), (1, "b", 50), (2, "a", 10), (3, None, 5), (4, "a", 1))
    # no think time, 100 ms a token: a's answers take 10 s and 1 s, so its turns come at 0, 10, 11
    loop = close_loop(trace, ArrivalModel(think_s=0.0, token_ms=100.0))
    assert [(r.arrived_at // 10**9, r.session_id) for r in loop.requests] == [
        (0, "a"),
        (1, "b"),
        (3, None),
        (10, "a"),
        (11, "a"),
    ]
    assert [r.request_id for r in loop.requests] == [0, 1, 2, 3, 4]
    # who gives up after a second still does
    assert all((r.cancelled_at or 0) - r.arrived_at == 10**9 for r in loop.requests)


def test_pauses_are_drawn_from_the_seed() -> None:
    trace = session_of((0, "a", 1), (1, "a", 1))
    model = ArrivalModel(think_s=10.0, token_ms=0.0, seed=3)
    assert close_loop(trace, model) == close_loop(trace, model)
    gaps = [
        close_loop(trace, replace(model, seed=seed)).requests[1].arrived_at for seed in range(400)
    ]
    # 400 exponentials of mean 10 s: their mean is 10 s with a standard deviation of 0.5 s
    assert 8 <= sum(gaps) / 400 / 10**9 <= 12


def test_without_sessions_there_is_no_loop_to_close() -> None:
    with pytest.raises(UserError, match="has no sessions"):
        close_loop(session_of((0, None, 1)), ArrivalModel())
