"""Read gzip and zstd as if they were not there, and write them so that equal data give equal bytes.

gzip is the standard library's; zstd is pyarrow's, which kvsim depends on for its tables anyway.
"""

from __future__ import annotations

import gzip
import zlib
from contextlib import contextmanager
from hashlib import sha256
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHUNK_BYTES: Final = 1 << 18

_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_STEP_BYTES: Final = 1 << 16  # what is lost before a place where data are damaged


class DamagedError(Exception):
    """Compressed data that end too early or make no sense."""


class HashedFile(RawIOBase):
    """A file on disk whose bytes are hashed and counted as they are read."""

    def __init__(self, path: Path, progress: Callable[[int, int], None] | None = None) -> None:
        self._file = path.open("rb", buffering=0)
        self._hash = sha256()
        self._num_read = 0
        self._progress = progress
        self._num_bytes = path.stat().st_size if progress else 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Read into `buffer`; return how many bytes."""
        num_bytes = self._file.readinto(buffer) or 0
        self._hash.update(memoryview(buffer)[:num_bytes])
        if self._progress and num_bytes:
            self._num_read += num_bytes
            self._progress(self._num_read, max(self._num_bytes, self._num_read))
        return num_bytes

    def rest_sha256(self) -> str:
        """Read what is left and return the hash of all bytes."""
        while self.read(CHUNK_BYTES):
            pass
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


class _Pieces(RawIOBase):
    """Bytes that were read ahead, then what `read` gives; errors become `DamagedError`."""

    def __init__(self, head: bytes, read: Callable[[int], bytes], kind: str) -> None:
        self._head = head
        self._read = read
        self._kind = kind

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Read into `buffer`; return how many bytes."""
        if self._head:
            piece, self._head = self._head[: len(buffer)], self._head[len(buffer) :]
        else:
            piece = _next_piece(self._read, min(len(buffer), _STEP_BYTES), self._kind)
        buffer[: len(piece)] = piece
        return len(piece)


@contextmanager
def decompressed(file: HashedFile, num_head_bytes: int) -> Iterator[tuple[RawIOBase, bytes]]:
    """Give what `file` contains, decompressed if its first bytes say so, and the beginning of that.

    Raises
    ------
    DamagedError
        If compressed data are cut short or make no sense; also while reading from the stream.
    """
    outer = BufferedReader(file, CHUNK_BYTES)
    magic = outer.peek(4)[:4]
    kind, read = "", outer.read1
    if magic.startswith(_GZIP_MAGIC):
        kind, read = "gzip", gzip.GzipFile(fileobj=outer).read1
    elif magic == _ZSTD_MAGIC:
        import pyarrow as pa  # slow to import, and rarely needed

        kind, read = "zstd", pa.CompressedInputStream(pa.PythonFile(outer, mode="r"), "zstd").read
    head = b""
    while len(head) < num_head_bytes:
        piece = _next_piece(read, _STEP_BYTES, kind)
        if not piece:
            break
        head += piece
    yield _Pieces(head, read, kind), head


def compressed(data: bytes, suffix: str) -> bytes:
    """Return `data` as a file with the ending `suffix` has them: .gz, .zst, or anything else."""
    if suffix == ".gz":
        return gzip.compress(data, mtime=0)
    if suffix == ".zst":
        import pyarrow as pa

        return bytes(pa.compress(data, codec="zstd", asbytes=True))
    return data


def _next_piece(read: Callable[[int], bytes], num_bytes: int, kind: str) -> bytes:
    try:
        return read(num_bytes)
    except (EOFError, zlib.error, OSError) as error:
        if not kind:
            raise
        if isinstance(error, OSError) and error.errno is not None:  # the disk, not the data
            raise
        problem = "cut short" if _is_cut(error) else f"damaged: {error}"
        raise DamagedError(f"the {kind} data are {problem}") from error


def _is_cut(error: Exception) -> bool:
    return isinstance(error, EOFError) or "Truncated" in str(error)
