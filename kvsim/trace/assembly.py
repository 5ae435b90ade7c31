"""Turn the rows of any format into a `Trace`: order, clock, partial blocks and identity."""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

from kvsim.errors import TraceError
from kvsim.identity import Interner, has_unique_prefixes
from kvsim.trace.base import Trace
from kvsim.types import PartialRule, Request

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvsim.trace.base import Row

_DAY_NS = 86_400 * 10**9
_MAX_SPAN_NS = 366 * _DAY_NS
"""No trace is longer than a year; one that seems to be mixes epoch and relative times."""


def assemble(
    rows: Sequence[Row],
    *,
    path: Path,
    format_name: str,
    block_size: int,
    file_partial: PartialRule,
    partial: PartialRule,
    sha256: str,
) -> Trace:
    """Return the trace that `rows` are.

    The first arrival becomes 0; rows out of order are sorted, equal times keep the file's order;
    ids that do not stand for their whole prefix are interned. `Trace.repairs` says what was done.
    `file_partial` says which blocks the rows have ids for, `partial` which shall have keys.

    Raises
    ------
    TraceError
        If there is no row, a block that shall have a key has no id, or the rows are on more
        than one clock.
    """
    if not rows:
        raise TraceError("there is no request in it", path=path)
    if partial is PartialRule.COUNT and file_partial is PartialRule.NEVER:
        raise TraceError(
            "partial='count' needs an id for the last block of each prompt, but this file names"
            " whole blocks only; use partial='never'",
            path=path,
        )
    ordered, repairs = _in_order(rows)
    _check_clock(ordered, path)
    repairs += _zero_outputs(ordered)
    paths: list[Sequence[int | str]] = [row.block_ids for row in ordered]
    if partial is not file_partial:
        paths = [row.block_ids[: row.num_input_tokens // block_size] for row in ordered]
    keys, renumbered = _chained(paths)
    repairs += renumbered
    if partial is PartialRule.COUNT:
        repairs += _unequal_fills(ordered, keys, block_size)
    return Trace(
        requests=_requests(ordered, keys),
        block_size=block_size,
        partial=partial,
        name=path.stem,
        format=format_name,
        sha256=sha256,
        repairs=tuple(repairs),
    )


def _requests(rows: list[Row], keys: Sequence[Sequence[int | str]]) -> tuple[Request, ...]:
    start = rows[0].at_ns
    return tuple(
        Request(
            request_id=index,
            arrived_at=row.at_ns - start,
            block_keys=tuple(path),
            num_input_tokens=row.num_input_tokens,
            num_output_tokens=row.num_output_tokens or 1,
            session_id=row.session_id,
            priority=row.priority,
            cancelled_at=None if row.cancel_at_ns is None else row.cancel_at_ns - start,
        )
        for index, (row, path) in enumerate(zip(rows, keys, strict=True))
    )


def _in_order(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    early = [b.line for a, b in pairwise(rows) if b.at_ns < a.at_ns]
    if not early:
        return list(rows), []
    return sorted(rows, key=attrgetter("at_ns")), [
        f"sorted by time: {_times(len(early), 'row')} earlier than the row before, first at line"
        f" {early[0]}"
    ]


def _check_clock(rows: list[Row], path: Path) -> None:
    start = rows[0].at_ns
    for row in rows:
        latest = max(row.at_ns, row.cancel_at_ns or 0)
        if latest - start > _MAX_SPAN_NS:
            raise TraceError(
                f"a time {(latest - start) // _DAY_NS} days after the first arrival (line"
                f" {rows[0].line}): two clocks in one file, or the wrong unit",
                path=path,
                line=row.line,
            )


def _zero_outputs(rows: list[Row]) -> list[str]:
    lines = [row.line for row in rows if not row.num_output_tokens]
    if not lines:
        return []
    return [
        f"output of 0 tokens taken as 1 in {_times(len(lines), 'row')}, first at line {lines[0]}"
    ]


def _unequal_fills(
    rows: list[Row], keys: Sequence[Sequence[int | str]], block_size: int
) -> list[str]:
    """Notice blocks that one row fills in part and another with more or fewer tokens.

    They are one block all the same: under `PartialRule.COUNT` a last block is treated as full.
    """
    fills: dict[int | str, int] = {}
    odd: dict[int | str, int] = {}
    for row, path in zip(rows, keys, strict=True):
        fill = row.num_input_tokens % block_size
        if fill and fills.setdefault(path[-1], fill) != fill:
            odd.setdefault(path[-1], row.line)
    for row, path in zip(rows, keys, strict=True):
        whole = path[: row.num_input_tokens // block_size]
        if not fills.keys().isdisjoint(whole):
            odd.update({key: row.line for key in whole if key in fills and key not in odd})
    if not odd:
        return []
    return [
        f"{_times(len(odd), 'block')} filled in part by one row and otherwise by another, taken as"
        f" full in both, first at line {min(odd.values())}"
    ]


def _chained(
    paths: list[Sequence[int | str]],
) -> tuple[Sequence[Sequence[int | str]], list[str]]:
    if has_unique_prefixes(paths):
        return paths, []
    interner = Interner()
    chained = [interner.chain(path) for path in paths]
    num_ids = len({each for path in paths for each in path})
    return chained, [
        f"block ids do not stand for their whole prefix: {_times(num_ids, 'id')} renumbered by"
        f" (parent, id) into {_times(len(interner), 'block')}"
    ]


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
