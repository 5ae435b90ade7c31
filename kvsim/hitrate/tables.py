"""How results look as text: one title, one table, notes."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from kvsim.analysis.metrics import DEFINITIONS
from kvsim.errors import UnknownNameError
from kvsim.html import html_notes, html_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd

    from kvsim.analysis.metrics import HitCounts, HitFigure


def check_definition(name: str) -> None:
    """Raise `UnknownNameError` unless `name` is one of the four definitions."""
    if name not in DEFINITIONS:
        raise UnknownNameError("definition of the hit rate", name, DEFINITIONS)


def figures(counts: Mapping[str, HitCounts]) -> dict[str, HitFigure]:
    """Return hits, total and rate by definition."""
    return {name: each.figure() for name, each in counts.items()}


def tier_figures(counts: Mapping[str, HitCounts], tier: str) -> dict[str, HitFigure]:
    """Return hits, total and rate of one of two tiers by definition."""
    return {name: each.figure(tier=tier) for name, each in counts.items()}


def tidy_frame(
    columns: Mapping[str, str],
    rows: Iterable[tuple[object, ...]],
    attrs: Mapping[str, object],
) -> pd.DataFrame:
    """Return a frame of `rows`; `columns` names them and their dtypes.

    One without rows keeps its dtypes.
    """
    import pandas as pd

    values: Sequence[Sequence[object]] = list(zip(*rows, strict=True)) or [()] * len(columns)
    frame = pd.DataFrame(
        {
            name: pd.Series(list(column), dtype=dtype)
            for (name, dtype), column in zip(columns.items(), values, strict=True)
        }
    )
    frame.attrs.update(attrs)
    return frame


def html_table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()
) -> str:
    """Return a table for a notebook; the first column is a name, the others are numbers."""
    table = html_rows(rows, head=head)
    return f"<p><b>{escape(title)}</b></p>{table}{html_notes(notes)}"


def percent(rate: float) -> str:
    """Return a rate for people, to the digit that definitions and models agree on."""
    return f"{rate:.2%}"


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` indices below `count`, spread evenly, first and last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
