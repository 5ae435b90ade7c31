from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.trace import load
from kvsim.types import PartialRule
from tests.unit.trace.files import json_lines, problem_of, saved

if TYPE_CHECKING:
    from pathlib import Path

FIRST: dict[str, object] = {
    "chat_id": 7,
    "parent_chat_id": -1,
    "timestamp": 0.125,
    "input_length": 40,
    "output_length": 9,
    "type": "text",
    "turn": 1,
    "hash_ids": [11, 12, 13],
}


def turn(chat: int, parent: int, at: float, ids: list[int], num_tokens: int) -> dict[str, object]:
    return FIRST | {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": at,
        "hash_ids": ids,
        "input_length": num_tokens,
    }


def test_a_turn_becomes_a_request_in_blocks_of_16(tmp_path: Path) -> None:
    trace = load(saved(tmp_path, json_lines(FIRST, turn(8, 7, 2.625, [11, 12, 14, 15], 60))))
    first, second = trace.requests
    assert (trace.format, trace.block_size, trace.partial) == ("qwen", 16, PartialRule.COUNT)
    assert [first.arrived_at, second.arrived_at] == [0, 2_500_000_000]  # 2.625 - 0.125 s
    # id 13 held 40 - 32 = 8 tokens and is 14 when it is full: the last id changes, two are shared
    assert [first.block_keys, second.block_keys] == [(11, 12, 13), (11, 12, 14, 15)]
    assert [first.session_id, second.session_id] == ["7", "7"]
    assert trace.repairs == ()


def test_a_turn_without_the_thoughts_of_its_parent_shares_what_is_equal(tmp_path: Path) -> None:
    trace = load(saved(tmp_path, json_lines(FIRST, turn(8, 7, 1.0, [11, 20], 32))))
    assert [each.block_keys for each in trace.requests] == [(11, 12, 13), (11, 20)]


def test_a_parent_outside_the_sample_still_names_the_session(tmp_path: Path) -> None:
    rows = [turn(8, 3, 0, [1], 16), turn(9, 8, 1, [1, 2], 20), turn(10, 3, 2, [4], 9)]
    trace = load(saved(tmp_path, json_lines(*rows)))
    assert [each.session_id for each in trace.requests] == ["3", "3", "3"]
    assert trace.repairs == (
        "1 row whose parent turn is not in the file before, first at line 1; the sessions are named"
        " after that parent",
    )


def test_ids_that_are_no_prefixes_are_interned_and_reported(tmp_path: Path) -> None:
    trace = load(
        saved(tmp_path, json_lines(turn(1, -1, 0, [1, 2], 32), turn(2, -1, 1, [3, 2], 32)))
    )
    assert [each.block_keys for each in trace.requests] == [(0, 1), (2, 3)]
    assert "3 ids renumbered by (parent, id) into 4 blocks" in trace.repairs[0]


def test_a_bad_row_is_one_line(tmp_path: Path) -> None:
    for change, problem in (
        (
            {"hash_ids": [1]},
            ":2: 1 hash_ids do not fit input_length 40: at 16 tokens an id it needs 3",
        ),
        ({"timestamp": "0"}, ":2: timestamp must be a number of seconds from 0 to 2**53, not '0'"),
        ({"chat_id": None}, ":2: chat_id must be a whole number from 0 to 2**53, not null"),
        (
            {"parent_chat_id": -2},
            ":2: parent_chat_id must be a whole number from 0 to 2**53, not -2",
        ),
    ):
        assert problem_of(saved(tmp_path, json_lines(FIRST, FIRST | change))) == problem
