"""What Dynamo and AIPerf add to Mooncake's rows, and the two decoders of plain rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.trace import load
from kvsim.trace.mooncake import decode_plainly, plain_decoder
from tests.unit.trace.files import json_lines, problem_of, saved

if TYPE_CHECKING:
    from pathlib import Path

GOOD = {"timestamp": 0, "input_length": 655, "output_length": 100, "hash_ids": [46, 47]}


def turn(**fields: object) -> dict[str, object]:
    row: dict[str, object] = {k: v for k, v in GOOD.items() if k != "timestamp"}
    return row | fields


def test_a_delay_counts_from_the_end_of_the_answer(tmp_path: Path) -> None:
    rows = [
        turn(session_id="a", timestamp=1000.5),
        turn(session_id="b", timestamp=1500),
        turn(session_id="a", delay=250),
        turn(session_id="a", delay_ms=0.5),
    ]
    trace = load(saved(tmp_path, json_lines(*rows)), arrivals="poisson:token_ms=10")
    # a's answers take 100 tokens x 10 ms = 1 s: its turns come at 1000.5 ms, at 1000.5 + 1000 + 250
    # and at 2250.5 + 1000 + 0.5 ms
    assert [(r.session_id, r.arrived_at / 10**6) for r in trace.requests] == [
        ("a", 0.0),
        ("b", 499.5),
        ("a", 1250.0),
        ("a", 2250.5),
    ]
    assert trace.repairs == (
        "rows without a timestamp: their sessions start and their answers take what the arrival"
        " model says, poisson:gap_s=10.0,think_s=30.0,token_ms=10.0,seed=0; a delay counts from the"
        " end of an answer",
    )


def test_sessions_without_any_time_start_as_modelled(tmp_path: Path) -> None:
    rows = [turn(session_id="a"), turn(session_id="b"), turn(session_id="a", delay=1)]
    trace = load(saved(tmp_path, json_lines(*rows)), arrivals="poisson:gap_s=1,token_ms=0")
    assert [r.session_id for r in trace.requests] == ["a", "a", "b"]
    assert trace.num_disordered == 1


def test_the_names_and_sizes_of_other_writers_are_understood(tmp_path: Path) -> None:
    row = {
        "created_time": 5,
        "input_tokens": 20,
        "output_tokens": 3,
        "hash_ids": [1, 2],
        "block_tokens": [16, 4],
    }
    trace = load(saved(tmp_path, json_lines(row, row | {"block_tokens": 16})))
    assert (trace.format, trace.block_size) == ("mooncake", 16)
    assert [r.block_keys for r in trace.requests] == [(1, 2), (1, 2)]
    wrong = saved(tmp_path, json_lines(row, row | {"block_tokens": [16, 3]}))
    assert problem_of(wrong).startswith(":2: block_tokens must be 16 for each id but the last")


def test_a_turn_needs_a_time_or_a_delay(tmp_path: Path) -> None:
    path = saved(tmp_path, json_lines(turn(session_id="a"), turn(session_id="a")))
    assert problem_of(path).startswith(":2: field 'delay' is missing")
    path = saved(tmp_path, json_lines(GOOD, turn()))
    assert problem_of(path).startswith(":2: field 'timestamp' is missing")


def test_blocks_are_cut_as_case_j2_says(tmp_path: Path) -> None:
    def rows(*pairs: tuple[int, list[int]]) -> Path:
        return saved(
            tmp_path,
            json_lines(*({**GOOD, "input_length": n, "hash_ids": ids} for n, ids in pairs)),
        )

    trace = load(rows((655, [0, 1]), (1024, [0, 1])), block_size=16)
    first, second = (r.block_keys for r in trace.requests)
    # 655 = 40 x 16 + 15: 41 keys, the last partial; 1024 = 64 x 16
    assert (len(first), len(second)) == (41, 64)
    # id 0 is 32 blocks; id 1 holds 143 tokens once and 512 once: 143 // 16 = 8 blocks are shared
    assert len(set(first) & set(second)) == 32 + 8
    for number, bad in ((1, (20, [0, 1])), (1, (1024, [0, 1, 2]))):
        assert problem_of(rows(bad), block_size=16).startswith(f":{number}: ")
    assert problem_of(rows((655, [0, 1])), block_size=24) == (
        ": block_size must divide the 512 tokens that an id stands for, not 24"
    )
    full = load(rows((655, [0, 1])), block_size=16, partial="never")
    assert len(full.requests[0].block_keys) == 40


def test_microseconds_since_the_epoch_are_not_read_as_milliseconds(tmp_path: Path) -> None:
    rows = [{**GOOD, "timestamp": 1_700_000_000_000_000 + i} for i in range(2)]
    for more in ({}, {"session_id": "a"}):  # by the fast way and by the slow one
        path = saved(tmp_path, json_lines(*(row | more for row in rows)))
        # 1.7e15 ms are 1.7e21 ns; 2**62 ns are 146 years: 368 times that
        assert problem_of(path) == (
            f":1: timestamp lies {368 * 146} years or more after 0 or 1970: the unit must be wrong"
        )
    rows = [{**GOOD, "timestamp": 1_700_000_000_000 + i} for i in range(2)]  # in ms they are fine
    assert load(saved(tmp_path, json_lines(*rows))).requests[1].arrived_at == 10**6


VALUES: st.SearchStrategy[object] = st.one_of(
    st.integers(-2, 5),
    st.sampled_from([2**53, 2**53 + 1, 2**70, True, None, 1.0, 1.5, "1", [], [1], {}]),
    st.lists(st.sampled_from([0, 1, 2, -1, 2**53 + 1, True, 1.0, "1", None])),
)


@given(st.dictionaries(st.sampled_from([*GOOD, "session_id"]), VALUES), st.booleans())
def test_both_decoders_say_the_same(changes: dict[str, object], is_spaced: bool) -> None:
    pytest.importorskip("msgspec", reason="the faster decoder is optional")
    raw = json.dumps(GOOD | changes, indent=1 if is_spaced else None).encode()
    fast, plain = plain_decoder()(raw), decode_plainly(raw)
    assert (fast is None) == (plain is None)
    if fast is not None and plain is not None:
        assert (fast.timestamp, fast.input_length, fast.output_length) == plain[:3]
        assert list(fast.hash_ids) == list(plain.hash_ids)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"\xff", b'{"timestamp":NaN}', b"[" * 10_000, b'{"timestamp":1e999}'],
)
def test_neither_decoder_raises(raw: bytes) -> None:
    assert plain_decoder()(raw) is None
    assert decode_plainly(raw) is None
