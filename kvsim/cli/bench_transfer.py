"""`kvsim bench-transfer`: `kvsim.bench_transfer` as a table, a picture or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "measure copies between two tiers against one large copy of this machine"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--block-kib", metavar="N,N,...",
        help="sizes of a block in KiB, multiples of 4; default: 64,128,256,1024,4096",
    )  # fmt: skip
    parser.add_argument(
        "--layout", metavar="NAME,...",
        help="block-major, layer-major; default: both",
    )  # fmt: skip
    parser.add_argument(
        "--direction", metavar="NAME,...",
        help="up (to the nearest tier), down, both at once; default: all three",
    )  # fmt: skip
    parser.add_argument(
        "--device", default="cpu", metavar="NAME",
        help="where the nearest tier is: cpu or gpu:N; default: cpu",
    )  # fmt: skip
    parser.add_argument(
        "--mib", type=int, default=64, metavar="N",
        help="what a transfer moves each way, in MiB; default: 64",
    )  # fmt: skip
    parser.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="measurements of each; default: 5"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the block ids")
    parser.add_argument(
        "--no-streaming", action="store_true",
        help="let the C library decide whether long copies bypass the caches",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON value, no table")
    parser.add_argument("--plot", metavar="FILE", help="save a picture: .png, .svg or .pdf")


def run(arguments: Namespace) -> None:
    """Measure, draw, print."""
    from kvsim.cli.lab import check_picture, save_picture, show_table
    from kvsim.transfer_bench import DEFAULT_KIB, DIRECTIONS, LAYOUTS, bench_transfer

    check_picture(arguments.plot)
    result = bench_transfer(
        block_kib=DEFAULT_KIB if arguments.block_kib is None else _sizes(arguments.block_kib),
        device=arguments.device,
        mib=arguments.mib,
        repeats=arguments.repeats,
        seed=arguments.seed,
        streaming=not arguments.no_streaming,
        layouts=LAYOUTS if arguments.layout is None else arguments.layout.split(","),
        directions=DIRECTIONS if arguments.direction is None else arguments.direction.split(","),
    )
    if arguments.plot is not None:
        save_picture(result.plot, arguments.plot)
    if arguments.json:
        print(result.to_json())
        return
    head = ("layout", "by", "block", "direction", "GB/s", "ceiling", "share")
    show_table(result.title, head, result.table_rows(), result.notes)


def _sizes(text: str) -> list[int]:
    from kvsim.errors import UserError

    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise UserError(
            "--block-kib must be sizes in KiB with commas between them, such as 128,1024,"
            f" not {text!r}"
        ) from None
