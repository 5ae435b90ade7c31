"""`kvsim check-transport`: `kvsim.testing.transports.check_transport` on a transport."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from kvsim.errors import UserError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "hold a transport to its contract, within a process and between two"

_BROKEN: Final = 1


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "transport",
        metavar="TRANSPORT",
        help="ipc, tcp, rdma, one of an installed package, or module:function",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds that what must come is waited for; default: 30",
    )


def run(arguments: Namespace) -> int:
    """Check, print; return 1 if the transport breaks its contract, else 0."""
    from kvsim.testing.transports import TransportContractError, check_transport

    if not arguments.patience > 0:
        raise UserError(f"--patience must be positive, not {arguments.patience:g}")
    try:
        report = check_transport(arguments.transport, patience_s=arguments.patience)
    except TransportContractError as error:
        print(f"{arguments.transport} breaks its contract: {error.problem}", file=sys.stderr)
        print(f"  contract: {error.sentence}", file=sys.stderr)
        return _BROKEN
    print(report)
    return 0
