from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import TraceError
from kvsim.trace import Trace, load, write
from kvsim.trace.base import num_blocks
from kvsim.types import PartialRule, Request, RetentionRange

if TYPE_CHECKING:
    from pathlib import Path

HEADER: dict[str, object] = {
    "format": "kvsim-trace",
    "version": 1,
    "block_size": 8,
    "time_unit": "ms",
    "partial": "never",
}
ROW: dict[str, object] = {"at": 5, "input": 17, "output": 3, "blocks": [4, 5]}


def written(tmp_path: Path, *records: dict[str, object], **header: object) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [json.dumps(record) for record in (HEADER | header, *records)]
    path.write_text("\n".join(lines))
    return path


def test_a_row_becomes_a_request(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        ROW,
        ROW | {"at": 6, "session": "s", "priority": -2, "cancel_at": 8, "blocks": ["a", 6]},
        note="for people",
    )
    first, second = load(path, block_size=8).requests
    assert first == Request(
        request_id=0, arrived_at=0, block_keys=(4, 5), num_input_tokens=17, num_output_tokens=3
    )
    assert second == Request(
        request_id=1,
        arrived_at=1_000_000,  # (6 - 5) ms
        block_keys=("a", 6),
        num_input_tokens=17,
        num_output_tokens=3,
        session_id="s",
        priority=-2,
        cancelled_at=3_000_000,  # (8 - 5) ms
    )


@pytest.mark.parametrize(
    ("unit", "times"),
    [
        ("s", (1, 3.5)),
        ("ms", (1000, 3500)),
        ("us", (1_000_000, 3_500_000)),
        ("ns", (1_000_000_000, 3_500_000_000)),
        ("s", (1_700_000_001, 1_700_000_003.5)),
        ("us", (1_700_000_001_000_000, 1_700_000_003_500_000)),  # since the epoch
    ],
)
def test_times_of_every_unit_count_from_the_first_arrival(
    tmp_path: Path, unit: str, times: tuple[float, float]
) -> None:
    rows = [ROW | {"at": at, "cancel_at": times[1]} for at in times]
    trace = load(written(tmp_path, *rows, time_unit=unit))
    assert [r.arrived_at for r in trace.requests] == [0, 2_500_000_000]
    assert [r.cancelled_at for r in trace.requests] == [2_500_000_000] * 2


def test_two_clocks_in_one_file_are_refused(tmp_path: Path) -> None:
    # 1.7e12 ms are 19,675 whole days, and 1,000 ms less are 19,675 too
    path = written(tmp_path, ROW | {"at": 1000}, ROW | {"at": 1_700_000_000_000})
    with pytest.raises(TraceError) as caught:
        load(path)
    assert str(caught.value) == (
        f"{path}:3: a time 19675 days after the first arrival (line 2): two clocks in one file, or"
        " the wrong unit"
    )
    path = written(tmp_path, ROW | {"at": 1000, "cancel_at": 1_700_000_000_000})
    with pytest.raises(TraceError, match=":2: a time 19675 days after"):
        load(path)
    path = written(tmp_path, ROW | {"at": 1_700_000_000_000, "cancel_at": 1000})
    with pytest.raises(TraceError, match=":2: cancel_at 1000 is before at 1700000000000"):
        load(path)


def test_under_count_the_partial_last_block_has_an_id(tmp_path: Path) -> None:
    path = written(tmp_path, ROW | {"blocks": [4, 5, 6]}, partial="count")
    assert load(path).requests[0].block_keys == (4, 5, 6)  # ceil(17 / 8)
    assert load(path, partial="never").requests[0].block_keys == (4, 5)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ({"format": "other"}, "format must be 'kvsim-trace' in the first line, not 'other'"),
        ({"version": 2}, "version must be 1, the one this kvsim reads, not 2"),
        ({"version": True}, "version must be 1, the one this kvsim reads, not true"),
        ({"block_size": 0}, "block_size must be a whole number from 1 to 2**53, not 0"),
        ({"time_unit": "min"}, "time_unit must be one of s, ms, us, ns, not 'min'"),
        ({"time_unit": ["s"]}, "time_unit must be one of s, ms, us, ns, not a list of 1"),
        ({"partial": None}, "partial must be one of count, never, not null"),
        ({"prefixes": 1}, "prefixes must be true or false, not 1"),
        (
            {"prefixes": False, "partial": "count"},
            "partial must be never where prefixes is false, not count",
        ),
        ({"time_units": "s"}, "unknown field 'time_units'; did you mean 'time_unit'?"),
    ],
)
def test_a_bad_header_is_one_line_that_says_why(
    tmp_path: Path, header: dict[str, object], problem: str
) -> None:
    path = written(tmp_path, ROW, **header)
    with pytest.raises(TraceError) as caught:
        load(path, format="kvsim")
    assert str(caught.value) == f"{path}:1: {problem}"


def test_a_header_field_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"format":"kvsim-trace","version":1,"block_size":8}\n')
    with pytest.raises(TraceError, match="field 'time_unit' is missing"):
        load(path)
    path.write_text(json.dumps(HEADER) + "\n")
    with pytest.raises(TraceError, match="there is no request in it"):
        load(path)
    path.write_text("")
    with pytest.raises(
        TraceError, match="format must be 'kvsim-trace' in the first line, not null"
    ):
        load(path, format="kvsim")


def test_a_block_size_other_than_the_file_s_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=":1: block_size is 8 in this file, not 16"):
        load(written(tmp_path, ROW), id_tokens=16)
    with pytest.raises(TraceError, match="block_size must divide the 8 tokens that an id stands"):
        load(written(tmp_path, ROW), block_size=16)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"at": -1}, "at must be a number from 0 to 2**53, not -1"),
        ({"at": "1"}, "at must be a number from 0 to 2**53, not '1'"),
        ({"at": False}, "at must be a number from 0 to 2**53, not false"),
        ({"at": 1e16}, "at must be a number from 0 to 2**53, not 1e+16"),
        ({"at": float("inf")}, "Infinity is not a number; a trace has finite numbers only"),
        ({"input": 0}, "input must be a whole number from 1 to 2**53, not 0"),
        ({"output": 1.5}, "output must be a whole number from 0 to 2**53, not 1.5"),
        ({"blocks": 4}, "blocks must be a list of whole numbers or texts, not 4"),
        (
            {"blocks": [1, 2, 3]},
            "3 blocks do not fit input 17: with the block_size and partial of the header"
            " it needs 2",
        ),
        (
            {"blocks": [1, -2]},
            "each of blocks must be a whole number from 0 to 2**53 or a text, not -2",
        ),
        (
            {"blocks": [2**53 + 1, 1]},
            "each of blocks must be a whole number from 0 to 2**53 or a text, not 9007199254740993",
        ),
        (
            {"blocks": ["a", None]},
            "each of blocks must be a whole number from 0 to 2**53 or a text, not null",
        ),
        (
            {"blocks": ["a", "\ud800"]},
            "each of blocks must be a whole number from 0 to 2**53 or a text, not '\\ud800'",
        ),
        ({"session": 5}, "session must be text, not 5"),
        ({"priority": 1.5}, "priority must be a whole number up to 2**53, not 1.5"),
        ({"cancel_at": 4}, "cancel_at 4 is before at 5; both must be on the same clock"),
        ({"cancel_at": "never"}, "cancel_at must be a number from 0 to 2**53, not 'never'"),
        ({"cancelat": 9}, "unknown field 'cancelat'; did you mean 'cancel_at'?"),
        (
            {"x\ny": 9},
            "unknown field 'x\\ny'; known: at, input, output, blocks, session, tenant, priority,"
            " cancel_at, retention, output_retention",
        ),
    ],
)
def test_a_bad_row_is_one_line_that_says_where(
    tmp_path: Path, change: dict[str, object], problem: str
) -> None:
    path = written(tmp_path, ROW, ROW | change)
    with pytest.raises(TraceError) as caught:
        load(path)
    assert str(caught.value) == f"{path}:3: {problem}"


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    for field in ROW:
        record = {key: value for key, value in ROW.items() if key != field}
        with pytest.raises(TraceError, match=f":2: field '{field}' is missing; fields seen: "):
            load(written(tmp_path, record))


def request(arrived_at: int, *keys: object, **more: object) -> Request:
    fields: dict[str, object] = {
        "request_id": 0,
        "arrived_at": arrived_at,
        "block_keys": keys,
        "num_input_tokens": 8 * len(keys) + 1,
        "num_output_tokens": 2,
    }
    return Request(**(fields | more))  # type: ignore[arg-type]


def trace_of(*requests: Request) -> Trace:
    return Trace(
        requests=tuple(replace(each, request_id=i) for i, each in enumerate(requests)),
        block_size=8,
        partial=PartialRule.NEVER,
        name="made",
        format="synthetic",
    )


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    trace = trace_of(
        request(0, 1, "\u00e9", session_id="s"), request(7, b"\x01\xff", cancelled_at=9, priority=3)
    )
    write(trace, path)
    assert path.read_text(encoding="utf-8").splitlines() == [
        '{"format":"kvsim-trace","version":1,"block_size":8,"time_unit":"ns","partial":"never"}',
        '{"at":0,"input":17,"output":2,"blocks":[1,"\u00e9"],"session":"s"}',
        '{"at":7,"input":9,"output":2,"blocks":["01ff"],"priority":3,"cancel_at":9}',
    ]
    read = load(path)
    assert read.requests[0] == trace.requests[0]
    assert read.requests[1] == replace(trace.requests[1], block_keys=("01ff",))
    assert [each.name for each in tmp_path.iterdir()] == ["out.jsonl"]


@given(data=st.data(), partial=st.sampled_from(PartialRule))
def test_any_trace_survives_writing_and_reading(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, partial: PartialRule
) -> None:
    requests: list[Request] = []
    at = 0
    for index in range(data.draw(st.integers(1, 4))):
        at += data.draw(st.sampled_from([0, 1, 10**6, 10**9])) if index else 0
        num_input = data.draw(st.integers(1, 20))
        requests.append(
            Request(
                request_id=index,
                arrived_at=at,
                block_keys=tuple(
                    f"{index}.{i}" if index % 2 else 100 * index + i
                    for i in range(num_blocks(num_input, 8, partial))
                ),
                num_input_tokens=num_input,
                num_output_tokens=data.draw(st.integers(1, 9)),
                session_id=data.draw(st.sampled_from([None, "", "s\n"])),
                priority=data.draw(st.integers(-3, 3)),
                cancelled_at=data.draw(st.sampled_from([None, at, at + 1])),
            )
        )
    trace = replace(trace_of(), requests=tuple(requests), partial=partial)
    path = tmp_path_factory.mktemp("any") / "made.jsonl"
    write(trace, path)
    read = load(path)
    assert replace(read, format="synthetic", sha256=None) == trace


def test_the_coarsest_exact_unit_is_written(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for last, unit in ((0, "s"), (2 * 10**9, "s"), (10**6, "ms"), (1500, "ns"), (4000, "us")):
        write(trace_of(request(0, 1), request(last, 2)), path)
        assert f'"time_unit":"{unit}"' in path.read_text()


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("old")
    with pytest.raises(TraceError, match=r"a block key must be .* not \(1, 2\)$"):
        write(trace_of(request(0, (1, 2))), path)
    with pytest.raises(TraceError, match="more than 104 days in nanoseconds"):
        write(trace_of(request(0, 1), request(2**53 + 1, 2)), path)
    assert [each.name for each in tmp_path.iterdir()] == ["out.jsonl"]
    assert path.read_text() == "old"


def test_a_place_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    trace = trace_of(request(0, 1))
    (tmp_path / "folder").mkdir()
    for place, problem in (
        (tmp_path / "absent" / "out.jsonl", "no such file or directory"),
        (tmp_path / "folder", "a directory; name a file in it"),
        ("", "not the name of a file"),
    ):
        with pytest.raises(TraceError, match=problem):
            write(trace, place)
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


def test_retention_and_tenants_survive_writing_and_reading(tmp_path: Path) -> None:
    """Durations are in the unit of the file: 1.5 s need milliseconds."""
    kept = (
        RetentionRange(end_token=4, priority=80, duration_ns=1_500_000_000),
        RetentionRange(first_token=4, priority=0),
    )
    said = replace(
        request(0, 1),
        tenant="a",
        retention=kept,
        output_retention=RetentionRange(priority=10, duration_ns=2_000_000_000),
    )
    trace = trace_of(said, request(0, 2))
    for name in ("out.jsonl", "out.parquet"):
        write(trace, tmp_path / name)
        read = load(tmp_path / name).requests
        assert (read[0].tenant, read[0].retention) == ("a", kept)
        assert read[0].output_retention == said.output_retention
        assert (read[1].tenant, read[1].retention, read[1].output_retention) == (None, (), None)
    text = (tmp_path / "out.jsonl").read_text()
    assert '"time_unit":"ms"' in text
    assert (
        '"retention":[{"to":4,"priority":80,"for":1500},{"from":4,"priority":0}],'
        '"output_retention":{"priority":10,"for":2000}'
    ) in text


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("tenant", 3, "tenant must be text, not 3"),
        ("retention", {}, "retention must be a list of ranges, not an object"),
        ("retention", [3], "retention must have objects with from, to, priority, for, not 3"),
        ("retention", [{"fro": 1}], "unknown field 'fro' of retention; did you mean 'from'?"),
        ("retention", [{"priority": 101}], "priority of a retention range must be an integer"),
        ("retention", [{"from": 4, "to": 2}], "end_token of a retention range must be above"),
        ("retention", [{"for": "x"}], "for of retention must be a number, not 'x'"),
        ("retention", [{}, {"from": 1}], "retention ranges overlap at token 1"),
        ("output_retention", {"to": 1}, "unknown field 'to' of output_retention"),
    ],
)
def test_impossible_retention_is_one_line(
    tmp_path: Path, field: str, value: object, problem: str
) -> None:
    path = tmp_path / "bad.jsonl"
    write(trace_of(request(0, 1)), path)
    header, row = path.read_text().splitlines()
    path.write_text("\n".join([header, json.dumps(json.loads(row) | {field: value}), ""]))
    with pytest.raises(TraceError) as caught:
        load(path)
    assert problem in str(caught.value)
    assert f"{path}:2:" in str(caught.value)
