"""RAGPulse's JSON Lines: prompts made of parts, whose ids name contents and not prefixes.

`timestamp` (text: seconds), `input_length`, `output_length`, `session_id`, and `hash_ids` with a
list for each part: `sys_prompt`, `passages_ids`, `history`, `web_search`, `user_input`. The parts
follow each other in the order of the record, so a passage is shared only after equal parts.

The file does not say how many tokens an id stands for: those of a row that are new are taken as
min(512, floor(input_length / ids + 1/2)) tokens each, and keep that.

Source: the traces of the repository flashserve/RAGPulse.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvsim.trace.base import ReadOptions, Row, RowSource
from kvsim.trace.csv_rows import fraction_ns
from kvsim.trace.values import (
    is_id,
    is_text,
    made_length,
    parse_object,
    plausible_ns,
    required,
    session_text,
    shown,
    whole_number,
)
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.trace.source import Source

_MOST_TOKENS: Final = 512
_SECONDS: Final = re.compile(r"(\d{1,16})(?:\.(\d{1,30}))?")


class RagpulseReader:
    """See `kvsim.trace.base.TraceReader`."""

    __slots__ = ()

    name = "ragpulse"

    def sniff(self, head: bytes) -> bool:
        """Return whether the first row has ids by the part of the prompt."""
        row = head.lstrip().partition(b"\n")[0]
        return (
            row.removeprefix(b"\xef\xbb\xbf").startswith(b"{")
            and b'"hash_ids"' in row
            and b'"passages_ids"' in row
        )

    def read(self, source: Source, options: ReadOptions) -> RowSource:
        """Return the rows of `source` in blocks of `options.block_size` tokens.

        `options.id_tokens`: every id stands for so many.
        """
        size = options.made_block_size
        guess = (
            f"{options.id_tokens} tokens an id, as asked for"
            if options.id_tokens
            else "the file does not say how many tokens an id stands for: estimated from the length"
            " of the first prompt that has it, at most 512"
        )
        return RowSource(
            rows=_rows(source, size, options.id_tokens),
            block_size=size,
            partial=PartialRule.NEVER,
            notes=[guess],
            is_private=True,
        )


READER = RagpulseReader()


def _rows(source: Source, size: int, id_tokens: int | None) -> Iterator[Row]:
    num_tokens_of: dict[int | str, int] = {}
    for text in source:
        record = parse_object(source, text)
        num_input_tokens = made_length(source, record, "input_length")
        ids = _ids(source, record)
        if ids:
            new_tokens = id_tokens or min(
                _MOST_TOKENS, (2 * num_input_tokens + len(ids)) // (2 * len(ids))
            )
            for each in ids:
                num_tokens_of.setdefault(each, max(1, new_tokens))
        yield Row(
            line=source.line or 0,
            at_ns=_at_ns(source, record),
            num_input_tokens=num_input_tokens,
            num_output_tokens=whole_number(source, record, "output_length", least=0),
            block_ids=_block_ids(ids, num_tokens_of, num_input_tokens, size),
            session_id=session_text(source, "session_id", record.get("session_id")),
        )


def _block_ids(
    ids: list[int | str], num_tokens_of: dict[int | str, int], num_tokens: int, size: int
) -> list[str | None]:
    """Return what each full block contains: the ids that end or lie in it, and how far they reach.

    ids       |----7----|--9--|------7------|
    blocks    |--a--|--b--|--c--|--d--|          d is None if the ids end before it does

    Blocks are chained later, so what came before need not be named; where the block begins within
    an id follows from that too.
    """
    blocks: list[str | None] = []
    num_blocks = num_tokens // size
    inside: list[int | str] = []
    end = start = 0
    for each in ids:
        start, end = end, end + num_tokens_of[each]
        inside.append(each)
        while len(blocks) < num_blocks and (len(blocks) + 1) * size <= end:
            blocks.append(f"{inside!r}+{(len(blocks) + 1) * size - start}")
            inside = [each]
        if end % size == 0:
            inside = []
        if len(blocks) == num_blocks:
            break
    return blocks + [None] * (num_blocks - len(blocks))


def _ids(source: Source, record: dict[str, object]) -> list[int | str]:
    """Return the ids of all parts in the order of the record."""
    parts = required(source, record, "hash_ids")
    if type(parts) is not dict:
        raise source.error(
            f"hash_ids must be an object with a list for each part, not {shown(parts)}"
        )
    ids: list[int | str] = []
    for part, values in parts.items():
        if values is None:
            continue
        if type(values) is not list:
            raise source.error(f"hash_ids: {shown(part)} must be a list, not {shown(values)}")
        for value in values:
            if not is_id(value) and not is_text(value):
                raise source.error(
                    f"each id of {shown(part)} must be a whole number from 0 to 2**53 or a text,"
                    f" not {shown(value)}"
                )
            ids.append(value)
    return ids


def _at_ns(source: Source, record: dict[str, object]) -> int:
    value = required(source, record, "timestamp")
    text = str(value) if type(value) in (int, float) else value
    found = _SECONDS.fullmatch(text.strip()) if type(text) is str else None
    if found is None:
        raise source.error(f"timestamp must be a text of seconds from 0, not {shown(value)}")
    at_ns = int(found[1]) * 10**9 + fraction_ns(found[2] or "")
    return plausible_ns(source, "timestamp", at_ns)
