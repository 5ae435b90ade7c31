"""Qwen-Bailian's JSON Lines: turns of chats, 16 tokens an id, times in seconds.

`chat_id`, `parent_chat_id` (-1: the first turn), `timestamp` (s), `input_length`, `output_length`,
`type`, `turn`, `hash_ids`. The prompt of a turn need not begin with all of the turn before: what
the model thought may be missing, and the id of the last block changes when the block fills up.

Source: the traces of the repository alibaba-edu/qwen-bailian-usagetraces-anon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.trace.base import ReadOptions, Row, RowSource, num_blocks
from kvsim.trace.plain_ids import times
from kvsim.trace.values import (
    int_list,
    is_id,
    parse_object,
    required,
    seconds_ns,
    shown,
    whole_number,
)
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.trace.source import Source

_BLOCK_SIZE: Final = 16
_NO_PARENT: Final = -1
_S_NS: Final = 10**9


class QwenReader:
    """See `kvsim.trace.base.TraceReader`."""

    __slots__ = ()

    name = "qwen"

    def sniff(self, head: bytes) -> bool:
        """Return whether the first row is a turn of a chat with ids."""
        row = head.lstrip().partition(b"\n")[0]
        return (
            row.removeprefix(b"\xef\xbb\xbf").startswith(b"{")
            and b'"chat_id"' in row
            and b'"hash_ids"' in row
        )

    def read(self, source: Source, options: ReadOptions) -> RowSource:
        """Return the rows of `source`; a session is a chat from its first turn on."""
        size = options.id_tokens or _BLOCK_SIZE
        notes: list[str] = []
        rows = _rows(source, size, notes)
        return RowSource(rows=rows, block_size=size, partial=PartialRule.COUNT, notes=notes)


READER = QwenReader()


def _rows(source: Source, size: int, notes: list[str]) -> Iterator[Row]:
    session_of: dict[int, str] = {}
    orphans: list[int] = []
    for text in source:
        record = parse_object(source, text)
        line = source.line or 0
        at_ns = seconds_ns(source, record, "timestamp", unit="seconds", unit_ns=_S_NS)
        num_input_tokens = whole_number(source, record, "input_length", least=1)
        chat, parent = _chat_id(source, record, "chat_id"), _parent(source, record)
        if parent is not None and parent not in session_of:
            orphans.append(line)
        root = chat if parent is None else parent
        session = session_of.setdefault(root, str(root))
        session_of.setdefault(chat, session)
        ids = int_list(source, record, "hash_ids")
        expected = num_blocks(num_input_tokens, size, PartialRule.COUNT)
        if len(ids) != expected:
            raise source.error(
                f"{len(ids)} hash_ids do not fit input_length {num_input_tokens}:"
                f" at {size} tokens an id it needs {expected}"
            )
        yield Row(
            line=line,
            at_ns=at_ns,
            num_input_tokens=num_input_tokens,
            num_output_tokens=whole_number(source, record, "output_length", least=0),
            block_ids=ids,
            session_id=session,
        )
    if orphans:
        notes.append(
            f"{times(len(orphans), 'row')} whose parent turn is not in the file before, first at"
            f" line {orphans[0]}; the sessions are named after that parent"
        )


def _chat_id(source: Source, record: dict[str, object], field: str) -> int:
    value = required(source, record, field)
    if not is_id(value):
        raise source.error(f"{field} must be a whole number from 0 to 2**53, not {shown(value)}")
    return value


def _parent(source: Source, record: dict[str, object]) -> int | None:
    if record.get("parent_chat_id", _NO_PARENT) == _NO_PARENT:
        return None
    return _chat_id(source, record, "parent_chat_id")
