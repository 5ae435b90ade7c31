"""`kvsim trace mix`: several traces at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.cli.trace.options import add_reading, add_writing, read, write

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "put traces together, as if their users came to one place; nothing is shared between"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_reading(parser, several=True)
    add_writing(parser)


def run(arguments: Namespace) -> int:
    """Read all, mix, write; return the exit code."""
    from kvsim.trace import mix

    return write(mix([read(path, arguments) for path in arguments.traces]), arguments)
