"""`kvsim trace convert`: `kvsim.trace.load`, then `kvsim.trace.write`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.cli.trace.options import add_reading, add_writing, read, write

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "write a trace of any format in one of kvsim's own"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_reading(parser)
    add_writing(parser)


def run(arguments: Namespace) -> int:
    """Read and write; return the exit code."""
    return write(read(arguments.trace, arguments), arguments)
