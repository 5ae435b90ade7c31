"""`kvsim trace scale`: the same requests at other times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.cli.trace.options import add_reading, add_writing, read, write

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "change when the requests of a trace arrive"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command; times change in the order of the options."""
    add_reading(parser)
    add_writing(parser)
    change = parser.add_argument_group("times")
    change.add_argument("--jitter", action="store_true", help="spread equal times over the gap")
    change.add_argument(
        "--loop", metavar="MODEL", help="turns follow their answers: poisson:think_s=20,token_ms=15"
    )
    change.add_argument("--speed", type=float, metavar="X", help="replay so many times as fast")
    change.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the jitter; default: 0"
    )


def run(arguments: Namespace) -> int:
    """Read, change, write; return the exit code."""
    from random import Random

    from kvsim.errors import UserError
    from kvsim.trace import close_loop, scale_time, spread_arrivals
    from kvsim.trace.arrivals import parse_arrivals

    if not arguments.jitter and arguments.loop is None and arguments.speed is None:
        raise UserError("no change named: use --jitter, --loop or --speed")
    model = None if arguments.loop is None else parse_arrivals(arguments.loop)
    trace = read(arguments.trace, arguments)
    if arguments.jitter:
        trace = spread_arrivals(trace, Random(arguments.seed))
    if model is not None:
        trace = close_loop(trace, model)
    if arguments.speed is not None:
        trace = scale_time(trace, speed=arguments.speed)
    return write(trace, arguments)
