"""`kvsim trace fetch`: `kvsim.trace.fetch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "download a public trace and check its content"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="the trace; without it: a list")
    parser.add_argument("--to", metavar="DIR", default=".", help="folder; default: the current one")


def run(arguments: Namespace) -> int:
    """Download, or list what there is; return the exit code."""
    from kvsim.cli.terminal import progress_bar
    from kvsim.trace.fetching import PUBLIC_TRACES, fetch

    if arguments.name is None:
        for name, public in PUBLIC_TRACES.items():
            print(f"{name}: {public.about} ({public.licence})\n    {public.address}")
        return 0
    with progress_bar("fetch") as progress:
        file = fetch(arguments.name, arguments.to, progress=progress)
    public = PUBLIC_TRACES[arguments.name]
    print(f"{file}: {public.about}. Licence: {public.licence}")
    return 0
