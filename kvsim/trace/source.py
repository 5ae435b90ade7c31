"""A trace file while it is read: decompressed, numbered lines, its hash, errors that say where."""

from __future__ import annotations

from contextlib import contextmanager
from hashlib import sha256
from io import BufferedReader
from typing import TYPE_CHECKING

from kvsim.errors import TraceError
from kvsim.trace.compression import CHUNK_BYTES, DamagedError, HashedFile, decompressed
from kvsim.trace.paths import os_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HEAD_BYTES = 1 << 16
"""How much of a file decides about its format."""

MAX_LINE_BYTES = 1 << 26
"""The longest line that is read: 64 MiB, ten times a prompt of a million token ids."""

MAX_DOCUMENT_BYTES = 1 << 28
"""The largest file that is read as one JSON value: 256 MiB."""

_BOM = b"\xef\xbb\xbf"
_FOLDER_SUFFIXES = (".json", ".json.gz", ".json.zst")


class Source:
    """One open file, read once.

    Iterating gives the lines that are not blank, decoded, and sets `line` to the number (from 1)
    of the line given last; `error` uses it.
    """

    def __init__(self, path: Path, stream: BufferedReader, file: HashedFile) -> None:
        self.path = path
        self.line: int | None = None
        self._stream = stream
        self._file = file

    def __iter__(self) -> Iterator[str]:
        """Yield the decoded lines that are not blank.

        Raises
        ------
        TraceError
            At a line that is not UTF-8 text, or too long.
        """
        return map(self.text_of, self.raw_lines())

    def raw_lines(self) -> Iterator[bytes]:
        """Yield the lines that are not blank as they are in the file, without a byte order mark.

        Raises
        ------
        TraceError
            At a line that is too long, and where compressed data are damaged or cut short.
        """
        read_line = self._stream.readline
        number = 0
        try:
            while raw := read_line(MAX_LINE_BYTES):
                number += 1
                if number == 1:
                    raw = raw.removeprefix(_BOM)
                if raw.isspace() or not raw:
                    continue
                self.line = number
                if len(raw) == MAX_LINE_BYTES:
                    raise self.error(f"a line of more than {MAX_LINE_BYTES >> 20} MiB")
                yield raw
        except DamagedError as error:
            self.line = number + 1
            raise self.error(str(error)) from error

    def text_of(self, raw: bytes) -> str:
        """Return the text of one line, else raise `TraceError`."""
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            problem = f"not UTF-8 text: byte 0x{raw[error.start]:02x} at {error.start}"
            raise self.error(problem) from error

    def read(self, num_bytes: int) -> bytes:
        """Return the next `num_bytes` of the file, fewer at its end.

        Raises
        ------
        TraceError
            Where compressed data are damaged or cut short.
        """
        pieces = []
        try:
            # piece by piece: asked for all at once, a buffer of that size is made first
            while num_bytes and (piece := self._stream.read(min(num_bytes, CHUNK_BYTES))):
                num_bytes -= len(piece)
                pieces.append(piece)
        except DamagedError as error:
            raise self.error(str(error)) from error
        return b"".join(pieces)

    def document(self) -> str:
        """Return the whole file as text.

        Raises
        ------
        TraceError
            If it is larger than `MAX_DOCUMENT_BYTES` or not UTF-8.
        """
        whole = self.read(MAX_DOCUMENT_BYTES + 1).removeprefix(_BOM)
        if len(whole) > MAX_DOCUMENT_BYTES:
            raise self.error(f"one JSON value of more than {MAX_DOCUMENT_BYTES >> 20} MiB")
        try:
            return whole.decode()
        except UnicodeDecodeError as error:
            self.line = whole.count(b"\n", 0, error.start) + 1
            raise self.error(f"not UTF-8 text: byte 0x{whole[error.start]:02x}") from error

    def members(self) -> Iterator[Source]:
        """Yield the files that belong together: this one, or those of a folder, by their names."""
        yield self

    def error(self, problem: str) -> TraceError:
        """Return an error about the current line."""
        return TraceError(problem, path=self.path, line=self.line)

    def sha256(self) -> str:
        """Read what is left of the file and return the hash of all its bytes, as they are on disk.

        Of a folder: the hash of the names and hashes of the files that were read.
        """
        return self._file.rest_sha256()


class FolderSource(Source):
    """The JSON files of a folder, for formats that have one file a conversation."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = None
        self._hash = sha256()

    def raw_lines(self) -> Iterator[bytes]:
        """Raise `TraceError`: the lines of several files are no trace."""
        raise self.error("a directory; name a file in it")

    def read(self, num_bytes: int) -> bytes:
        """Raise `TraceError`, as `raw_lines` does."""
        del num_bytes
        raise self.error("a directory; name a file in it")

    def members(self) -> Iterator[Source]:
        """Yield the files of the folder that end in .json, also compressed, by their names."""
        for file in _files_in(self.path):
            with open_source(file) as (source, _):
                yield source
                self._hash.update(f"{file.name}\0{source.sha256()}\n".encode())

    def sha256(self) -> str:
        """Return the hash of the names and hashes of the files that were read."""
        return self._hash.hexdigest()


@contextmanager
def open_source(
    path: Path, *, progress: Callable[[int, int], None] | None = None
) -> Iterator[tuple[Source, bytes]]:
    """Open a file or folder; give its `Source` and its first bytes, decompressed.

    `progress` is called with (bytes read, bytes in all) now and then; both as they are on disk.

    Raises
    ------
    TraceError
        In place of each `OSError`, also of one that is raised while the file is being read.
    """
    try:
        if path.is_dir():
            files = _files_in(path)
            if not files:
                raise TraceError("a directory; name a file in it", path=path)
            with open_source(files[0]) as (_, head):
                pass
            yield FolderSource(path), head
            return
        with HashedFile(path, progress) as file, decompressed(file, HEAD_BYTES) as (stream, head):
            yield Source(path, BufferedReader(stream, CHUNK_BYTES), file), head
    except DamagedError as error:
        raise TraceError(str(error), path=path) from error
    except OSError as error:
        raise TraceError(os_problem(error), path=path) from error


def _files_in(folder: Path) -> list[Path]:
    files = (each for each in folder.iterdir() if each.name.endswith(_FOLDER_SUFFIXES))
    return sorted(each for each in files if each.is_file())
