from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import TraceError
from kvsim.trace import Trace, load, write
from kvsim.trace.base import num_blocks
from kvsim.types import PartialRule, Request
from tests.unit.trace.files import problem_of, saved

if TYPE_CHECKING:
    from pathlib import Path


def made(*requests: Request, partial: PartialRule = PartialRule.NEVER) -> Trace:
    return Trace(
        requests=requests,
        block_size=8,
        partial=partial,
        name="made",
        format="kvsim-parquet",
        repairs=("something was repaired",),
        num_disordered=2,
    )


def request(number: int, *keys: object, **more: object) -> Request:
    fields: dict[str, object] = {
        "request_id": number,
        "arrived_at": number,
        "block_keys": keys,
        "num_input_tokens": 8 * len(keys) + 1,
        "num_output_tokens": 2,
    }
    return Request(**(fields | more))  # type: ignore[arg-type]


KEYS = st.one_of(
    st.integers(0, 5), st.integers(-(2**70), 2**70), st.text(max_size=3), st.binary(max_size=3)
)


@given(data=st.data(), partial=st.sampled_from(PartialRule))
def test_any_trace_survives_writing_and_reading(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, partial: PartialRule
) -> None:
    requests: list[Request] = []
    at = 0
    for number in range(data.draw(st.integers(1, 4))):
        at += data.draw(st.integers(0, 10**18)) if number else 0
        length = data.draw(st.integers(1, 20))
        count = num_blocks(length, 8, partial)
        keys = data.draw(st.lists(KEYS, min_size=count, max_size=count))
        requests.append(
            request(
                number,
                *keys,
                arrived_at=at,
                num_input_tokens=length,
                num_output_tokens=data.draw(st.integers(1, 2**53)),
                session_id=data.draw(st.sampled_from([None, "", "s\n\u00e9"])),
                priority=data.draw(st.integers(-3, 3)),
                cancelled_at=data.draw(st.sampled_from([None, at, at + 1])),
            )
        )
    trace = made(*requests, partial=partial)
    path = tmp_path_factory.mktemp("any") / "made.parquet"
    write(trace, path)
    assert replace(load(path), sha256=None) == trace


def test_a_part_and_another_partial_rule_are_taken_of_it(tmp_path: Path) -> None:
    path = tmp_path / "made.parquet"
    trace = made(
        request(0, 5, 6, num_input_tokens=9),
        request(1, 5, num_input_tokens=8),
        partial=PartialRule.COUNT,
    )
    write(trace, path)
    assert load(path, limit=1).num_requests == 1
    assert [r.block_keys for r in load(path, partial="never").requests] == [(5,), (5,)]
    assert load(path, block_size=4).requests[0].block_keys == (0, 1, 2)
    write(load(path, partial="never"), path)
    assert problem_of(path, partial="count").startswith(": partial='count' needs an id")
    assert problem_of(path, id_tokens=4) == ": block_size is 8 in this file, not 4"


def test_what_has_no_place_in_64_bits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="a number has no place in 64 bits"):
        write(made(request(0, 1, priority=2**70)), tmp_path / "x.parquet")
    with pytest.raises(TraceError, match="a block key must be a whole number, text or bytes"):
        write(made(request(0, (1, 2))), tmp_path / "x.parquet")
    assert list(tmp_path.iterdir()) == []


def changed(path: Path, **columns: object) -> None:
    """Write the table at `path` again with other columns; None takes one away."""
    table = pq.read_table(path)
    metadata = table.schema.metadata
    for name, values in columns.items():
        if name in table.column_names:
            table = table.drop_columns(name)
        if values is not None:
            table = table.append_column(name, pa.array(values))
    pq.write_table(table.replace_schema_metadata(metadata), path)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"arrived_at": None}, ": column arrived_at is missing"),
        ({"arrived_at": ["a", "b"]}, ": column arrived_at must be of type int64, not string"),
        ({"arrived_at": [0, -1]}, ": request 1 of a trace arrives at -1 ns"),
        ({"arrived_at": [0, None]}, ": arrived_at and priority must not be null"),
        ({"num_input_tokens": [9, 0]}, ": num_input_tokens of request 1 must be at least 1"),
        ({"num_input_tokens": [9, 90]}, ": request 1 of a trace has 1 block keys"),
        ({"block_keys": [[1], None]}, ": columns that do not fit each other: a null among"),
        ({"block_keys": [[1], [None]]}, ": columns that do not fit each other: a null among"),
        ({"block_keys": [1, 2]}, ": column block_keys must be of type int64, not None"),
        ({"new_keys": [["i1"], []]}, ": columns that do not fit each other: a block key without"),
    ],
)
def test_a_table_that_somebody_changed_is_checked(
    tmp_path: Path, columns: dict[str, object], problem: str
) -> None:
    path = tmp_path / "made.parquet"
    write(made(request(0, 0), request(1, 1)), path)
    changed(path, **columns)
    assert problem_of(path).startswith(problem)


def test_other_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    assert problem_of(path) == ": a Parquet file, but not one that kvsim wrote"
    assert problem_of(saved(tmp_path, b"PAR1" + bytes(50))).startswith(
        ": not a readable Parquet file: "
    )
    write(made(request(0, 0)), path)
    content = path.read_bytes()
    for facts, problem in (({"version": 2}, "another version"), ({"format": "x"}, "another")):
        table = pq.read_table(pa.BufferReader(content))
        old = json.loads(table.schema.metadata[b"kvsim"])
        pq.write_table(table.replace_schema_metadata({b"kvsim": json.dumps(old | facts)}), path)
        assert problem in problem_of(path)


def test_a_flipped_byte_in_a_page_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "made.parquet"
    write(made(*(request(i, i * 7919) for i in range(500))), path)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 255
    path.write_bytes(content)
    assert ": " in problem_of(path)
