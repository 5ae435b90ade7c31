"""What this process holds, as far as a backend may leave some of it behind."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

_PROC = Path("/proc")
_SHARED_MEMORY = Path("/dev/shm")


def belongings() -> set[tuple[str, object]]:
    """Return the threads, child processes, shared memory segments and open files, each as a pair.

    (what it is for people, what it is for comparison). Threads by `threading`; the rest where the
    operating system shows it as files: nothing of it elsewhere. A segment named after another
    process that lives is that one's.
    """
    held: set[tuple[str, object]] = {
        (f"thread {thread.name!r}", thread) for thread in threading.enumerate()
    }
    children = _children()
    held |= {(f"child process {pid}", pid) for pid in children}
    own = {os.getpid(), *children}
    held |= {
        (f"/dev/shm/{name}", name) for name in _names(_SHARED_MEMORY) if not _is_elses(name, own)
    }
    for name in _names(_PROC / "self" / "fd"):
        try:
            target = (_PROC / "self" / "fd" / name).readlink()
        except OSError:
            continue  # the one that the folder was read through
        held.add((f"file descriptor {name} ({target})", (name, target)))
    return held


def _children() -> list[int]:
    own = str(os.getpid())
    return [int(name) for name in _names(_PROC) if name.isdigit() and _parent(name) == own]


def _is_elses(name: str, own: set[int]) -> bool:
    """Whether a segment is named after a process that lives and is none of `own`."""
    named = {int(digits) for digits in re.findall(r"\d{2,7}", name)}
    return any((_PROC / str(pid)).exists() for pid in named - own)


def _parent(pid: str) -> str:
    """Return the parent of a process; nothing if it has ended meanwhile.

    `/proc/PID/stat` has the program's name in brackets, which may hold anything, then the state,
    then the parent.
    """
    try:
        stat = (_PROC / pid / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[1]


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []
