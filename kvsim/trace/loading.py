"""Find the format of a trace file and read it."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, cast

from kvsim.errors import ConfigError, TraceError, UnknownNameError
from kvsim.trace.assembly import assemble
from kvsim.trace.source import checked_path, gzip_problem, open_source
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from os import PathLike
    from pathlib import Path

    from kvsim.trace.base import Trace, TraceReader

TRACES = {
    "kvsim": "kvsim.trace.kvsim_jsonl:READER",
    "mooncake": "kvsim.trace.mooncake:READER",
}
"""Format name -> "module:attribute" of its reader. Other packages add theirs as entry points of
the group `kvsim.traces`."""


def load(
    path: str | PathLike[str],
    *,
    format: str | None = None,  # noqa: A002  the word that users know
    partial: PartialRule | str | None = None,
    limit: int | None = None,
    block_size: int | None = None,
) -> Trace:
    """Read the trace file at `path`.

    Parameters
    ----------
    format
        Name of its format; None: found from its content.
    partial
        Whether a last block that is not full counts; None: as is usual for the format.
    limit
        Read only this many rows from the start of the file; None: all.
    block_size
        Tokens an id of the file stands for, if the file does not say so. (`reblock` cuts blocks.)

    Raises
    ------
    TraceError
        If the file cannot be read or is not a trace; says which line.
    UnknownNameError
        If there is no such format or partial rule.
    ConfigError
        If `limit` or `block_size` is not a positive integer.
    """
    _check_positive("limit", limit)
    _check_positive("block_size", block_size)
    rule = None if partial is None else _partial_rule(partial)
    file = checked_path(path)
    given = None if format is None else reader(format)
    with open_source(file) as (source, head):
        found = given or _detect(file, head)
        rows = found.read(source, block_size=block_size)
        taken = list(islice(rows.rows, limit))
        digest = source.sha256()
    return assemble(
        taken,
        path=file,
        format_name=found.name,
        block_size=rows.block_size,
        file_partial=rows.partial,
        partial=rule or rows.partial,
        sha256=digest,
    )


def format_names() -> list[str]:
    """Return the names of all known formats, those of kvsim first."""
    return [*TRACES, *_entry_points()]


def reader(name: str) -> TraceReader:
    """Return the reader of a format.

    Raises
    ------
    UnknownNameError
        If there is no such format.
    ConfigError
        If another package offers the format but its reader cannot be imported.
    """
    if name in TRACES:
        module, _, attribute = TRACES[name].partition(":")
        return cast("TraceReader", getattr(import_module(module), attribute))
    if name not in _entry_points():
        raise UnknownNameError("trace format", name, format_names())
    try:
        return cast("TraceReader", _entry_points()[name].load())
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the reader of trace format {name!r} cannot be loaded: {error}"
        ) from error


@cache
def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    found = entry_points(group="kvsim.traces")
    return {point.name: point for point in found if point.name not in TRACES}


def _detect(path: Path, head: bytes) -> TraceReader:
    if not head.strip():
        raise TraceError("the file is empty", path=path)
    if problem := gzip_problem(head):
        raise TraceError(problem, path=path)
    for name in format_names():
        candidate = reader(name)
        if candidate.sniff(head):
            return candidate
    known = ", ".join(format_names())
    if b"\0" in head:
        raise TraceError(f"a binary file, not a trace; known formats: {known}", path=path)
    raise TraceError(f"not a trace in a known format ({known}); name one to see why", path=path)


def _partial_rule(partial: str) -> PartialRule:
    try:
        return PartialRule(partial)
    except ValueError as error:
        raise UnknownNameError("partial rule", str(partial), list(PartialRule)) from error


def _check_positive(name: str, value: int | None) -> None:
    if value is not None and (type(value) is not int or value < 1):
        raise ConfigError(f"{name} must be an integer of at least 1, not {value!r}")
