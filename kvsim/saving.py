"""Write files, one or a folder of them, so that none is ever seen half written."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from os import PathLike


def check_folder(path: str | PathLike[str]) -> Path:
    """Return `path` if a result could be saved there; changes nothing.

    Raises
    ------
    UserError
        If it is a file, or it or its nearest existing parent cannot be written to.
    """
    folder = Path(path)
    if not str(path) or "\0" in str(path):
        raise UserError(f"{str(path)!a}: not the name of a folder")
    try:
        nearest = next(each for each in _and_parents(folder) if each.exists())
        is_folder = nearest.is_dir()
    except OSError as error:  # a folder on the way is locked, or a name is too long
        raise _problem(folder, error) from error
    if not is_folder:
        what = "it" if nearest == folder.absolute() else str(nearest)
        raise UserError(f"{folder}: cannot save there: {what} is a file; name a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"{folder}: cannot save there: no permission to write to {nearest}")
    return folder


@contextmanager
def new_files(path: str | PathLike[str], *, last: str) -> Iterator[Path]:
    """Give an empty folder; when the block ends well, the files in it go to the folder `path`.

    Until then nothing at `path` changes, and if the block raises nothing is left there. Each file
    is renamed into place, over one that has its name; the file named `last` goes last, so whoever
    sees it sees them all.

    Raises
    ------
    UserError
        If `path` cannot be written to.
    """
    folder = check_folder(path)
    undo: list[Callable[[], None]] = []
    try:
        for missing in reversed([each for each in _and_parents(folder) if not each.exists()]):
            missing.mkdir(exist_ok=True)
            undo.append(missing.rmdir)  # fails, and should, if others have put something in it
        with tempfile.TemporaryDirectory(prefix=".kvsim-", dir=folder) as temporary:
            yield Path(temporary)
            for file in sorted(Path(temporary).iterdir(), key=lambda each: each.name == last):
                target = folder / file.name
                if not target.exists():
                    undo.append(target.unlink)
                file.replace(target)
        undo.clear()
    except OSError as error:
        raise _problem(folder, error) from error
    finally:
        for step in reversed(undo):
            with suppress(OSError):
                step()


def write_lines(path: str | PathLike[str], lines: Iterable[str]) -> None:
    """Write a text file, which appears at `path` when it is complete. Lines bring their ends.

    Raises
    ------
    UserError
        If `path` is a folder, or cannot be written to.
    """
    file = check_file(path)
    with (
        new_files(file.absolute().parent, last=file.name) as folder,
        (folder / file.name).open("w", encoding="utf-8", newline="\n") as stream,
    ):
        stream.writelines(lines)


def write_json(file: Path, value: object) -> None:
    """Write a value as JSON for people to read, with sorted keys; for a folder of `new_files`."""
    text = json.dumps(value, sort_keys=True, allow_nan=False, indent=2)
    file.write_text(f"{text}\n", encoding="utf-8")


def check_file(path: str | PathLike[str]) -> Path:
    """Return `path` if a file could be written there; changes nothing.

    Raises
    ------
    UserError
        If it is a folder, or its folder cannot be written to.
    """
    file = Path(path)
    if "\0" in str(path):
        raise UserError(f"{str(path)!a}: not the name of a file")
    if file.is_dir():
        raise UserError(f"{file}: cannot save there: it is a folder; name a file")
    check_folder(file.absolute().parent)
    return file


def _problem(folder: Path, error: OSError) -> UserError:
    return UserError(f"{folder}: cannot save there: {error.strerror or error}")


def _and_parents(folder: Path) -> list[Path]:
    whole = folder.absolute()
    return [whole, *whole.parents]
