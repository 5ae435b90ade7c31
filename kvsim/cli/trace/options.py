"""What every `kvsim trace` command that reads has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from kvsim.trace import Trace

_SAMPLE_PREFIX: Final = "sample:"
_OPTIONS: Final[dict[str, tuple[Callable[[str], object], str, str]]] = {
    "format": (str, "NAME", "format of the file; default: found from its content"),
    "partial": (str, "NAME", "a last block that is not full: count or never; default: by format"),
    "limit": (int, "N", "read only the first so many rows"),
    "block_size": (
        int,
        "N",
        "tokens a block; ids that stand for more are cut; default: the file's",
    ),
    "id_tokens": (int, "N", "tokens an id of the file stands for, if it does not say"),
    "sharing": (str, "MODEL", "what prompts share in a file of lengths: zipf:... or turns:..."),
    "arrivals": (str, "MODEL", "when requests arrive if the file does not say: poisson:..."),
    "tokenizer": (str, "FILE", "tokenizer.json for a file of text; default: a token a byte"),
}


def add_reading(parser: ArgumentParser, *, several: bool = False) -> None:
    """Add the trace, or traces, to be read and how; an option that is not given is None."""
    about = "a trace file or folder, also compressed, or sample:chat"
    if several:
        parser.add_argument("traces", metavar="TRACE", nargs="+", help=about)
    else:
        parser.add_argument("trace", metavar="TRACE", help=about)
    group = parser.add_argument_group("reading")
    for name, (kind, metavar, text) in _OPTIONS.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text)


def add_writing(parser: ArgumentParser) -> None:
    """Add the file to be written."""
    parser.add_argument(
        "--out",
        metavar="FILE",
        required=True,
        help="to write: .parquet for a table, else JSON Lines; with .gz or .zst compressed",
    )


def read(path: str, arguments: Namespace) -> Trace:
    """Return the trace at `path`, read as the arguments say, with a bar on a terminal."""
    from kvsim.cli.terminal import progress_bar
    from kvsim.trace import load, load_sample

    options = {name: getattr(arguments, name) for name in _OPTIONS}
    if path.startswith(_SAMPLE_PREFIX):
        return load_sample(path.removeprefix(_SAMPLE_PREFIX), **options)
    with progress_bar("read") as progress:
        return load(path, progress=progress, **options)


def write(trace: Trace, arguments: Namespace) -> int:
    """Write a trace and say what was done; return the exit code."""
    from kvsim.trace import write as write_trace

    write_trace(trace, arguments.out)
    for note in trace.repairs:
        print(f"note: {note}")
    print(f"{trace.num_requests} requests written to {arguments.out}")
    return 0
