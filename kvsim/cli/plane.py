"""`kvsim plane`: hits on the GPU and the CPU tier for all sizes, with no requests in flight."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "hits of two LRU tiers for all sizes at once, with no requests in flight"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    from kvsim.cli.lab import add_trace_arguments

    add_trace_arguments(parser)
    parser.add_argument(
        "--mode", default="exclusive", metavar="NAME",
        help="exclusive (a block is in one tier) or inclusive; default: exclusive",
    )  # fmt: skip
    for tier in ("gpu", "cpu"):
        parser.add_argument(
            f"--{tier}", required=True, metavar="N,N,...",
            help=f"sizes of the {tier.upper()} tier in blocks; 0 is none",
        )  # fmt: skip


def run(arguments: Namespace) -> None:
    """Compute the plane, draw, print."""
    from kvsim.cli.lab import block_counts, check_picture, load_trace, save_picture, show_table
    from kvsim.hitrate import tier_plane

    check_picture(arguments.plot)
    gpu, cpu = (block_counts(f"--{tier}", getattr(arguments, tier)) for tier in ("gpu", "cpu"))
    trace = load_trace(arguments)
    plane = tier_plane(trace, arguments.mode, gpu, cpu, warmup=arguments.warmup)
    if arguments.plot is not None:
        save_picture(plane.plot, arguments.plot)
    if arguments.json:
        print(json.dumps(plane.points(), sort_keys=True, allow_nan=False))
        return
    notes = ["rates: prefix_token", plane.basis.caption]
    show_table(plane.title, ("GPU + CPU blocks", "GPU", "CPU", "both"), plane.table_rows(), notes)
