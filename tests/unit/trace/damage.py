"""Good files of every format, and ways to damage them."""

from __future__ import annotations

import gzip
import json
from io import BytesIO
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from kvsim.trace import Trace
from kvsim.trace.kvsim_parquet import encoded
from kvsim.types import PartialRule, Request

if TYPE_CHECKING:
    from pathlib import Path

    from hypothesis.strategies import DrawFn, SearchStrategy

NASTY: list[object] = [
    *(0, 1, -1, 2**24 + 1, 2**53, 2**53 + 1, 2**63, 10**30, 1.5, -0.5, 1e300, True, None),
    *("", "x", "\ud800", "1", "9" * 20, "2023-11-16 18:17:03.9", [], [1], [[1]], {}, {"a": [1]}),
]

JSON_ROWS: dict[str, list[dict[str, object]]] = {
    "kvsim": [
        {
            "format": "kvsim-trace",
            "version": 1,
            "block_size": 8,
            "time_unit": "ms",
            "partial": "never",
            "prefixes": True,
        },
        {"at": 0, "input": 17, "output": 1, "blocks": [1, "a"], "session": "s", "cancel_at": 5},
    ],
    "mooncake": [
        {"timestamp": 5, "input_length": 655, "output_length": 1, "hash_ids": [1, 2]},
        {"delay": 5, "input_length": 9, "output_length": 1, "hash_ids": [1], "session_id": "a"},
    ],
    "qwen": [
        {
            "chat_id": 3,
            "parent_chat_id": -1,
            "timestamp": 0.5,
            "input_length": 17,
            "output_length": 1,
            "hash_ids": [1, 2],
        },
    ],
    "ragpulse": [
        {
            "timestamp": "1.5",
            "input_length": 99,
            "output_length": 1,
            "session_id": "s",
            "hash_ids": {"sys_prompt": [1], "passages_ids": [2, "b"]},
        },
    ],
    "claude-code": [
        {
            "id": "c",
            "block_size": 64,
            "hash_id_scope": "local",
            "tool_tokens": 1,
            "requests": [
                {"t": 0.5, "type": "n", "in": 130, "out": 1, "hash_ids": [1, 2]},
                {"t": 1, "type": "subagent", "requests": [{"t": 1, "in": 9, "hash_ids": []}]},
            ],
        },
    ],
    "sharegpt": [
        {
            "id": "a_0",
            "conversations": [
                {"from": "human", "value": "hello"},
                {"from": "gpt", "value": "\u00e9"},
            ],
        },
    ],
    "token-ids": [
        {
            "prompt_token_ids": [1, 2, 3],
            "arrival_time": 1.5,
            "cache_salt": "s",
            "media": [{"media_id": "m", "first_token": 0, "num_tokens": 1}],
        },
    ],
}
TABLES = {
    "azure": ("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"),
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens\n5,m,472,18\n45,m,9,0\n",
}


def text_of(name: str, rows: list[dict[str, object]]) -> bytes:
    """Return the file that has the rows."""
    if name == "sharegpt":
        return json.dumps(rows * 2).encode()
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet() -> bytes:
    """Return a good table."""
    requests = tuple(
        Request(
            request_id=i,
            arrived_at=i,
            block_keys=(1, "a", b"b")[: i + 1],
            num_input_tokens=8 * i + 8,
            num_output_tokens=1,
            session_id="s",
        )
        for i in range(3)
    )
    trace = Trace(
        requests=requests, block_size=8, partial=PartialRule.NEVER, name="p", format="made"
    )
    from pathlib import Path

    return encoded(trace, Path("p.parquet"))


GOOD = {
    **{name: text_of(name, rows) for name, rows in JSON_ROWS.items()},
    **{name: text.encode() for name, text in TABLES.items()},
    "kvsim-parquet": parquet(),
}


@st.composite
def damaged_bytes(draw: DrawFn, name: str) -> bytes:
    """Lose a piece of a good file, and put something else there; perhaps compress it."""
    good = GOOD[name]
    start = draw(st.integers(0, len(good)))
    num_lost = draw(st.one_of(st.integers(0, 9), st.just(len(good))))
    piece = draw(
        st.one_of(
            st.binary(max_size=6),
            st.sampled_from([json.dumps(each).encode() for each in NASTY]),
            st.sampled_from([b"[" * 3000, b"\n", b",", b'"', b"NaN", b"1e999", b"\0", b"\xff"]),
        )
    )
    content = good[:start] + piece + good[start + num_lost :]
    pack = draw(st.sampled_from(["", "", "", "gzip", "zstd"]))
    if pack == "gzip":
        content = gzip.compress(content, 1)
    elif pack == "zstd":
        content = bytes(pa.compress(content, codec="zstd", asbytes=True))
    if pack:
        content = content[: draw(st.integers(len(content) // 2, len(content)))]
    return content


def _changed(draw: DrawFn, value: object) -> object:
    """Return a JSON value with one place in it changed."""
    inner: list[object] = []
    if isinstance(value, dict):
        inner = list(value)
    elif isinstance(value, list):
        inner = list(range(len(value)))
    place = draw(st.sampled_from([None, *inner]))
    if place is None:
        return draw(st.sampled_from(NASTY))
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key != place}
        if draw(st.integers(0, 4)) == 0:
            return kept
        return {**value, place: _changed(draw, value[place])}
    assert isinstance(value, list)
    return [_changed(draw, each) if i == place else each for i, each in enumerate(value)]


@st.composite
def changed_values(draw: DrawFn, name: str) -> bytes:
    """Change one value somewhere in a good file of JSON rows or of a table."""
    if name in TABLES:
        lines = TABLES[name].splitlines()
        row = draw(st.integers(0, len(lines) - 1))
        fields: list[object] = list(lines[row].split(","))
        fields[draw(st.integers(0, len(fields) - 1))] = draw(st.sampled_from(NASTY))
        lines[row] = ",".join(map(str, fields))
        return "\n".join(lines).encode("utf-8", "surrogatepass")
    if name == "kvsim-parquet":
        table = pq.read_table(pa.BufferReader(GOOD[name]))
        column = draw(st.sampled_from(table.column_names))
        values = table.column(column).to_pylist()
        values[draw(st.integers(0, 2))] = draw(st.sampled_from(NASTY))
        try:
            new = pa.array(values)
        except (pa.ArrowException, OverflowError, UnicodeError, TypeError):
            new = pa.nulls(3)
        changed = table.set_column(table.column_names.index(column), column, new)
        sink = BytesIO()
        try:
            pq.write_table(changed, sink)
        except pa.ArrowException:
            return b"PAR1"
        return sink.getvalue()
    rows = [dict(each) for each in JSON_ROWS[name]]
    row = draw(st.integers(0, len(rows) - 1))
    new_row = _changed(draw, rows[row])
    return text_of(name, [*rows[:row], new_row, *rows[row + 1 :]])  # type: ignore[list-item]


def damaged(name: str) -> SearchStrategy[bytes]:
    """Return bytes that are, or nearly are, a file of the format."""
    return st.one_of(damaged_bytes(name), changed_values(name))


def put(folder: Path, content: bytes) -> Path:
    """Write the one file that is tried over and over."""
    path = folder / "damaged"
    path.write_bytes(content)
    return path
