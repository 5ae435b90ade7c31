"""`kvsim check-policy`: `kvsim.testing.check_policy` on a policy of your own."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "hold an eviction policy to its contract"

_BROKEN: Final = 1


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "policy",
        metavar="POLICY",
        help="module:Name, path/to/file.py:Name, or the name of a policy",
    )
    parser.add_argument(
        "--traces", type=int, default=50, metavar="N", help="random traces; default: 50"
    )
    parser.add_argument(
        "--requests", type=int, default=40, metavar="N", help="requests in each; default: 40"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="another seed, other requests; default: 0"
    )
    parser.add_argument(
        "--waive",
        action="append",
        default=[],
        metavar="NAME",
        help="a finding that is meant to be: ignores-hits or cost; may be given twice",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value, no text")


def run(arguments: Namespace) -> int:
    """Check, print; return 1 if the policy breaks its contract, else 0."""
    from kvsim.custom_policy import find_policy
    from kvsim.testing import ConformanceError, check_policy

    try:
        report = check_policy(
            find_policy(arguments.policy),
            num_traces=arguments.traces,
            num_requests=arguments.requests,
            seed=arguments.seed,
            waive=arguments.waive,
        )
    except ConformanceError as error:
        if arguments.json:
            broken = {
                "policy": arguments.policy,
                "ok": False,
                "finding": str(error.finding),
                "problem": error.problem,
                "contract": error.contract,
            }
            print(json.dumps(broken))
        else:
            print(f"{arguments.policy} breaks its contract: {error.finding}", file=sys.stderr)
            print(f"  {error.problem}", file=sys.stderr)
            print(f"  contract: {error.contract}", file=sys.stderr)
        return _BROKEN
    if arguments.json:
        print(json.dumps({"ok": True, **report.to_dict(), "policy": arguments.policy}))
        return 0
    print(f"{arguments.policy} keeps its contract ({report.form} form)")
    for line in report.lines():
        print(f"  {line}")
    return 0
