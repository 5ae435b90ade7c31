"""`kvsim size`: how large the tiers must be for a hit rate, and what one more GiB is worth."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "how large the tiers must be for a hit rate, and what one more GiB is worth"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    from kvsim.cli.lab import add_trace_arguments

    add_trace_arguments(parser)
    for name, kind, metavar, default, text in (
        ("target-hit", float, "X", 0.3, "the hit rate to reach, as a share; default: 0.3"),
        ("definition", str, "NAME", "prefix_token", "which hit rate; default: prefix_token"),
        ("model", str, "NAME", "llama-3.1-8b", "model; default: llama-3.1-8b"),
        ("hardware", str, "NAME", "h200-8x", "machine; default: h200-8x"),
        ("kv-dtype", str, "NAME", "bf16", "type of the KV; default: bf16"),
        ("gpu-blocks", int, "N", None, "GPU tier; default: what the hardware leaves"),
        ("gpu-gib", float, "X", None, "GPU tier in GiB instead: K and V, all ranks together"),
    ):
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, default=default, help=text)
    parser.add_argument(
        "--timed",
        action="store_true",
        help="replay in virtual time too: what running requests hold on average",
    )


def run(arguments: Namespace) -> None:
    """Find the sizes, draw, print."""
    from kvsim.capacity import size
    from kvsim.capacity.answer import HEAD
    from kvsim.cli.lab import check_picture, load_trace, save_picture, show_table
    from kvsim.cli.terminal import progress_bar

    check_picture(arguments.plot)
    trace = load_trace(arguments)
    with progress_bar("timed replay") as progress:
        found = size(
            trace,
            model=arguments.model,
            hardware=arguments.hardware,
            kv_dtype=arguments.kv_dtype,
            target_hit=arguments.target_hit,
            definition=arguments.definition,
            gpu_blocks=arguments.gpu_blocks,
            gpu_gib=arguments.gpu_gib,
            warmup=arguments.warmup,
            timed=arguments.timed,
            progress=progress,
        )
    if arguments.plot is not None:
        save_picture(found.plot, arguments.plot)
    if arguments.json:
        print(json.dumps(found.to_dict(), sort_keys=True, allow_nan=False))
        return
    show_table(found.title, HEAD, found.table_rows(), found.notes())
