"""`kvsim trace fit`: `kvsim.fitting.fit`, written to a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from kvsim.cli.trace.options import add_reading, read

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "fit a model of fewer than 200 numbers, to share a workload without its data"

_POOR: Final = 0.02  # an error that shows in any plot of a hit rate


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_reading(parser)
    parser.add_argument("-o", "--out", metavar="FILE", required=True, help="model.toml, to write")
    parser.add_argument("--json", action="store_true", help="print the error as one JSON value")


def run(arguments: Namespace) -> int:
    """Read, fit, write, say how far it is from the source; return the exit code."""
    from dataclasses import asdict

    from kvsim.cli.terminal import progress_bar
    from kvsim.errors import UserError
    from kvsim.fitting import fit
    from kvsim.trace.synthesis import PURPOSE, write_model

    if not arguments.out.endswith(".toml"):
        raise UserError(f"the name of a model ends in .toml, not {arguments.out!r}")
    trace = read(arguments.trace, arguments)
    with progress_bar("fit") as progress:
        model = fit(trace, progress=progress)
    write_model(model, arguments.out)
    report = model.report
    assert report is not None
    if arguments.json:
        print(json.dumps(asdict(report)))
        return 0
    print(f"{model.num_numbers} numbers written to {arguments.out}; against {trace.name}:")
    for line in report.lines():
        print(f"  {line}")
    if report.curve_error > _POOR:
        print(f"note: a curve error above {_POOR} is large: look at the curves before you use it")
    for line in PURPOSE:
        print(f"note: {line}")
    return 0
