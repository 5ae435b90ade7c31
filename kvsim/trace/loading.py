"""Find the format of a trace file and read it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, TypedDict, cast

from kvsim.collector import paused_collector, settle_collector
from kvsim.errors import ConfigError, TraceError, UnknownNameError
from kvsim.trace.arrivals import ArrivalModel, parse_arrivals
from kvsim.trace.assembly import assemble
from kvsim.trace.base import ReadOptions, Trace
from kvsim.trace.paths import checked_path
from kvsim.trace.sharing import parse_sharing
from kvsim.trace.source import open_source
from kvsim.trace.tokenizers import as_tokenizer
from kvsim.trace.transform import reblock, without_partial
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint
    from os import PathLike
    from pathlib import Path

    from kvsim.trace.base import RowSource, TraceReader
    from kvsim.trace.sharing import SharingModel
    from kvsim.trace.source import Source
    from kvsim.trace.tokenizers import Tokenizer

TRACES = {
    "kvsim": "kvsim.trace.kvsim_jsonl:READER",
    "kvsim-parquet": "kvsim.trace.kvsim_parquet:READER",
    "mooncake": "kvsim.trace.mooncake:READER",
    "qwen": "kvsim.trace.qwen:READER",
    "ragpulse": "kvsim.trace.ragpulse:READER",
    "claude-code": "kvsim.trace.claude_code:READER",
    "azure": "kvsim.trace.azure:READER",
    "burstgpt": "kvsim.trace.burstgpt:READER",
    "sharegpt": "kvsim.trace.sharegpt:READER",
    "token-ids": "kvsim.trace.token_ids:READER",
}
"""Format name -> "module:attribute" of its reader. Other packages add theirs as entry points of
the group `kvsim.traces`."""


class LoadOptions(TypedDict, total=False):
    """The keywords of `load`."""

    format: str | None
    partial: PartialRule | str | None
    limit: int | None
    block_size: int | None
    id_tokens: int | None
    sharing: SharingModel | str | None
    arrivals: ArrivalModel | str | None
    tokenizer: Tokenizer | str | PathLike[str] | None
    progress: Callable[[int, int], None] | None


def load(
    path: str | PathLike[str],
    *,
    format: str | None = None,  # noqa: A002  the word that users know
    partial: PartialRule | str | None = None,
    limit: int | None = None,
    block_size: int | None = None,
    id_tokens: int | None = None,
    sharing: SharingModel | str | None = None,
    arrivals: ArrivalModel | str | None = None,
    tokenizer: Tokenizer | str | PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Read the trace at `path`: a file, also compressed with gzip or zstd, or a folder of them.

    Parameters
    ----------
    format
        Name of its format; None: found from its content.
    partial
        Whether a last block that is not full counts; None: as is usual for the format.
    limit
        Read only this many rows from the start of the file; None: all.
    block_size
        Tokens a block of the trace. An id of the file that stands for more is cut, so it must be
        a multiple; None: what an id stands for, or 64 if the file has no ids.
    id_tokens
        Tokens an id of the file stands for; None: what the format or the file says.
    sharing
        What prompts share if the file has lengths only, e.g. `"zipf:prefixes=8,share=0.7"`; None:
        nothing. Refused for files that say it themselves.
    arrivals
        When requests arrive if the file does not say, e.g. `"poisson:gap_s=2,seed=7"`.
    tokenizer
        For files that contain text: None for bytes, the path of a model's `tokenizer.json`, or an
        object with `name` and `encode`.
    progress
        Called with (bytes read, bytes of the file), now and then.

    Raises
    ------
    TraceError
        If the file cannot be read or is not a trace; says which line. Also if `block_size` does
        not divide what an id stands for.
    UnknownNameError
        If there is no such format, partial rule or model.
    ConfigError
        If a number is impossible.
    """
    for name, value in (("limit", limit), ("block_size", block_size), ("id_tokens", id_tokens)):
        _check_positive(name, value)
    options = ReadOptions(
        block_size=block_size,
        id_tokens=id_tokens,
        arrivals=parse_arrivals(arrivals)
        if isinstance(arrivals, str)
        else arrivals or ArrivalModel(),
        tokenizer=as_tokenizer(tokenizer),
    )
    rule = None if partial is None else _partial_rule(partial)
    model = parse_sharing(sharing) if isinstance(sharing, str) else sharing
    file = checked_path(path)
    given = None if format is None else reader(format)
    with paused_collector(), open_source(file, progress=progress) as (source, head):
        found = given or _detect(file, head)
        content = found.read(source, options)
        trace = _assembled(content, source, found.name, rule, limit, options, model)
        del content
        settle_collector()
    return trace if block_size is None else _in_blocks(trace, block_size, rule)


def _assembled(
    content: RowSource | Trace,
    source: Source,
    format_name: str,
    rule: PartialRule | None,
    limit: int | None,
    options: ReadOptions,
    sharing: SharingModel | None,
) -> Trace:
    if sharing is not None and content.has_prefixes:
        raise ConfigError(
            f"sharing is for traces of lengths alone; {source.path} says what prompts share"
        )
    if options.block_size is not None and content.block_size % options.block_size:
        raise TraceError(
            f"block_size must divide the {content.block_size} tokens that an id stands for, not"
            f" {options.block_size}",
            path=source.path,
        )
    if isinstance(content, Trace):
        trace = content
        if limit is not None:
            trace = replace(content, requests=content.requests[:limit])
        return trace if rule in (None, trace.partial) else without_partial(trace, source.path)
    taken = list(islice(content.rows, limit))
    is_cut = options.block_size not in (None, content.block_size)
    return assemble(
        taken,
        content,
        path=source.path,
        format_name=format_name,
        # a block that is cut must first be there, even if its last piece is not wanted
        partial=content.partial if is_cut else rule or content.partial,
        sha256=source.sha256(),
        sharing=sharing,
    )


def _in_blocks(trace: Trace, block_size: int, rule: PartialRule | None) -> Trace:
    if block_size == trace.block_size:
        return trace
    return reblock(trace, block_size, partial=rule or trace.partial)


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
