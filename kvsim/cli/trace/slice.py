"""`kvsim trace slice`: a part of a trace, by time, by session, or sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.cli.trace.options import add_reading, add_writing, read, write

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "take part of a trace, so that what is shared within it stays"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command; parts are taken in the order of the options."""
    add_reading(parser)
    add_writing(parser)
    part = parser.add_argument_group("part")
    part.add_argument(
        "--from", dest="start_s", type=float, metavar="S", help="seconds after the first arrival"
    )
    part.add_argument("--to", dest="end_s", type=float, metavar="S", help="before this second")
    part.add_argument("--session", action="append", metavar="NAME", help="this conversation; again")
    part.add_argument("--sample", type=float, metavar="X", help="this share of the groups; 0 to 1")
    part.add_argument(
        "--by", default="root", metavar="NAME", help="groups: root (default) or session"
    )
    part.add_argument(
        "--depth", type=int, metavar="N", help="block that is the root; default: where paths part"
    )
    part.add_argument("--seed", type=int, default=0, metavar="N", help="of the sample; default: 0")


def run(arguments: Namespace) -> int:
    """Read, take, write; return the exit code."""
    from random import Random

    from kvsim.errors import UserError
    from kvsim.trace import sample_requests, take_between, take_sessions

    asked = (arguments.start_s, arguments.end_s, arguments.session, arguments.sample)
    if all(each is None for each in asked):
        raise UserError("no part named: use --from, --to, --session or --sample")
    trace = read(arguments.trace, arguments)
    if arguments.start_s is not None or arguments.end_s is not None:
        trace = take_between(trace, start_s=arguments.start_s or 0.0, end_s=arguments.end_s)
    if arguments.session:
        trace = take_sessions(trace, arguments.session)
    if arguments.sample is not None:
        rng = Random(arguments.seed)
        trace = sample_requests(
            trace, arguments.sample, rng, by=arguments.by, depth=arguments.depth
        )
    return write(trace, arguments)
