"""`kvsim rerun`: is a recorded run decided alike by this core? The rest is `kvsim.recording`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from kvsim.cli.observing import add_perfetto_argument

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "replay a recording through the core: is every decision the same?"

_DIFFERENT: Final = 1


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("recording", metavar="FILE", help="a recording of a run")
    parser.add_argument(
        "--policy", metavar="NAME", help="eviction policy; default: the one of the recording"
    )
    add_perfetto_argument(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON value, no text")


def run(arguments: Namespace) -> int:
    """Rerun, print; return 1 if a decision is different, else 0."""
    from kvsim.recording import rerun
    from kvsim.saving import check_file

    if arguments.perfetto is not None:
        check_file(arguments.perfetto)
    again = rerun(arguments.recording, policy=arguments.policy, keep=arguments.perfetto is not None)
    if again.kept is not None:
        again.kept.perfetto(arguments.perfetto)
    if arguments.json:
        figures = {
            "turns": again.turns,
            "identical": again.identical,
            "difference": again.difference,
            "ended_well": again.ended_well,
        }
        print(json.dumps(figures))
    else:
        if again.failure is not None:
            text = " ".join(again.failure.text.split())
            print(f"the recorded run ended with {again.failure.kind}: {text}")
        print(f"{again.turns} turns: {again.difference or 'every decision is the same'}")
    return 0 if again.identical else _DIFFERENT
