"""Azure's CSV of 2023 and 2024: times and lengths, no ids.

`TIMESTAMP,ContextTokens,GeneratedTokens`; the time is `2023-11-16 18:17:03.9799600`, in 2024 with
`+00:00`. What prompts share is not in it.

Source: the repository Azure/AzurePublicDataset (Patel et al., Splitwise, ISCA 2024).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from kvsim.trace.base import ReadOptions, Row, RowSource
from kvsim.trace.csv_rows import count_of, fraction_ns, head_names, table_rows
from kvsim.trace.plain_ids import times
from kvsim.trace.values import MOST_MADE_TOKENS, shown
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.trace.source import Source

_COLUMNS: Final = ("timestamp", "contexttokens", "generatedtokens")
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,30}))?(Z|[+-]\d\d:?\d\d)?"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class AzureReader:
    """See `kvsim.trace.base.TraceReader`."""

    __slots__ = ()

    name = "azure"

    def sniff(self, head: bytes) -> bool:
        """Return whether the head line has Azure's columns."""
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


READER = AzureReader()


def _rows(source: Source, notes: list[str]) -> Iterator[Row]:
    empty: list[int] = []
    for row in table_rows(source, _COLUMNS):
        num_input_tokens = count_of(source, row, "contexttokens", most=MOST_MADE_TOKENS)
        if not num_input_tokens:
            empty.append(source.line or 0)
        yield Row(
            line=source.line or 0,
            at_ns=_at_ns(source, row["timestamp"]),
            num_input_tokens=num_input_tokens or 1,
            num_output_tokens=count_of(source, row, "generatedtokens"),
            block_ids=(),
        )
    notes += empty_prompts(empty)


def empty_prompts(lines: list[int]) -> list[str]:
    """Return what to tell about prompts of no tokens, by their lines."""
    if not lines:
        return []
    where = f"{times(len(lines), 'row')}, first at line {lines[0]}"
    return [f"prompt of 0 tokens taken as 1 in {where}"]


def _at_ns(source: Source, text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is not None:
        day, clock, fraction, zone = found.groups()
        zone = "+00:00" if zone in (None, "Z") else zone
        try:
            at = datetime.fromisoformat(f"{day}T{clock}{zone}")
            seconds = (at - _EPOCH) // timedelta(seconds=1)
        except (ValueError, OverflowError):
            seconds = -1
        if seconds >= 0:
            return seconds * 10**9 + fraction_ns(fraction or "")
    raise source.error(
        f"timestamp must be like 2023-11-16 18:17:03.9799600, from 1970, not {shown(text)}"
    )
