"""`kvsim calibrate`: what copies cost on this machine; the rest is `kvsim.calibrate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "measure what copies between the tiers cost on this machine, on real tensors"

TENSOR_OPTIONS: Final = ("shape", "layout", "device", "ranks", "workers")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    from kvsim.calibration.measure import LASTS_S, REQUESTS_PER_S

    parser.add_argument(
        "--out", metavar="FILE", help="keep it there as TOML, for --hardware FILE of the others"
    )
    parser.add_argument(
        "--requests-per-s",
        type=float,
        metavar="X",
        default=REQUESTS_PER_S,
        help=f"how dense the run will be, on the wall clock; default: {REQUESTS_PER_S:g}",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="X",
        default=LASTS_S,
        help=f"how long requests arrive; default: {LASTS_S:g}",
    )
    parser.add_argument(
        "--hardware", metavar="NAME", help="preset for what is not measured; default: h200-8x"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the copies; default: 0")
    parser.add_argument("--plot", metavar="FILE", help="save what was measured as a picture")
    parser.add_argument("--json", action="store_true", help="print one JSON value, no table")
    add_tensor_arguments(parser)


def add_tensor_arguments(parser: ArgumentParser) -> None:
    """Add the options that say what the tensors are and who moves them."""
    from kvsim.cli.replay import OPTIONS

    parser.add_argument(
        "--backend", metavar="NAME", default="paddle", help="with real tensors; default: paddle"
    )
    for name in TENSOR_OPTIONS:
        kind, text = OPTIONS["backend"][name]
        metavar = "N" if kind is int else "NAME"
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=text)


def run(arguments: Namespace) -> None:
    """Measure, draw, print."""
    import json

    from kvsim.calibration import calibrate
    from kvsim.calibration.result import HEAD
    from kvsim.cli.lab import check_picture, save_picture, show_table
    from kvsim.replay_config import ReplayConfig

    check_picture(arguments.plot)
    names = ("backend", *TENSOR_OPTIONS, "hardware", "seed")
    found = calibrate(
        ReplayConfig().with_settings({name: getattr(arguments, name) for name in names}),
        requests_per_s=arguments.requests_per_s,
        lasts_s=arguments.seconds,
        out=arguments.out,
    )
    if arguments.plot is not None:
        save_picture(found.plot, arguments.plot)
    if arguments.json:
        print(json.dumps(found.to_dict(), sort_keys=True, allow_nan=False))
        return
    notes = found.notes()
    if arguments.out is not None:
        notes.append(f"saved to {arguments.out}")
    show_table("what copies cost on the slowest rank", HEAD, found.rows(), notes)
