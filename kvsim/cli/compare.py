"""`kvsim compare`: two saved runs of one trace, request by request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "compare two runs of one trace: which requests became slower, and why"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("a", metavar="DIR_A", help="what kvsim replay --out has written")
    parser.add_argument("b", metavar="DIR_B", help="the same of another run; differences are B - A")
    parser.add_argument(
        "--slowest", type=int, default=10, metavar="N", help="requests that are named; default: 10"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the intervals; default: 0"
    )
    parser.add_argument("--plot", metavar="FILE", help="save a picture: .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print one JSON value, no table")


def run(arguments: Namespace) -> None:
    """Compare, draw, print."""
    from kvsim.cli.lab import check_picture, save_picture, show_table
    from kvsim.comparing import compare
    from kvsim.comparing.comparison import REASON_HEAD, SLOWER_HEAD, TOTAL_HEAD
    from kvsim.errors import UserError

    if arguments.slowest < 0:
        raise UserError(f"--slowest must be at least 0, not {arguments.slowest}")
    check_picture(arguments.plot)
    found = compare(arguments.a, arguments.b, seed=arguments.seed)
    if arguments.plot is not None:
        save_picture(lambda ax: found.plot(ax=ax), arguments.plot)
    if arguments.json:
        print(json.dumps(found.to_dict(), sort_keys=True, allow_nan=False))
        return
    show_table("B less A", TOTAL_HEAD, found.total_rows(), ())
    show_table("Why requests changed", REASON_HEAD, found.reason_rows(), ())
    rows = found.slowest_rows(arguments.slowest)
    show_table("Those that lost most", SLOWER_HEAD, rows, found.notes)
