"""`kvsim trace ...`: look at traces, change them, write them. One file a command, as above."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.cli.trace import (
    convert,
    fetch,
    fit,
    info,
    mix,
    scale,
    slice,  # noqa: A004  its name
    synth,
    validate,
)

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "look into traces, change them, and write them in kvsim's own formats"

COMMANDS: Final = {
    "info": info,
    "validate": validate,
    "convert": convert,
    "slice": slice,
    "scale": scale,
    "mix": mix,
    "fetch": fetch,
    "synth": synth,
    "fit": fit,
}
"""Name -> module with `HELP`, `add_arguments(parser)` and `run(arguments)`."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the commands; each replaces the `run` and the `parser` that this one would have."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name, help=module.HELP, description=module.HELP, allow_abbrev=False
        )
        module.add_arguments(command)
        command.set_defaults(run_trace=module.run, parser=command)


def run(arguments: Namespace) -> int:
    """Run the command that was named; return the exit code."""
    code: int = arguments.run_trace(arguments)
    return code
