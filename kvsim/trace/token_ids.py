"""Token ids, one request a line: what the request log of an engine can be turned into.

`prompt_token_ids`, and optionally: `arrival_time` (s) or `timestamp_ms`; `output_token_ids` or
`num_output_tokens`; `session_id`, `priority`; and what changes the KV beside the tokens:
`cache_salt`, `lora_name`, `weight_version`, `media` as a list of `{media_id, first_token,
num_tokens}`. kvsim names the blocks as a prefix cache would (`kvsim.identity`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.errors import UserError
from kvsim.identity import Extras, MediaSpan, chain_keys
from kvsim.trace.base import ReadOptions, Row, RowSource
from kvsim.trace.values import (
    LARGEST_NUMBER,
    int_list,
    optional_text,
    parse_object,
    required,
    seconds_ns,
    session_text,
    shown,
    whole_number,
)
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvsim.trace.source import Source

_UNITS_NS: Final = {"arrival_time": ("seconds", 10**9), "timestamp_ms": ("ms", 10**6)}


class TokenIdsReader:
    """See `kvsim.trace.base.TraceReader`."""

    __slots__ = ()

    name = "token-ids"

    def sniff(self, head: bytes) -> bool:
        """Return whether the first row has the tokens of a prompt."""
        row = head.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")[0]
        return row.startswith(b"{") and b'"prompt_token_ids"' in row

    def read(self, source: Source, options: ReadOptions) -> RowSource:
        """Return the rows of `source`, in blocks of `options.block_size` tokens."""
        notes: list[str] = []
        return RowSource(
            rows=_rows(source, options, notes),
            block_size=options.made_block_size,
            partial=PartialRule.NEVER,
            notes=notes,
        )


READER = TokenIdsReader()


class KeyNumbers:
    """Gives block keys of 16 bytes small numbers, in the order in which they are first seen."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def of(self, keys: Iterable[bytes]) -> list[int]:
        """Return the number of each key."""
        numbers = self._numbers
        return [numbers.setdefault(key, len(numbers)) for key in keys]


def _rows(source: Source, options: ReadOptions, notes: list[str]) -> Iterator[Row]:
    numbers = KeyNumbers()
    starts = options.arrivals.starts()
    timed: bool | None = None
    for text in source:
        record = parse_object(source, text)
        tokens = int_list(source, record, "prompt_token_ids")
        if not tokens:
            raise source.error("prompt_token_ids must not be empty")
        at_ns = _at_ns(source, record)
        if timed is None:
            timed = at_ns is not None
            if not timed:
                notes.append(
                    f"no times in the file: made by the arrival model {options.arrivals.spec}"
                )
        if timed != (at_ns is not None):
            raise source.error("all rows must have an arrival_time or timestamp_ms, or none")
        extras = _extras(source, record)
        try:
            keys = chain_keys(tokens, options.made_block_size, extras=extras)
        except UserError as error:
            raise source.error(str(error)) from error
        yield Row(
            line=source.line or 0,
            at_ns=next(starts) if at_ns is None else at_ns,
            num_input_tokens=len(tokens),
            num_output_tokens=_num_output_tokens(source, record),
            block_ids=numbers.of(keys),
            session_id=session_text(source, "session_id", record.get("session_id")),
            priority=_priority(source, record),
        )


def _at_ns(source: Source, record: dict[str, object]) -> int | None:
    for field, (unit, unit_ns) in _UNITS_NS.items():
        if record.get(field) is not None:
            return seconds_ns(source, record, field, unit=unit, unit_ns=unit_ns)
    if "timestamp" in record:
        raise source.error(
            "timestamp has no unit: call it arrival_time if it is in seconds, timestamp_ms if it is"
            " in milliseconds"
        )
    return None


def _num_output_tokens(source: Source, record: dict[str, object]) -> int:
    if record.get("output_token_ids") is not None:
        return len(int_list(source, record, "output_token_ids"))
    if record.get("num_output_tokens") is not None:
        return whole_number(source, record, "num_output_tokens", least=0)
    return 0


def _priority(source: Source, record: dict[str, object]) -> int:
    value = record.get("priority") or 0
    if type(value) is not int or abs(value) > LARGEST_NUMBER:
        raise source.error(f"priority must be a whole number up to 2**53, not {shown(value)}")
    return value


def _extras(source: Source, record: dict[str, object]) -> Extras | None:
    salt, lora, version = (
        optional_text(source, field, record.get(field))
        for field in ("cache_salt", "lora_name", "weight_version")
    )
    media = record.get("media") or []
    if not (salt or lora or version or media):
        return None
    if type(media) is not list or any(type(each) is not dict for each in media):
        raise source.error(f"media must be a list of objects, not {shown(media)}")
    spans = [
        (
            optional_text(source, "media_id", required(source, each, "media_id")) or "",
            whole_number(source, each, "first_token", least=0),
            whole_number(source, each, "num_tokens", least=1),
        )
        for each in media
    ]
    try:
        return Extras(
            salt=salt,
            lora=lora,
            weight_version=version,
            media=tuple(
                MediaSpan(media_id=media_id, first_token=first, num_tokens=count)
                for media_id, first, count in spans
            ),
        )
    except UserError as error:
        raise source.error(str(error)) from error
