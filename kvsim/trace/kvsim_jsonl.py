"""kvsim's own trace format: JSON Lines with a header. Described in docs/trace-format.md."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING

from kvsim.errors import TraceError
from kvsim.trace.base import ReadOptions, Row, RowSource, num_blocks
from kvsim.trace.retention_fields import (
    durations_ns,
    read_output,
    read_ranges,
    written_ranges,
)
from kvsim.trace.values import (
    LARGEST_NUMBER,
    in_ns,
    is_id,
    is_number,
    is_text,
    optional_text,
    parse_object,
    plausible_ns,
    required,
    shown,
    whole_number,
)
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kvsim.trace.base import Trace
    from kvsim.trace.source import Source
    from kvsim.types import Request

FORMAT, VERSION = "kvsim-trace", 1
UNITS_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Nanoseconds of each `time_unit`, the coarsest first."""

_HEADER_FIELDS = ("format", "version", "block_size", "time_unit", "partial", "prefixes", "note")
_ROW_FIELDS = (
    "at", "input", "output", "blocks", "session", "tenant", "priority", "cancel_at", "retention",
    "output_retention",
)  # fmt: skip


class KvsimReader:
    """See `kvsim.trace.base.TraceReader`."""

    __slots__ = ()

    name = "kvsim"

    def sniff(self, head: bytes) -> bool:
        """Return whether the first line names the format."""
        return b'"kvsim-trace"' in head.lstrip().partition(b"\n")[0]

    def read(self, source: Source, options: ReadOptions) -> RowSource:
        """Return the rows of `source`; `options.id_tokens` must be None or what the header says."""
        lines = iter(source)
        header = parse_object(source, next(lines, "{}"))
        if header.get("format") != FORMAT:
            raise source.error(
                f"format must be {FORMAT!r} in the first line, not {shown(header.get('format'))}"
            )
        if type(header.get("version")) is not int or header["version"] != VERSION:
            raise source.error(
                f"version must be {VERSION}, the one this kvsim reads,"
                f" not {shown(header.get('version'))}"
            )
        _check_fields(source, header, _HEADER_FIELDS)
        size = whole_number(source, header, "block_size", least=1)
        if options.id_tokens not in (None, size):
            raise source.error(f"block_size is {size} in this file, not {options.id_tokens}")
        unit_ns = UNITS_NS[_choice(source, header, "time_unit", UNITS_NS)]
        partial = PartialRule(_choice(source, header, "partial", list(PartialRule)))
        rows = _rows(source, lines, size, unit_ns, partial)
        has_prefixes = header.get("prefixes", True)
        if type(has_prefixes) is not bool:
            raise source.error(f"prefixes must be true or false, not {shown(has_prefixes)}")
        if partial is PartialRule.COUNT and not has_prefixes:
            raise source.error("partial must be never where prefixes is false, not count")
        return RowSource(rows=rows, block_size=size, partial=partial, has_prefixes=has_prefixes)


READER = KvsimReader()


def encoded(trace: Trace, path: Path) -> bytes:
    """Return the file that has `trace` in kvsim's own format; equal traces give equal bytes.

    Times are in the coarsest unit that holds all of them exactly; keys that are bytes become hex
    digits. `name`, `repairs` and `next_use_at` are not in it. `path` is for errors.

    Raises
    ------
    TraceError
        If a key or time has no place in the format.
    """
    unit = _coarsest_unit(trace.requests, path)
    header: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "block_size": trace.block_size,
        "time_unit": unit,
        "partial": trace.partial.value,
    }
    if not trace.has_prefixes:
        header["prefixes"] = False
    lines = [_dump(header)]
    lines += [_dump(_record(request, UNITS_NS[unit], path)) for request in trace.requests]
    return b"".join(lines)


def _rows(
    source: Source, lines: Iterator[str], block_size: int, unit_ns: int, partial: PartialRule
) -> Iterator[Row]:
    for text in lines:
        record = parse_object(source, text)
        _check_fields(source, record, _ROW_FIELDS)
        at_ns = _time_ns(source, "at", required(source, record, "at"), unit_ns)
        num_input_tokens = whole_number(source, record, "input", least=1)
        expected = num_blocks(num_input_tokens, block_size, partial)
        yield Row(
            line=source.line or 0,
            at_ns=at_ns,
            num_input_tokens=num_input_tokens,
            num_output_tokens=whole_number(source, record, "output", least=0),
            block_ids=_block_ids(source, record, expected),
            session_id=optional_text(source, "session", record.get("session")),
            priority=_priority(source, record),
            cancel_at_ns=_cancel_at_ns(source, record, at_ns, unit_ns),
            tenant=optional_text(source, "tenant", record.get("tenant")),
            retention=read_ranges(source, record.get("retention"), unit_ns),
            output_retention=read_output(source, record.get("output_retention"), unit_ns),
        )


def _block_ids(source: Source, record: dict[str, object], expected: int) -> list[int | str]:
    ids = required(source, record, "blocks")
    if type(ids) is not list:
        raise source.error(f"blocks must be a list of whole numbers or texts, not {shown(ids)}")
    if len(ids) != expected:
        raise source.error(
            f"{len(ids)} blocks do not fit input {shown(record['input'])}: with the block_size and"
            f" partial of the header it needs {expected}"
        )
    only_ints = set(map(type, ids)) == {int}  # the usual case, checked without a Python loop
    if only_ints and min(ids) >= 0 and max(ids) <= LARGEST_NUMBER:
        return ids
    for each in ids:
        if not is_id(each) and not is_text(each):
            raise source.error(
                "each of blocks must be a whole number from 0 to 2**53 or a text,"
                f" not {shown(each)}"
            )
    return ids


def _cancel_at_ns(
    source: Source, record: dict[str, object], at_ns: int, unit_ns: int
) -> int | None:
    cancel_at = record.get("cancel_at")
    if cancel_at is None:
        return None
    cancel_at_ns = _time_ns(source, "cancel_at", cancel_at, unit_ns)
    if cancel_at_ns < at_ns:
        raise source.error(
            f"cancel_at {shown(cancel_at)} is before at {shown(record['at'])};"
            " both must be on the same clock"
        )
    return cancel_at_ns


def _time_ns(source: Source, field: str, value: object, unit_ns: int) -> int:
    if not is_number(value):
        raise source.error(f"{field} must be a number from 0 to 2**53, not {shown(value)}")
    return plausible_ns(source, field, in_ns(value, unit_ns))


def _priority(source: Source, record: dict[str, object]) -> int:
    value = record.get("priority", 0)
    if type(value) is not int or abs(value) > LARGEST_NUMBER:
        raise source.error(f"priority must be a whole number up to 2**53, not {shown(value)}")
    return value


def _choice(source: Source, record: dict[str, object], field: str, known: Iterable[str]) -> str:
    value = required(source, record, field)
    if type(value) is not str or value not in known:
        raise source.error(f"{field} must be one of {', '.join(known)}, not {shown(value)}")
    return value


def _check_fields(source: Source, record: Mapping[str, object], known: tuple[str, ...]) -> None:
    """Refuse unknown fields: a misspelt `cancel_at` must not silently mean none."""
    for field in record:
        if field not in known:
            near = get_close_matches(field, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise source.error(f"unknown field {shown(field)}; {hint}")


def _coarsest_unit(requests: Sequence[Request], path: Path) -> str:
    times = {request.arrived_at for request in requests}
    times |= {request.cancelled_at or 0 for request in requests}
    times = times.union(*map(durations_ns, requests))
    unit = next(
        unit for unit, unit_ns in UNITS_NS.items() if not any(time % unit_ns for time in times)
    )
    if max(times, default=0) // UNITS_NS[unit] > LARGEST_NUMBER:
        raise TraceError("more than 104 days in nanoseconds cannot be written", path=path)
    return unit


def _record(request: Request, unit_ns: int, path: Path) -> dict[str, object]:
    record: dict[str, object] = {
        "at": request.arrived_at // unit_ns,
        "input": request.num_input_tokens,
        "output": request.num_output_tokens,
        "blocks": [_written_key(key, path) for key in request.block_keys],
    }
    if request.session_id is not None:
        record["session"] = request.session_id
    if request.tenant is not None:
        record["tenant"] = request.tenant
    if request.priority:
        record["priority"] = request.priority
    if request.cancelled_at is not None:
        record["cancel_at"] = request.cancelled_at // unit_ns
    if request.retention or request.output_retention is not None:
        record |= written_ranges(request, unit_ns)
    return record


def _written_key(key: object, path: Path) -> int | str:
    if isinstance(key, bytes):
        return key.hex()
    if is_text(key) or is_id(key):
        return key
    raise TraceError(
        f"a block key must be a whole number from 0 to 2**53, text or bytes, not {shown(key)}",
        path=path,
    )


def _dump(record: Mapping[str, object]) -> bytes:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
