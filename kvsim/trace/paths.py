"""Names of files, and what to say when one cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.errors import TraceError

if TYPE_CHECKING:
    from os import PathLike


def checked_path(path: str | PathLike[str]) -> Path:
    """Return `path` if a file can have such a name, else raise `TraceError`."""
    file = Path(path)
    if not file.name or "\0" in str(file):
        raise TraceError("not the name of a file", path=ascii(str(path)))
    return file


def os_problem(error: OSError, *, doing: str = "read") -> str:
    """Return what to tell the user about an `OSError` met while a file was being read."""
    match error:
        case FileNotFoundError():
            return "no such file or directory"
        case IsADirectoryError():
            return "a directory; name a file in it"
        case PermissionError():
            return f"cannot be {doing}: no permission"
    return f"cannot be {doing}: {error.strerror or error}"
