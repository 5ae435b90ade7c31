"""`kvsim trace info`: `kvsim.analysis.trace_info.describe`, printed and drawn."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from kvsim.cli.trace.options import add_reading, read

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "say what is in a trace: lengths, sharing, reuse, sessions, and what was repaired"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_reading(parser)
    parser.add_argument(
        "--warmup",
        type=float,
        default=0.0,
        metavar="X",
        help="share of the requests that the hits leave out, from the first; 0 to 1",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value, no table")
    parser.add_argument(
        "--details", action="store_true", help="with --json: lengths, depths, reuse, sessions too"
    )
    parser.add_argument("--plot", metavar="FILE", help="save the plots there: .png, .svg or .pdf")


def run(arguments: Namespace) -> int:
    """Read, describe, draw, print; return the exit code."""
    from kvsim.analysis.trace_info import describe
    from kvsim.cli.terminal import show_tables

    info = describe(read(arguments.trace, arguments), warmup=arguments.warmup)
    if arguments.plot is not None:
        from kvsim.analysis.trace_plots import save_plots  # matplotlib is slow to import

        save_plots(info, arguments.plot)
    if arguments.json:
        details = {"details": info.details()} if arguments.details else {}
        print(json.dumps({**info.summary(), **details}))
        return 0
    print(info.title)
    show_tables(info.tables())
    for note in info.trace.repairs:
        print(f"note: {note}")
    if arguments.plot is not None:
        print(f"plots saved to {arguments.plot}")
    return 0
