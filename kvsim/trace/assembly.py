"""Turn the rows of any format into a `Trace`: order, clock, partial blocks and identity."""

from __future__ import annotations

from itertools import chain, count, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

from kvsim.errors import TraceError
from kvsim.identity import Interner, has_unique_prefixes
from kvsim.trace.base import Trace
from kvsim.trace.columns import requests_from_columns
from kvsim.trace.plain_ids import has_plain_ids, times, unequal_fills
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from pathlib import Path

    from kvsim.trace.base import Row, RowSource
    from kvsim.trace.sharing import SharingModel
    from kvsim.types import BlockKey, Request

_DAY_NS = 86_400 * 10**9
_MAX_SPAN_NS = 366 * _DAY_NS
"""No trace is longer than a year; one that seems to be mixes epoch and relative times."""


def assemble(
    rows: Sequence[Row],
    found: RowSource,
    *,
    path: Path,
    format_name: str,
    partial: PartialRule,
    sha256: str,
    sharing: SharingModel | None = None,
) -> Trace:
    """Return the trace that `rows` are.

    The first arrival becomes 0; rows out of order are sorted, equal times keep the file's order;
    ids that do not stand for their whole prefix are interned; `sharing` makes the blocks of rows
    without ids. `Trace.repairs` says what was done. `found` says which blocks the rows have ids
    for, `partial` which shall have keys.

    Raises
    ------
    TraceError
        If there is no row, a block that shall have a key has no id, or the rows are on more
        than one clock.
    """
    if not rows:
        raise TraceError("there is no request in it", path=path)
    if partial is PartialRule.COUNT and found.partial is PartialRule.NEVER:
        raise TraceError(
            "partial='count' needs an id for the last block of each prompt, but this file names"
            " whole blocks only; use partial='never'",
            path=path,
        )
    early = [b.line for a, b in pairwise(rows) if b.at_ns < a.at_ns]
    ordered = sorted(rows, key=attrgetter("at_ns")) if early else list(rows)
    _check_clock(ordered, path)
    repairs = [*found.notes, *_disorder(early), *_zero_outputs(ordered)]
    keys, ordered, more = _keys(ordered, found, partial, sharing)
    return Trace(
        requests=_requests(ordered, keys),
        block_size=found.block_size,
        partial=partial,
        name=path.stem,
        format=format_name,
        sha256=sha256,
        repairs=(*repairs, *more),
        num_disordered=len(early),
        has_prefixes=found.has_prefixes or sharing is not None,
    )


def _keys(
    rows: list[Row], found: RowSource, partial: PartialRule, sharing: SharingModel | None
) -> tuple[Sequence[Sequence[BlockKey]], list[Row], list[str]]:
    """Return the keys of each row, the rows, and what had to be repaired."""
    size = found.block_size
    if not found.has_prefixes:
        if sharing is not None:
            return sharing.assign(rows, size)
        note = (
            "lengths only: each prompt has blocks of its own and hits nothing, unless a sharing"
            " model makes prompts share (sharing=, see docs/trace-format.md)"
        )
        return _own_blocks(rows, size), rows, [note]
    paths: list[Sequence[int | str | None]] = [row.block_ids for row in rows]
    if partial is not found.partial:
        paths = [row.block_ids[: row.num_input_tokens // size] for row in rows]
    if found.is_private:
        return _numbered(paths), rows, []
    if has_plain_ids(paths, [row.num_input_tokens for row in rows], size):
        return paths, rows, []
    keys, repairs = _chained(paths)
    if partial is PartialRule.COUNT:
        repairs += unequal_fills(rows, keys, size)
    return keys, rows, repairs


def _requests(rows: Sequence[Row], keys: Sequence[Sequence[BlockKey]]) -> tuple[Request, ...]:
    start = rows[0].at_ns
    columns: dict[str, Sequence[object]] = {
        "request_id": range(len(rows)),
        "arrived_at": [row.at_ns - start for row in rows],
        "block_keys": list(map(tuple, keys)),
        "num_input_tokens": [row.num_input_tokens for row in rows],
        "num_output_tokens": [row.num_output_tokens or 1 for row in rows],
        "session_id": [row.session_id for row in rows],
        "priority": [row.priority for row in rows],
        "cancelled_at": [
            None if row.cancel_at_ns is None else row.cancel_at_ns - start for row in rows
        ],
    }
    for name in ("tenant", "retention", "output_retention"):
        values = [getattr(row, name) for row in rows]
        if any(values):  # rarely: what is left out costs nothing
            columns[name] = values
    return tuple(requests_from_columns(columns, len(rows)))


def _disorder(early: list[int]) -> list[str]:
    if not early:
        return []
    return [
        f"sorted by time: {times(len(early), 'row')} earlier than the row before, first at line"
        f" {early[0]}"
    ]


def _check_clock(rows: Sequence[Row], path: Path) -> None:
    start = rows[0].at_ns
    if rows[-1].at_ns - start <= _MAX_SPAN_NS and not any(row.cancel_at_ns for row in rows):
        return
    for row in rows:
        latest = max(row.at_ns, row.cancel_at_ns or 0)
        if latest - start > _MAX_SPAN_NS:
            raise TraceError(
                f"a time {(latest - start) // _DAY_NS} days after the first arrival (line"
                f" {rows[0].line}): two clocks in one file, or the wrong unit",
                path=path,
                line=row.line,
            )


def _zero_outputs(rows: Sequence[Row]) -> list[str]:
    lines = [row.line for row in rows if not row.num_output_tokens]
    if not lines:
        return []
    where = f"{times(len(lines), 'row')}, first at line {lines[0]}"
    return [f"output of 0 tokens taken as 1 in {where}"]


def _own_blocks(rows: Sequence[Row], block_size: int) -> list[range]:
    paths, start = [], 0
    for row in rows:
        end = start + row.num_input_tokens // block_size
        paths.append(range(start, end))
        start = end
    return paths


def _numbered(paths: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Return dense numbers for ids that mean nothing outside the reader; None is always new."""
    interner, fresh = Interner(), count()
    return [
        interner.chain(("private", next(fresh)) if each is None else each for each in path)
        for path in paths
    ]


def _chained(
    paths: Sequence[Sequence[int | str | None]],
) -> tuple[Sequence[Sequence[BlockKey]], list[str]]:
    if has_unique_prefixes(paths):
        return paths, []
    interner = Interner()
    chained = [interner.chain(path) for path in paths]
    num_ids = len(set(chain.from_iterable(paths)))
    return chained, [
        f"block ids do not stand for their whole prefix: {times(num_ids, 'id')} renumbered by"
        f" (parent, id) into {times(len(interner), 'block')}"
    ]
