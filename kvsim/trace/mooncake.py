"""Mooncake's JSON Lines: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

An id stands for 512 tokens and for all before them; the partial last block has an id of its own;
output tokens have none. Dynamo and AIPerf write the same with `session_id`, `delay` (ms after the
answer of the turn before), `block_size` or `block_tokens`, and other names of the fields.

Source: Qin et al., Mooncake (FAST 2025), and the traces released with it; the row schema of
Dynamo's crate dynamo-data-gen.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from kvsim.trace.base import ReadOptions, Row, RowSource, num_blocks
from kvsim.trace.values import (
    DECODER,
    LARGEST_NUMBER,
    int_list,
    parse_object,
    plausible_ns,
    seconds_ns,
    session_text,
    shown,
    whole_number,
)
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvsim.trace.source import Source

_BLOCK_SIZE: Final = 512
_MS_NS: Final = 10**6
_PLAIN_FIELDS: Final = {"timestamp", "input_length", "output_length", "hash_ids"}
_NAMES: Final = (b'"timestamp"', b'"input_length"', b'"input_tokens"', b'"hash_ids"')
_ALIASES: Final = {
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "created_time": "timestamp",
    "delay_ms": "delay",
    "block_tokens": "block_size",
}


class MooncakeReader:
    """See `kvsim.trace.base.TraceReader`."""

    __slots__ = ()

    name = "mooncake"

    def sniff(self, head: bytes) -> bool:
        """Return whether the first row has Mooncake's fields and not those of its relatives."""
        row = head.lstrip().partition(b"\n")[0]
        return (
            row.removeprefix(b"\xef\xbb\xbf").startswith(b"{")
            and sum(name in row for name in _NAMES) >= 2
            and b'"prompt_token_ids"' not in row
            and b'"chat_id"' not in row  # Qwen-Bailian: seconds, 16 tokens a block
            and b'"passages_ids"' not in row  # RAGPulse: seconds, ids of contents
        )

    def read(self, source: Source, options: ReadOptions) -> RowSource:
        """Return the rows of `source`; the first may say how many tokens an id stands for."""
        lines = source.raw_lines()
        first = next(lines, b"")
        size = options.id_tokens or _size_in(first) or _BLOCK_SIZE
        notes: list[str] = []
        rows = _rows(source, chain([first], lines) if first else lines, size, options, notes)
        return RowSource(rows=rows, block_size=size, partial=PartialRule.COUNT, notes=notes)


READER = MooncakeReader()


class PlainRow(NamedTuple):
    """A row with the four fields of the release and no other, its values checked."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: Sequence[int]


def _rows(
    source: Source, lines: Iterator[bytes], size: int, options: ReadOptions, notes: list[str]
) -> Iterator[Row]:
    decode = plain_decoder()
    sessions = _Sessions(options, notes)
    for raw in lines:
        plain = decode(raw)
        if plain is not None and len(plain.hash_ids) == -(-plain.input_length // size):
            at_ns = plausible_ns(source, "timestamp", plain.timestamp * _MS_NS)
            yield Row(
                source.line or 0, at_ns, plain.input_length, plain.output_length, plain.hash_ids
            )
        else:
            yield _row(source, source.text_of(raw), size, sessions)


def _row(source: Source, text: str, size: int, sessions: _Sessions) -> Row:
    record = {_ALIASES.get(name, name): value for name, value in parse_object(source, text).items()}
    said = record.get("block_size", size)
    if said is not None and type(said) is not list and said != size:
        raise source.error(
            f"block_size is {shown(said)} in this row, but an id is read as {size} tokens; all rows"
            " must agree, and id_tokens overrules none"
        )
    session_id = session_text(source, "session_id", record.get("session_id"))
    at_ns = None
    if session_id is None or record.get("timestamp") is not None:
        at_ns = seconds_ns(source, record, "timestamp", unit="ms", unit_ns=_MS_NS)
    num_input_tokens = whole_number(source, record, "input_length", least=1)
    num_output_tokens = whole_number(source, record, "output_length", least=0)
    if session_id is not None:
        at_ns = sessions.arrival(source, record, session_id, at_ns, num_output_tokens)
    return Row(
        line=source.line or 0,
        at_ns=at_ns or 0,
        num_input_tokens=num_input_tokens,
        num_output_tokens=num_output_tokens,
        block_ids=_block_ids(source, record, num_input_tokens, size),
        session_id=session_id,
    )


class _Sessions:
    """When the turns of sessions arrive that have a delay instead of a time."""

    def __init__(self, options: ReadOptions, notes: list[str]) -> None:
        self._answered_at: dict[str, int] = {}
        self._starts = options.arrivals.starts()
        self._model = options.arrivals
        self._notes = notes

    def arrival(
        self,
        source: Source,
        record: dict[str, object],
        session_id: str,
        at_ns: int | None,
        num_output_tokens: int,
    ) -> int:
        """Return the time of arrival in ns, and remember when the answer will be complete."""
        if at_ns is None:
            self._note()
            if session_id not in self._answered_at:
                at_ns = next(self._starts)
            else:
                delay_ns = seconds_ns(source, record, "delay", unit="ms", unit_ns=_MS_NS)
                at_ns = self._answered_at[session_id] + delay_ns
        self._answered_at[session_id] = self._model.answered_at(at_ns, num_output_tokens)
        return at_ns

    def _note(self) -> None:
        if not self._notes:
            self._notes.append(
                "rows without a timestamp: their sessions start and their answers take what the"
                f" arrival model says, {self._model.spec}; a delay counts from the end of an answer"
            )


def _block_ids(
    source: Source, record: dict[str, object], num_input_tokens: int, block_size: int
) -> list[int]:
    ids = int_list(source, record, "hash_ids")
    expected = num_blocks(num_input_tokens, block_size, PartialRule.COUNT)
    if len(ids) != expected:
        raise source.error(
            f"{len(ids)} hash_ids do not fit input_length {num_input_tokens}:"
            f" at {block_size} tokens an id it needs {expected}"
        )
    fills = record.get("block_size")
    if type(fills) is list and (
        len(fills) != len(ids)
        or any(fill != block_size for fill in fills[:-1])
        or sum(each for each in fills if type(each) is int) != num_input_tokens
    ):
        raise source.error(
            f"block_tokens must be {block_size} for each id but the last, and add up to"
            f" input_length {num_input_tokens}"
        )
    return ids


def _size_in(first: bytes) -> int | None:
    """Return the tokens an id stands for if the first row says so; what is wrong is told later."""
    import json

    try:
        record = json.loads(first)
        said = record.get("block_size", record.get("block_tokens"))
    except (AttributeError, ValueError, RecursionError):
        return None
    if type(said) is list and len(said) > 1:
        said = said[0]
    return said if type(said) is int and 1 <= said <= LARGEST_NUMBER else None


@cache
def plain_decoder() -> Callable[[bytes], PlainRow | None]:
    """Return a function that decodes a row of the release, and gives None for any other.

    With msgspec, if it is there: it decodes and checks a row in a third of the time that the
    standard library takes to decode it.
    """
    try:
        from msgspec import Meta, MsgspecError, defstruct, json
    except ImportError:
        return decode_plainly
    from typing import Annotated

    number = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]
    positive = Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)]
    fields = [
        ("timestamp", number),
        ("input_length", positive),
        ("output_length", number),
        ("hash_ids", tuple[number, ...]),
    ]
    decode = json.Decoder(defstruct("PlainRow", fields, forbid_unknown_fields=True)).decode

    def decode_plain(raw: bytes) -> PlainRow | None:
        try:
            row = cast("PlainRow", decode(raw))
        except (MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return row

    return decode_plain


def decode_plainly(raw: bytes) -> PlainRow | None:
    """Decode a row with the standard library; None if there is anything unusual about it."""
    try:
        record = DECODER.decode(raw.decode())
    except (ValueError, RecursionError):
        return None
    if type(record) is not dict or record.keys() != _PLAIN_FIELDS:
        return None
    at, num_input = record["timestamp"], record["input_length"]
    num_output, ids = record["output_length"], record["hash_ids"]
    if (
        type(at) is type(num_input) is type(num_output) is int
        and type(ids) is list
        and set(map(type, ids)) == {int}
        and 0 <= at <= LARGEST_NUMBER
        and 1 <= num_input <= LARGEST_NUMBER
        and 0 <= num_output <= LARGEST_NUMBER
        and min(ids) >= 0
        and max(ids) <= LARGEST_NUMBER
    ):
        return PlainRow(at, num_input, num_output, ids)
    return None
