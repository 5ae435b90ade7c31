"""`kvsim trace synth`: `kvsim.trace.synthesize`, written to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "make a trace up: a workload with numbers of yours, or a model fitted to a trace"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a workload, such as rag or rag:passages=8, or model.toml; without it: a list",
    )
    parser.add_argument("--requests", type=int, metavar="N", help="default: 2000, or the model's")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--block-size", type=int, metavar="N", help="tokens a block; default: 64, or the model's"
    )
    parser.add_argument(
        "--arrivals",
        metavar="MODEL",
        help="poisson:gap_s=2, bursts:gap_s=2,size=8, +diurnal:swing=0.5; default: the workload's",
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        help="to write: .parquet for a table, else JSON Lines; with .gz or .zst compressed",
    )


def run(arguments: Namespace) -> int:
    """Make and write, or list what there is; return the exit code."""
    from kvsim.cli.trace.options import write
    from kvsim.errors import UserError
    from kvsim.trace.specs import spec_of
    from kvsim.trace.synthesis import STARTS, WORKLOADS, synthesize

    if arguments.model is None:
        for title, known in (("workloads", WORKLOADS), ("arrivals", STARTS)):
            print(f"{title}:")
            for name, kind in known.items():
                print(f"  {spec_of(name, kind())}")
        return 0
    if arguments.out is None:
        raise UserError("name the file to write: --out FILE")
    trace = synthesize(
        arguments.model,
        num_requests=arguments.requests,
        seed=arguments.seed,
        block_size=arguments.block_size,
        arrivals=arguments.arrivals,
    )
    return write(trace, arguments)
