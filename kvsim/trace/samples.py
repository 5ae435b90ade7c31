"""The traces that come with kvsim."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvsim.errors import TraceError, UnknownNameError
from kvsim.trace.base import Trace
from kvsim.trace.loading import load

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable
    from os import PathLike
    from typing import Unpack

    from kvsim.trace.loading import LoadOptions

SAMPLES = {"chat": "chat.jsonl", "rag": "rag.jsonl", "agents": "agents.jsonl"}
"""Name -> file, in the wheel's `kvsim/_traces` or in the checkout's `traces`."""

_PREFIX: Final = "sample:"


def load_sample(name: str = "chat", **options: Unpack[LoadOptions]) -> Trace:
    """Read a trace that comes with kvsim; `options` are those of `load`.

    Raises
    ------
    UnknownNameError
        If there is no sample of this name.
    TraceError
        If the installation lacks the file.
    """
    if name not in SAMPLES:
        raise UnknownNameError("sample trace", name, SAMPLES)
    with as_file(_location(SAMPLES[name])) as path:
        return load(path, **options)


def open_trace(trace: str | PathLike[str] | Trace) -> Trace:
    """Return a trace that is loaded, or read the one at a path or of a name `"sample:..."`.

    Raises
    ------
    UserError
        If it cannot be read, or there is no such sample.
    """
    if isinstance(trace, Trace):
        return trace
    if isinstance(trace, str) and trace.startswith(_PREFIX):
        return load_sample(trace.removeprefix(_PREFIX))
    return load(trace)


def _location(file_name: str) -> Traversable:
    installed = files("kvsim") / "_traces" / file_name
    if installed.is_file():
        return installed
    checkout = Path(__file__).resolve().parents[2] / "traces" / file_name
    if not checkout.is_file():
        raise TraceError("this sample is missing from the installation of kvsim", path=file_name)
    return checkout
