from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.analysis.trace_info import describe
from kvsim.trace import load
from tests.unit.trace.files import json_lines, problem_of, saved

if TYPE_CHECKING:
    from pathlib import Path


def row(at: str, num_tokens: int, **parts: list[int]) -> dict[str, object]:
    return {
        "timestamp": at,
        "input_length": num_tokens,
        "output_length": 3,
        "session_id": "s",
        "hash_ids": {"sys_prompt": [1], "passages_ids": [], "history": [], **parts},
    }


def test_contents_are_chained_in_the_order_of_the_record(tmp_path: Path) -> None:
    rows = [
        row("10.5", 48, passages_ids=[2, 3]),  # 3 ids of 16 tokens
        row("11", 48, passages_ids=[3, 2]),  # the same passages, the other way round
        row("11.000000001", 64, passages_ids=[2, 3], user_input=[4]),
    ]
    trace = load(saved(tmp_path, json_lines(*rows)), block_size=16)
    assert (trace.format, trace.block_size) == ("ragpulse", 16)
    # only the system prompt is a common prefix of the first two
    assert [r.block_keys for r in trace.requests] == [(0, 1, 2), (0, 3, 4), (0, 1, 2, 5)]
    assert [r.arrived_at for r in trace.requests] == [0, 500_000_000, 500_000_001]
    # As unordered objects 6 of the 10 ids were seen before; as prefixes 1 + 3 = 4.
    hits = describe(trace).infinite_hits
    assert hits is not None
    assert (hits["block"]["hits"], hits["block"]["total"]) == (4, 10)


def test_tokens_of_an_id_are_those_of_its_first_prompt(tmp_path: Path) -> None:
    rows = [
        row("0", 50, passages_ids=[2, 3]),  # floor(50 / 3 + 1/2) = 17 tokens an id: 51, cut at 50
        row("1", 50, passages_ids=[2], user_input=[5, 6, 7]),  # new ones: floor(50 / 5 + 1/2) = 10
    ]
    trace = load(saved(tmp_path, json_lines(*rows)), block_size=8)
    # 1 and 2 are the tokens 0 to 33 of both, which are 4 blocks of 8. Then 17 + 17 + 3 x 10 = 64 is
    # more than 50: both have 50 // 8 = 6 blocks.
    first, second = (r.block_keys for r in trace.requests)
    assert (len(first), len(second)) == (6, 6)
    assert first[:4] == second[:4]
    assert set(first[4:]).isdisjoint(second[4:])


def test_tokens_beyond_the_last_id_are_the_prompt_s_own(tmp_path: Path) -> None:
    rows = [row("0", 1100), row("1", 1100)]  # one id of at most 512 tokens
    trace = load(saved(tmp_path, json_lines(*rows)), block_size=256)
    # 1100 // 256 = 4 blocks, of which 512 // 256 = 2 have a name
    assert [r.block_keys for r in trace.requests] == [(0, 1, 2, 3), (0, 1, 4, 5)]
    assert load(saved(tmp_path, json_lines(*rows)), block_size=256, id_tokens=256).requests[
        1
    ].block_keys == (0, 4, 5, 6)


def test_a_blank_last_line_and_a_row_out_of_order_are_no_trouble(tmp_path: Path) -> None:
    rows = json_lines(row("5", 16), row("4.5", 16), row("6", 16)) + "\n"
    trace = load(saved(tmp_path, rows))
    assert trace.num_requests == 3
    assert [r.arrived_at for r in trace.requests] == [0, 500_000_000, 1_500_000_000]
    assert trace.num_disordered == 1
    assert trace.repairs[1:] == (
        "sorted by time: 1 row earlier than the row before, first at line 2",
    )


def test_a_bad_row_is_one_line(tmp_path: Path) -> None:
    good = row("1", 16)
    for change, problem in (
        ({"timestamp": "soon"}, ":2: timestamp must be a text of seconds from 0, not 'soon'"),
        ({"timestamp": None}, ":2: timestamp must be a text of seconds from 0, not null"),
        (
            {"hash_ids": [1]},
            ":2: hash_ids must be an object with a list for each part, not a list of 1",
        ),
        ({"hash_ids": {"history": 3}}, ":2: hash_ids: 'history' must be a list, not 3"),
    ):
        assert problem_of(saved(tmp_path, json_lines(good, good | change))) == problem
