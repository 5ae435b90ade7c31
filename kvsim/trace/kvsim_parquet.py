"""kvsim's own trace format as one Parquet table: for traces that are loaded again and again.

Keys are stored as whole numbers, which need neither decoding nor interning. Described in
docs/trace-format.md.
"""

from __future__ import annotations

import json
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from kvsim.errors import TraceError, UserError
from kvsim.trace.base import Trace
from kvsim.trace.columns import requests_from_columns
from kvsim.trace.retention_fields import as_text, from_text
from kvsim.trace.source import MAX_DOCUMENT_BYTES
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    import pyarrow as pa

    from kvsim.trace.base import ReadOptions
    from kvsim.trace.source import Source
    from kvsim.types import BlockKey, Request

_MAGIC: Final = b"PAR1"
_FORMAT, _VERSION = "kvsim-trace", 1
_METADATA: Final = b"kvsim"
_MAX_INT: Final = (1 << 63) - 1
_COLUMNS: Final = {
    "arrived_at": "int64",
    "num_input_tokens": "int64",
    "num_output_tokens": "int64",
    "priority": "int64",
    "cancelled_at": "int64",
    "session_id": "string",
}
"""Field of a request -> type of its column. `block_keys` and `new_keys` are lists beside them."""

_RARE: Final = ("tenant", "retention")
"""Columns of texts that are there only if a request has something in them."""

_OPTIONAL: Final = ("cancelled_at", "session_id")  # null where a request has none


class ParquetReader:
    """See `kvsim.trace.base.TraceReader`."""

    __slots__ = ()

    name = "kvsim-parquet"

    def sniff(self, head: bytes) -> bool:
        """Return whether the file is Parquet at all: others' tables are refused with a reason."""
        return head.startswith(_MAGIC)

    def read(self, source: Source, options: ReadOptions) -> Trace:
        """Return the trace that the file contains; the metadata say everything about it."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        content = source.read(MAX_DOCUMENT_BYTES + 1)
        if len(content) > MAX_DOCUMENT_BYTES:
            raise source.error(f"a table of more than {MAX_DOCUMENT_BYTES >> 20} MiB")
        try:
            file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
            table = file.read(use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            problem = " ".join(str(error).split())
            raise source.error(f"not a readable Parquet file: {problem[:120]}") from error
        facts = _facts(source, table.schema)
        if options.id_tokens not in (None, facts["block_size"]):
            raise source.error(
                f"block_size is {facts['block_size']} in this file, not {options.id_tokens}"
            )
        return _trace(source, table, facts)


READER = ParquetReader()


def encoded(trace: Trace, path: Path) -> bytes:
    """Return the Parquet file that has `trace`; equal traces give equal bytes. `path`: for errors.

    Raises
    ------
    TraceError
        If a key or number has no place in the format.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    requests = trace.requests
    keys, new_keys = _numbered([request.block_keys for request in requests], path)
    try:
        columns = {
            name: pa.array([getattr(request, name) for request in requests], type=kind)
            for name, kind in _COLUMNS.items()
        }
        rare = _rare_texts(requests)
        columns |= {name: pa.array(texts, type=pa.string()) for name, texts in rare.items()}
        columns["block_keys"] = pa.array(keys, type=pa.list_(pa.int64()))
        if new_keys is not None:
            columns["new_keys"] = pa.array(new_keys, type=pa.list_(pa.string()))
    except (OverflowError, pa.ArrowException) as error:
        raise TraceError(f"a number has no place in 64 bits: {error}", path=path) from error
    facts = {
        "format": _FORMAT,
        "version": _VERSION,
        "block_size": trace.block_size,
        "partial": trace.partial.value,
        "name": trace.name,
        "repairs": list(trace.repairs),
        "num_disordered": trace.num_disordered,
        "has_prefixes": trace.has_prefixes,
    }
    table = pa.table(columns).replace_schema_metadata({_METADATA: json.dumps(facts)})
    sink = BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=["session_id"],
        # most keys are one more than the key before: a third of the bytes, and of the time
        column_encoding={"block_keys.list.element": "DELTA_BINARY_PACKED"},
        write_page_checksum=True,
    )
    return sink.getvalue()


def _rare_texts(requests: Sequence[Request]) -> dict[str, list[str | None]]:
    """Return the columns of `_RARE` that have something in them."""
    texts = {
        "tenant": [each.tenant for each in requests],
        "retention": list(map(as_text, requests)),
    }
    return {name: texts[name] for name in _RARE if any(texts[name])}


def _numbered(
    paths: Sequence[Sequence[BlockKey]], path: Path
) -> tuple[Sequence[Sequence[BlockKey]], list[list[str]] | None]:
    """Return the keys as numbers, and each row's new keys as texts where they are no numbers."""
    if all(type(key) is int and abs(key) <= _MAX_INT for each in paths for key in each):
        return paths, None
    numbers: dict[BlockKey, int] = {}
    numbered, new_keys = [], []
    for each in paths:
        new = [key for key in dict.fromkeys(each) if key not in numbers]
        new_keys.append([_text_of(key, path) for key in new])
        for key in new:
            numbers[key] = len(numbers)
        numbered.append([numbers[key] for key in each])
    return numbered, new_keys


def _text_of(key: object, path: Path) -> str:
    match key:
        case bytes():
            return f"b{key.hex()}"
        case str():
            return f"s{key}"
        case int() if type(key) is int:
            return f"i{key}"
    raise TraceError(f"a block key must be a whole number, text or bytes, not {key!r}", path=path)


def _key_of(text: str) -> BlockKey:
    kind, value = text[:1], text[1:]
    if kind == "s":
        return value
    return bytes.fromhex(value) if kind == "b" else int(value)


def _facts(source: Source, schema: pa.Schema) -> dict[str, Any]:
    """Return what the metadata say, checked."""
    try:
        facts: dict[str, Any] = json.loads((schema.metadata or {})[_METADATA])
        checked = (
            facts["format"] == _FORMAT
            and type(facts["block_size"]) is int
            and type(facts["num_disordered"]) is int
            and type(facts["has_prefixes"]) is bool
            and type(facts["name"]) is str
            and all(type(each) is str for each in facts["repairs"])
        )
        facts["partial"] = PartialRule(facts["partial"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise source.error("a Parquet file, but not one that kvsim wrote") from error
    if not checked or facts["version"] != _VERSION:
        raise source.error("a Parquet file of another version of kvsim; write it again")
    return facts


def _trace(source: Source, table: pa.Table, facts: dict[str, Any]) -> Trace:
    rare = dict.fromkeys((*_RARE, "new_keys"), "string")
    for name, kind in {**_COLUMNS, "block_keys": "int64", **rare}.items():
        if name not in table.column_names:
            if name in rare:
                continue
            raise source.error(f"column {name} is missing")
        found = table.schema.field(name).type
        if name in {"block_keys", "new_keys"}:
            found = getattr(found, "value_type", None)
        if str(found) != kind:
            raise source.error(f"column {name} must be of type {kind}, not {found}")
    if not table.num_rows:
        raise source.error("there is no request in it")
    try:
        columns = _columns(table)
        _check_row_values(source, columns)
        columns |= _rare_columns(source, table)
        return Trace(
            requests=tuple(requests_from_columns(columns, table.num_rows)),
            block_size=facts["block_size"],
            partial=facts["partial"],
            name=facts["name"],
            format="kvsim-parquet",
            sha256=source.sha256(),
            repairs=tuple(facts["repairs"]),
            num_disordered=facts["num_disordered"],
            has_prefixes=facts["has_prefixes"],
        )
    except TraceError:
        raise
    except UserError as error:
        raise source.error(str(error)) from error
    except (IndexError, ValueError, TypeError) as error:
        raise source.error(f"columns that do not fit each other: {error}") from error


def _columns(table: pa.Table) -> dict[str, Sequence[Any]]:
    columns: dict[str, Sequence[Any]] = {
        name: table.column(name).to_pylist()
        if table.column(name).null_count or name == "session_id"
        else table.column(name).to_numpy().tolist()
        for name in _COLUMNS
        if name not in _OPTIONAL or table.column(name).null_count < table.num_rows
    }
    columns["request_id"] = range(table.num_rows)
    lists = table.column("block_keys").combine_chunks()
    if lists.null_count or lists.values.null_count:
        raise ValueError("a null among the block keys")
    ends: np.ndarray[Any, Any] = lists.offsets.to_numpy()
    flat: list[Any] = lists.values.to_numpy().tolist()
    if "new_keys" in table.column_names:
        texts = table.column("new_keys").combine_chunks().flatten().to_pylist()
        keys = [_key_of(text) for text in texts]
        if flat and not 0 <= min(flat) <= max(flat) < len(keys):
            raise ValueError("a block key without a name")
        flat = [keys[number] for number in flat]
    columns["block_keys"] = [tuple(flat[start:end]) for start, end in pairwise(ends.tolist())]
    return columns


def _rare_columns(source: Source, table: pa.Table) -> dict[str, Sequence[Any]]:
    columns: dict[str, Sequence[Any]] = {}
    if "tenant" in table.column_names:
        columns["tenant"] = table.column("tenant").to_pylist()
    if "retention" in table.column_names:
        texts = table.column("retention").to_pylist()
        found = [from_text(source, text) for text in texts]
        for name in ("retention", "output_retention"):
            columns[name] = [each[name] for each in found]
    return columns


def _check_row_values(source: Source, columns: dict[str, Sequence[Any]]) -> None:
    """Check what `Trace` does not: lengths of at least 1, nothing missing."""
    for name in ("num_input_tokens", "num_output_tokens"):
        if min(columns[name]) < 1:
            row = next(i for i, value in enumerate(columns[name]) if value < 1)
            raise source.error(f"{name} of request {row} must be at least 1")
    if None in columns["arrived_at"] or None in columns["priority"]:
        raise source.error("arrived_at and priority must not be null")
