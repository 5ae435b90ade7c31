"""Host memory that other processes can map, and memory of others looked at as an array."""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvsim.backends.region import MemoryKind, Region
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from types import TracebackType

Bytes: TypeAlias = NDArray[np.uint8]


class MemoryFile:
    """Zeroed memory that is a file of no name, whose descriptor can be handed to a process.

    It is gone with the last descriptor and mapping, however its processes end. Not Python's
    `SharedMemory`: that has a name, which outlives a killed owner and which the exit of any process
    that looked at it removes (Python 3.11).

    Parameters
    ----------
    num_bytes
        Length.

    Attributes
    ----------
    region
        The memory. Every page has been written once, so that no copy pays for the first touch.

    Raises
    ------
    ConfigError
        If the length is not positive, or the system has no such files.
    """

    def __init__(self, num_bytes: int) -> None:
        if num_bytes <= 0:
            raise ConfigError(f"a memory file has one byte or more, not {num_bytes}")
        import fcntl  # not on every system, as memory files are not

        if not hasattr(os, "memfd_create"):
            raise ConfigError("memory for other processes needs memfd_create, which Linux has")
        self._file: int | None = os.memfd_create("kvsim", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with ExitStack() as undo:
            undo.callback(os.close, self._file)
            os.ftruncate(self._file, num_bytes)
            # Who has mapped it is killed (SIGBUS) by a touch beyond an end that was moved.
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self._map = mmap.mmap(self._file, num_bytes)
            undo.pop_all()
        self._bytes: Bytes | None = np.frombuffer(self._map, np.uint8)
        self._bytes[:] = 0
        self.region = Region(self._bytes.ctypes.data, num_bytes, MemoryKind.HOST)

    @property
    def file(self) -> int:
        """The descriptor, of this process."""
        if self._file is None:
            raise ValueError("this memory file is closed")
        return self._file

    @property
    def bytes(self) -> Bytes:
        """The memory as an array. No view of it may be left when it is closed."""
        if self._bytes is None:
            raise ValueError("this memory file is closed")
        return self._bytes

    def close(self) -> None:
        """Give the memory back, unless others have mapped it; may be called again.

        Raises
        ------
        BufferError
            If a view of `bytes` is left, which would read memory that is not there.
        """
        self._bytes = None
        self._map.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> MemoryFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


def check_file(file: int, num_bytes: int) -> None:
    """Raise `ConfigError` unless a file has `num_bytes` bytes, and always will."""
    import fcntl

    found = os.fstat(file).st_size
    if found != num_bytes:
        raise ConfigError(f"the memory file of a region of {num_bytes} bytes has {found} bytes")
    try:
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    except OSError:  # a file on a disk
        seals = 0
    if not seals & fcntl.F_SEAL_SHRINK:
        raise ConfigError(
            "the memory file of a region can be cut short, which kills whoever has mapped it:"
            " take a kvsim.backends.transports.MemoryFile, or seal yours against shrinking"
        )


def view_region(region: Region) -> Bytes:
    """Return host memory as an array, without a copy and without keeping it alive.

    Raises
    ------
    ConfigError
        If it is not host memory.
    """
    if region.kind is not MemoryKind.HOST:
        raise ConfigError(f"this transport moves memory of the host, not of kind {region.kind}")
    memory = (ctypes.c_ubyte * region.num_bytes).from_address(region.ptr)
    return np.ctypeslib.as_array(memory)
