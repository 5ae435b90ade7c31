"""`kvsim explain`: what engines would report on a trace, and which rule makes the difference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "what engines would report on a trace, and which of their rules makes the difference"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    from kvsim.cli.lab import add_trace_arguments

    add_trace_arguments(parser)
    parser.add_argument(
        "--gpu-blocks", type=int, required=True, metavar="N", help="blocks of the trace's size"
    )


def run(arguments: Namespace) -> None:
    """Explain, draw, print."""
    from kvsim.cli.lab import check_picture, load_trace, save_picture, show_table
    from kvsim.engines import explain

    check_picture(arguments.plot)
    trace = load_trace(arguments)
    found = explain(trace, gpu_blocks=arguments.gpu_blocks, warmup=arguments.warmup)
    if arguments.plot is not None:
        save_picture(found.plot, arguments.plot)
    if arguments.json:
        print(json.dumps(found.to_dict(), sort_keys=True, allow_nan=False))
        return
    show_table(found.title, found.head, found.table_rows(), found.notes())
