"""A trace file while it is read: numbered lines, its hash, JSON values, errors that say where."""

from __future__ import annotations

import json
from contextlib import contextmanager
from hashlib import sha256
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeGuard

from kvsim.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

LARGEST_NUMBER = 1 << 53
"""The largest number a trace may contain: above it, other JSON tools lose digits.

Source: RFC 8259, section 6 (interoperable integers).
"""

_HEAD_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_MAX_SHOWN = 40
_MAX_FIELDS_SHOWN = 8


class Source:
    """The lines of one open file, read once.

    Iterating gives the lines that are not blank, decoded, and sets `line` to the number (from 1)
    of the line given last; `error` uses it.
    """

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path = path
        self.line: int | None = None
        self._stream = stream
        self._hash = sha256()

    def __iter__(self) -> Iterator[str]:
        """Yield the decoded lines that are not blank.

        Raises
        ------
        TraceError
            At a line that is not UTF-8 text.
        """
        for number, raw in enumerate(self._stream, start=1):
            self._hash.update(raw)
            line = raw.removeprefix(_BOM) if number == 1 else raw
            if line.isspace() or not line:
                continue
            self.line = number
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                problem = f"not UTF-8 text: byte 0x{line[error.start]:02x} at {error.start}"
                raise self.error(gzip_problem(raw) or problem) from error

    def error(self, problem: str) -> TraceError:
        """Return an error about the current line."""
        return TraceError(problem, path=self.path, line=self.line)

    def sha256(self) -> str:
        """Read what is left of the file and return the hash of all its bytes."""
        while piece := self._stream.read(_HEAD_BYTES):
            self._hash.update(piece)
        return self._hash.hexdigest()


@contextmanager
def open_source(path: Path) -> Iterator[tuple[Source, bytes]]:
    """Open a file; give its `Source` and its first bytes, at most 1 MiB.

    Raises
    ------
    TraceError
        In place of each `OSError`, also of one that is raised while the file is being read.
    """
    try:
        with BufferedReader(path.open("rb", buffering=0), _HEAD_BYTES) as stream:
            yield Source(path, stream), stream.peek(_HEAD_BYTES)
    except OSError as error:
        raise TraceError(os_problem(error), path=path) from error


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


def gzip_problem(head: bytes) -> str | None:
    """Return what to tell the user if a file that begins with `head` is compressed."""
    if head.startswith(_GZIP_MAGIC):
        return "compressed with gzip, which is not supported yet; decompress it first"
    return None


def parse_object(source: Source, text: str) -> dict[str, object]:
    """Return the JSON object on one line.

    Raises
    ------
    TraceError
        If the line is not one JSON object, or contains NaN or Infinity.
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        cut = "" if text.endswith("\n") else "; the file seems to be cut short"
        raise source.error(f"not valid JSON: {error.msg} at column {error.colno}{cut}") from error
    except _NotJsonError as error:
        raise source.error(str(error)) from error
    except ValueError as error:
        raise source.error("not valid JSON: a number with too many digits") from error
    except RecursionError as error:
        raise source.error("not a trace row: brackets are nested too deeply") from error
    if type(value) is not dict:
        raise source.error(f"a row must be a JSON object, not {shown(value)}")
    return value


def required(source: Source, record: dict[str, object], field: str) -> object:
    """Return the value of a field that must be there."""
    if field not in record:
        found = ", ".join(map(shown, list(record)[:_MAX_FIELDS_SHOWN])) or "none"
        raise source.error(f"field {field!r} is missing; fields seen: {found}")
    return record[field]


def whole_number(
    source: Source, record: dict[str, object], field: str, *, least: int, unit: str = ""
) -> int:
    """Return the value of a field that must be a whole number from `least` to `LARGEST_NUMBER`."""
    value = required(source, record, field)
    if type(value) is not int or not least <= value <= LARGEST_NUMBER:
        of = f" of {unit}" if unit else ""
        raise source.error(
            f"{field} must be a whole number{of} from {least} to 2**53, not {shown(value)}"
        )
    return value


def optional_text(source: Source, field: str, value: object) -> str | None:
    """Return `value` if it is None or text that can be written again, else raise."""
    if value is None or is_text(value):
        return value
    raise source.error(f"{field} must be text, not {shown(value)}")


def is_text(value: object) -> TypeGuard[str]:
    """Return whether `value` is a string without lone surrogates, which no file can hold."""
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_id(value: object) -> TypeGuard[int]:
    """Return whether `value` is a whole number from 0 to `LARGEST_NUMBER`."""
    return type(value) is int and 0 <= value <= LARGEST_NUMBER


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether `value` is a number from 0 to `LARGEST_NUMBER`."""
    return (type(value) is int or type(value) is float) and 0 <= value <= LARGEST_NUMBER


def shown(value: object) -> str:
    """Return a short form of any JSON value, on one line, for messages."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int) and abs(value) >= 10**_MAX_SHOWN:
        return f"a number of more than {_MAX_SHOWN} digits"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


class _NotJsonError(ValueError):
    """Python's decoder accepts it, JSON does not."""


def _refuse(constant: str) -> object:
    raise _NotJsonError(f"{constant} is not a number; a trace has finite numbers only")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
