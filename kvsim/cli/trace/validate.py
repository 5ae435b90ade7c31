"""`kvsim trace validate`: `kvsim.trace.load`, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.cli.trace.options import add_reading, read

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "read a trace to its end; the first row that is wrong is named, with exit code 2"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_reading(parser)


def run(arguments: Namespace) -> int:
    """Read; say what was repaired and that the rest is right; return the exit code."""
    trace = read(arguments.trace, arguments)
    for note in trace.repairs:
        print(f"note: {note}")
    print(f"valid: {trace.num_requests} requests, format {trace.format}")
    return 0
