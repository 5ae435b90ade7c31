"""The parser of the command line, whose errors are one line like all others."""

from __future__ import annotations

from argparse import ArgumentParser
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

from kvsim.cli import (
    bench_transfer,
    bench_transport,
    calibrate,
    check_policy,
    check_transport,
    compare,
    curve,
    doctor,
    explain,
    pd,
    plane,
    replay,
    rerun,
    size,
    sweep,
    trace,
    validate,
)
from kvsim.errors import UserError
from kvsim.version import __version__

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

COMMANDS = {
    "replay": replay,
    "rerun": rerun,
    "compare": compare,
    "validate": validate,
    "calibrate": calibrate,
    "curve": curve,
    "plane": plane,
    "size": size,
    "explain": explain,
    "sweep": sweep,
    "pd": pd,
    "bench-transfer": bench_transfer,
    "check-policy": check_policy,
    "check-transport": check_transport,
    "bench-transport": bench_transport,
    "trace": trace,
    "doctor": doctor,
}
"""Name -> module with `HELP`, `add_arguments(parser)` and `run(arguments)`. What `run` returns is
the exit code; None is 0."""


class OneLineParser(ArgumentParser):
    """Raises `UserError` where argparse would print the usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Raise."""
        raise UserError(f"{message} (see {self.prog} --help)")


def build_parser() -> OneLineParser:
    """Return the parser of all commands. Options must be written out: scripts outlive us."""
    parser = OneLineParser(
        prog="kvsim",
        description="A simulation-first research toolkit for the KV cache of LLM serving.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kvsim {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name, help=module.HELP, description=module.HELP, allow_abbrev=False
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, parser=command)
    return parser


def parse(parser: OneLineParser, argv: Sequence[str]) -> Namespace:
    """Return the arguments.

    Raises
    ------
    UserError
        If they cannot be understood; an unknown option is compared with those there are.
    """
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        command: OneLineParser = arguments.parser
        name = unknown[0].partition("=")[0]
        near = get_close_matches(name, command._option_string_actions, n=1)  # noqa: SLF001
        hint = f" Did you mean {near[0]}?" if near else ""
        kind = "option" if name.startswith("-") else "argument"
        command.error(f"unknown {kind} {unknown[0]!r}.{hint}")
    return arguments
