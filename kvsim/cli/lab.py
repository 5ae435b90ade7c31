"""What the commands of the lab have in common: the trace, lists of sizes, tables, pictures."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvsim.errors import UserError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterable, Sequence

    from matplotlib.axes import Axes

    from kvsim.trace import Trace

_SAMPLE_PREFIX: Final = "sample:"
_PICTURES: Final = (".pdf", ".png", ".svg")


def add_trace_arguments(parser: ArgumentParser) -> None:
    """Add the trace, how it is read, and what is counted of it."""
    parser.add_argument("trace", metavar="TRACE", help="a trace file, or sample:chat")
    parser.add_argument(
        "--warmup",
        type=float,
        default=0.0,
        metavar="X",
        help="share of the requests that is not counted, from the first; 0 to 1",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value, no table")
    parser.add_argument("--plot", metavar="FILE", help="save a picture: .png, .svg or .pdf")
    titled = parser.add_argument_group("trace")
    titled.add_argument("--format", metavar="NAME", help="format; default: from the content")
    titled.add_argument(
        "--partial",
        metavar="NAME",
        help="a last block that is not full: count or never; default: by format",
    )
    titled.add_argument("--limit", type=int, metavar="N", help="only the first so many requests")
    titled.add_argument("--block-size", type=int, metavar="N",
                        help="tokens an id stands for, if the file does not say")  # fmt: skip


def load_trace(arguments: Namespace) -> Trace:
    """Read the trace that the arguments name.

    Raises
    ------
    UserError
        If it cannot be read, or a sample is not what an option says.
    """
    from kvsim.trace import load, load_sample

    options = {name: getattr(arguments, name) for name in ("format", "partial", "block_size")}
    if not arguments.trace.startswith(_SAMPLE_PREFIX):
        return load(arguments.trace, limit=arguments.limit, **options)
    sample = load_sample(arguments.trace.removeprefix(_SAMPLE_PREFIX))
    for name, asked in options.items():
        found = getattr(sample, name)
        if asked is not None and asked != found:
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} of {arguments.trace} is {found!s}, not {asked!s}")
    return first_requests(sample, arguments.limit)


def first_requests(trace: Trace, limit: int | None) -> Trace:
    """Return the first requests of a trace.

    Raises
    ------
    UserError
        If `limit` is not positive.
    """
    if limit is None:
        return trace
    if limit < 1:
        raise UserError(f"limit must be an integer of at least 1, not {limit}")
    return replace(trace, requests=trace.requests[:limit])


def block_counts(option: str, text: str) -> list[int]:
    """Return the numbers of a list such as `1000,10_000`.

    Raises
    ------
    UserError
        If one is not an integer.
    """
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise UserError(
            f"{option} must be block counts with commas between them, such as 1000,10000,"
            f" not {text!r}"
        ) from None


def check_picture(file: str | None) -> None:
    """Raise `UserError` if a picture could not be saved there: better now than after the work."""
    if file is None:
        return
    path = Path(file)
    if path.suffix.lower() not in _PICTURES:
        raise UserError(f"--plot {file}: the name must end in {', '.join(_PICTURES)}")
    if not path.parent.is_dir():
        raise UserError(f"--plot {file}: there is no folder {path.parent}")
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"--plot {file}: cannot be written there")


def save_picture(plot: Callable[[Axes], object], file: str) -> None:
    """Draw into a new figure and save it; a file that is there is replaced, never half written.

    Raises
    ------
    UserError
        If it cannot be saved.
    """
    from kvsim.analysis.plots import new_figure

    path = Path(file)
    figure = new_figure()
    plot(figure.add_subplot())
    try:
        with tempfile.TemporaryDirectory(prefix=".kvsim-", dir=path.parent) as folder:
            made = Path(folder) / path.name
            figure.savefig(made, dpi=130)
            made.replace(path)
    except OSError as error:
        raise UserError(f"--plot {file}: {error.strerror or error}") from error


def show_table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str]
) -> None:
    """Print a table on stdout: names on the left, numbers on the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(head):
        table.add_column(name, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    print(title)
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        print(line.rstrip())  # rich fills up the last column
    for note in notes:
        print(f"note: {note}")
