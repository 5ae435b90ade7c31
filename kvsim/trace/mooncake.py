"""Mooncake's JSON Lines: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

An id stands for 512 tokens and for all before them; the partial last block has an id of its own;
output tokens have none.

Source: Qin et al., Mooncake (FAST 2025), and the traces released with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.trace.base import Row, RowSource, num_blocks
from kvsim.trace.source import (
    LARGEST_NUMBER,
    is_id,
    optional_text,
    parse_object,
    required,
    shown,
    whole_number,
)
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.trace.source import Source

_BLOCK_SIZE = 512
_MS_NS = 10**6


class MooncakeReader:
    """See `kvsim.trace.base.TraceReader`."""

    __slots__ = ()

    name = "mooncake"
    default_partial = PartialRule.COUNT

    def sniff(self, head: bytes) -> bool:
        """Return whether the first row has Mooncake's fields and not those of its relatives."""
        row = head.lstrip().partition(b"\n")[0]
        return (
            row.removeprefix(b"\xef\xbb\xbf").startswith(b"{")
            and b'"timestamp"' in row
            and (b'"input_length"' in row or b'"hash_ids"' in row)
            and b'"chat_id"' not in row  # Qwen-Bailian: seconds, 16 tokens a block
            and b'"passages_ids"' not in row  # RAGPulse: seconds, ids of contents
        )

    def read(self, source: Source, *, block_size: int | None) -> RowSource:
        """Return the rows of `source`, `block_size` (512) tokens an id."""
        size = block_size or _BLOCK_SIZE
        rows = _rows(source, size)
        return RowSource(rows=rows, block_size=size, partial=self.default_partial)


READER = MooncakeReader()


def _rows(source: Source, block_size: int) -> Iterator[Row]:
    for text in source:
        record = parse_object(source, text)
        if record.get("block_size", block_size) != block_size:
            raise source.error(
                f"block_size is {shown(record['block_size'])} in this row, but an id is read as"
                f" {block_size} tokens; load the trace with the block_size of its rows"
            )
        timestamp_ms = whole_number(source, record, "timestamp", least=0, unit="ms")
        num_input_tokens = whole_number(source, record, "input_length", least=1)
        session_id = record.get("session_id")
        if type(session_id) is int:
            session_id = str(session_id)
        yield Row(
            line=source.line or 0,
            at_ns=timestamp_ms * _MS_NS,
            num_input_tokens=num_input_tokens,
            num_output_tokens=whole_number(source, record, "output_length", least=0),
            block_ids=_block_ids(source, record, num_input_tokens, block_size),
            session_id=optional_text(source, "session_id", session_id),
        )


def _block_ids(
    source: Source, record: dict[str, object], num_input_tokens: int, block_size: int
) -> list[int]:
    ids = required(source, record, "hash_ids")
    if type(ids) is not list:
        raise source.error(f"hash_ids must be a list of whole numbers, not {shown(ids)}")
    expected = num_blocks(num_input_tokens, block_size, PartialRule.COUNT)
    if len(ids) != expected:
        raise source.error(
            f"{len(ids)} hash_ids do not fit input_length {num_input_tokens}:"
            f" at {block_size} tokens an id it needs {expected}"
        )
    if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) > LARGEST_NUMBER:
        wrong = next(each for each in ids if not is_id(each))
        raise source.error(
            f"each of hash_ids must be a whole number from 0 to 2**53, not {shown(wrong)}"
        )
    return ids
