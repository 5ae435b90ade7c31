"""Where a result comes from: what changes from machine to machine, kept apart from the figures."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from kvsim.version import __version__

_PACKAGE: Final = Path(__file__).resolve().parent
_COMMIT: Final = re.compile(r"[0-9a-f]{40,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The code, the data and the time that a result took.

    Parameters
    ----------
    kvsim_version, git_commit, python_version
        The commit is None unless kvsim runs from its checkout; changes not committed do not show.
    trace, trace_sha256
        What was asked for, and the hash of the file's bytes; None for a trace made in Python.
    run_s, wall_s
        Seconds that the replay itself took, and with the reading of the trace.
    """

    kvsim_version: str = __version__
    git_commit: str | None
    python_version: str
    trace: str
    trace_sha256: str | None
    run_s: float
    wall_s: float


def provenance(*, trace: str, trace_sha256: str | None, run_s: float, wall_s: float) -> Provenance:
    """Return the provenance of a result that this process has made."""
    return Provenance(
        git_commit=git_commit(_PACKAGE.parent),
        python_version=platform.python_version(),
        trace=trace,
        trace_sha256=trace_sha256,
        run_s=round(run_s, 6),
        wall_s=round(wall_s, 6),
    )


@cache
def git_commit(root: Path) -> str | None:
    """Return the commit that is checked out at `root`; None if that is not a git checkout.

    Reads git's files, so that neither git nor a process is needed.
    """
    try:
        folder = root / ".git"
        if folder.is_file():  # a worktree or submodule: "gitdir: <path>"
            folder = root / folder.read_text(encoding="utf-8").partition(":")[2].strip()
        head = (folder / "HEAD").read_text(encoding="utf-8").strip()
        if head.startswith("ref: "):
            head = _resolve(folder, head.removeprefix("ref: "))
    except (OSError, UnicodeDecodeError):
        return None
    return head if _COMMIT.fullmatch(head) else None


def _resolve(folder: Path, ref: str) -> str:
    shared = folder / "commondir"
    common = folder / shared.read_text(encoding="utf-8").strip() if shared.is_file() else folder
    for place in (folder, common):
        if (place / ref).is_file():
            return (place / ref).read_text(encoding="utf-8").strip()
    for line in (common / "packed-refs").read_text(encoding="utf-8").splitlines():
        commit, _, name = line.partition(" ")
        if name == ref:
            return commit
    return ""
