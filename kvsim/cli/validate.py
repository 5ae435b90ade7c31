"""`kvsim validate`: the simulator against real tensors; the rest is `kvsim.validate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "run a trace on real tensors and in the simulator, and say how far they differ"

_GROUPS: Final = ("trace", "cache", "scheduler")
_OTHERS: Final = ("model", "kv_dtype", "seed", "time_scale", "forward")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    from kvsim.cli.calibrate import add_tensor_arguments
    from kvsim.cli.replay import METAVARS, OPTIONS, add_options
    from kvsim.validation.run import DEFAULT_TOLERANCE

    parser.add_argument("trace", metavar="TRACE", help="a trace file, or sample:chat")
    parser.add_argument(
        "--hardware",
        metavar="FILE",
        help="hardware.toml of `kvsim calibrate`; default: it is measured in this call",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="X",
        default=DEFAULT_TOLERANCE,
        help=f"what predicted over measured may be off by; default: {DEFAULT_TOLERANCE:g}",
    )
    parser.add_argument("--plot", metavar="FILE", help="save the copies as a picture")
    parser.add_argument("--json", action="store_true", help="print one JSON value, no table")
    add_tensor_arguments(parser)
    for group in _GROUPS:
        add_options(parser, group, OPTIONS[group])
    known = {name: option for options in OPTIONS.values() for name, option in options.items()}
    for name in _OTHERS:
        kind, text = known[name]
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=kind, metavar=METAVARS[kind], help=text)


def run(arguments: Namespace) -> int:
    """Validate, draw, print; return the exit code."""
    from kvsim.cli.calibrate import TENSOR_OPTIONS
    from kvsim.cli.lab import check_picture, save_picture, show_table
    from kvsim.cli.replay import OPTIONS
    from kvsim.cli.terminal import progress_bar
    from kvsim.validation import validate
    from kvsim.validation.result import HEAD

    check_picture(arguments.plot)
    names = ["backend", "hardware", *TENSOR_OPTIONS, *_OTHERS]
    names += [name for group in _GROUPS for name in OPTIONS[group]]
    settings = {name: getattr(arguments, name) for name in names}
    with progress_bar("validate") as progress:
        found = validate(
            arguments.trace,
            tolerance=arguments.tolerance,
            progress=progress,
            **settings,
        )
    if arguments.plot is not None:
        save_picture(found.plot, arguments.plot)
    if arguments.json:
        print(found.to_json())
    else:
        show_table(found.title, HEAD, found.rows(), found.notes())
    for fault in found.faults:
        print(f"kvsim: {fault}", file=sys.stderr)
    return 1 if found.faults else 0
