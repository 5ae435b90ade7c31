"""`kvsim doctor`: what is installed, and what to install for what; the rest is `kvsim.doctor`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "say what is installed and works on this machine, and what to install for what"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--json", action="store_true", help="print one JSON value, no table")


def run(arguments: Namespace) -> int:
    """Look, print; return 1 if something is broken, else 0."""
    from kvsim.installation import doctor

    found = doctor()
    if arguments.json:
        print(json.dumps(found.to_dict(), sort_keys=True))
    else:
        print(found)
    return 1 if found.is_broken else 0
