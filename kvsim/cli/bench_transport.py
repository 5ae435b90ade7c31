"""`kvsim bench-transport`: how fast transports move blocks between two processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from kvsim.errors import UserError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from kvsim.backends.transports.bench import BenchConfig, BenchRow

HELP: Final = "measure transports between two processes of this machine"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "transport",
        nargs="*",
        metavar="TRANSPORT",
        help="ipc, tcp, rdma or one of your own; default: all that are installed",
    )
    parser.add_argument(
        "--block-kib",
        default="64,256,1024",
        metavar="N,N",
        help="lengths of a block; default: 64,256,1024",
    )
    parser.add_argument(
        "--blocks", type=int, default=256, metavar="N", help="blocks of a write; default: 256"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="of which the median counts; default: 5"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value, no table")


def run(arguments: Namespace) -> None:
    """Measure, print."""
    from kvsim.backends.transports import find_transport, transport_names
    from kvsim.backends.transports.bench import bench_rows
    from kvsim.backends.transports.ports import TransportError

    config = _config(arguments)
    missing = {
        name: reason
        for name in transport_names()
        if not arguments.transport and (reason := find_transport(name).find_missing())
    }
    names = arguments.transport or [name for name in transport_names() if name not in missing]
    try:
        rows = bench_rows(names, config)
    except TransportError as error:
        raise UserError(f"the measurement failed: {error}") from error
    if arguments.json:
        print(json.dumps({"rows": [row.to_dict() for row in rows], "not_measured": missing}))
        return
    _show(rows, missing, config)


def _config(arguments: Namespace) -> BenchConfig:
    from kvsim.backends.transports.bench import BenchConfig

    try:
        lengths = tuple(int(word) << 10 for word in arguments.block_kib.split(","))
    except ValueError:
        raise UserError(
            "--block-kib must be lengths in KiB with commas between them, such as 64,1024,"
            f" not {arguments.block_kib!r}"
        ) from None
    return BenchConfig(
        block_bytes=lengths, num_blocks=arguments.blocks, num_repeats=arguments.repeats
    )


def _show(rows: list[BenchRow], missing: dict[str, str], config: BenchConfig) -> None:
    from kvsim.cli.lab import show_table

    show_table(
        "transports, between two processes of this machine",
        ("transport", "block KiB", "GB/s", "one piece GB/s", "ratio", "p50 us", "p99 us"),
        [
            (
                row.transport,
                f"{row.block_bytes >> 10}",
                f"{row.bytes_per_s / 1e9:.2f}",
                f"{row.contiguous_bytes_per_s / 1e9:.2f}",
                f"{row.ratio:.2f}",
                f"{row.p50_us:.0f}",
                f"{row.p99_us:.0f}",
            )
            for row in rows
        ],
        [
            f"GB/s: {config.num_blocks} blocks in one write, and the same bytes as one piece;"
            f" medians of {config.num_repeats}. us: one block with its tag, until its end is told",
            *(f"{name} was not measured: {reason}" for name, reason in missing.items()),
        ],
    )
