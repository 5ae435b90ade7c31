"""BurstGPT's CSV: seconds, model and lengths, no ids.

`Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`, in the second release also
`Session ID`. What prompts share is not in it. A response of 0 tokens is one that failed.

Source: Wang et al., BurstGPT (KDD 2025), and the tables released with it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvsim.trace.azure import empty_prompts
from kvsim.trace.base import ReadOptions, Row, RowSource
from kvsim.trace.csv_rows import count_of, fraction_ns, head_names, table_rows
from kvsim.trace.values import MOST_MADE_TOKENS, plausible_ns, shown
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.trace.source import Source

_COLUMNS: Final = ("timestamp", "request tokens", "response tokens")
_SECONDS: Final = re.compile(r"(\d{1,16})(?:\.(\d{1,30}))?")


class BurstgptReader:
    """See `kvsim.trace.base.TraceReader`."""

    __slots__ = ()

    name = "burstgpt"

    def sniff(self, head: bytes) -> bool:
        """Return whether the head line has BurstGPT's columns."""
        return set(_COLUMNS) <= set(head_names(head))

    def read(self, source: Source, options: ReadOptions) -> RowSource:
        """Return the rows of `source`, without ids."""
        notes: list[str] = []
        return RowSource(
            rows=_rows(source, notes),
            block_size=options.made_block_size,
            partial=PartialRule.NEVER,
            notes=notes,
            has_prefixes=False,
        )


READER = BurstgptReader()


def _rows(source: Source, notes: list[str]) -> Iterator[Row]:
    empty: list[int] = []
    for row in table_rows(source, _COLUMNS):
        num_input_tokens = count_of(source, row, "request tokens", most=MOST_MADE_TOKENS)
        if not num_input_tokens:
            empty.append(source.line or 0)
        yield Row(
            line=source.line or 0,
            at_ns=_at_ns(source, row["timestamp"]),
            num_input_tokens=num_input_tokens or 1,
            num_output_tokens=count_of(source, row, "response tokens"),
            block_ids=(),
            session_id=row.get("session id") or None,
        )
    notes += empty_prompts(empty)


def _at_ns(source: Source, text: str) -> int:
    found = _SECONDS.fullmatch(text)
    if found is None:
        raise source.error(f"timestamp must be a number of seconds from 0, not {shown(text)}")
    return plausible_ns(source, "timestamp", int(found[1]) * 10**9 + fraction_ns(found[2] or ""))
