"""Tables as HTML, for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def html_rows(
    rows: Iterable[Sequence[str]], *, head: Sequence[str] = (), align: str = "right"
) -> str:
    """Return a table; its first column is a name, the others are aligned as `align` says."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        f'<tr><td style="text-align:left">{escape(first)}</td>'
        + "".join(f'<td style="text-align:{align}">{escape(cell)}</td>' for cell in others)
        + "</tr>"
        for first, *others in rows
    )
    top = f"<thead><tr>{heads}</tr></thead>" if heads else ""
    return f"<table>{top}<tbody>{body}</tbody></table>"


def html_notes(notes: Iterable[str]) -> str:
    """Return notes as a list; without notes, nothing."""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<ul>{items}</ul>" if items else ""


def html_run(title: str, *, clock: str, seed: int) -> str:
    """Return the line above the tables of a run."""
    return f"<p><b>{escape(title)}</b> (clock: {clock}, seed {seed})</p>"
