"""What a person sees: a table on stdout, and a progress bar on a terminal's stderr."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvsim.result import ReplayResult

    Rows = Sequence[Sequence[str]]


def show(result: ReplayResult, *, saved_to: str | None) -> None:
    """Print the figures of a replay as tables."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)
    name, *heads = result.hit_heads
    hits = Table(name, box=box.SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        hits.add_column(head, justify="right")
    for row in result.hit_rows():
        hits.add_row(*row)
    facts = Table(box=None, show_header=False, pad_edge=False)
    for fact in result.fact_rows():
        facts.add_row(*fact)
    print(result.title)
    with console.capture() as printed:
        console.print(hits, facts, sep="")
    for line in printed.get().splitlines():
        print(line.rstrip())  # rich fills up the last column
    for note in result.notes:
        print(f"note: {note}")
    if saved_to is not None:
        print(f"saved to {saved_to}")


def show_facts(title: str, facts: Rows, notes: Sequence[str], *, saved_to: str | None) -> None:
    """Print named figures under a title."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for fact in facts:
        table.add_row(*fact)
    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as printed:
        console.print(table)
    print(title)
    for line in printed.get().splitlines():
        print(line.rstrip())  # rich fills up the last column
    for note in notes:
        print(f"note: {note}")
    if saved_to is not None:
        print(f"saved to {saved_to}")


def show_tables(tables: Sequence[Rows]) -> None:
    """Print tables; the first row of each is its head, the first column names the row."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as printed:
        for first, *rows in tables:
            table = Table(first[0], box=box.SIMPLE_HEAD, pad_edge=False)
            for head in first[1:]:
                table.add_column(head, justify="right")
            for row in rows:
                table.add_row(*row)
            console.print(table)
    for line in printed.get().splitlines():
        print(line.rstrip())  # rich fills up the last column


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """Give a function to call with (done, total), which draws a bar; None if nobody would see."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
