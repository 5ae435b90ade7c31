"""A peer's memory, mapped into this process: of the host by its file, of a GPU by CUDA IPC."""

from __future__ import annotations

import importlib
import mmap
import os
import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from kvsim.backends.region import MemoryKind
from kvsim.backends.transports.memory import check_file, view_region
from kvsim.backends.transports.ports import TransportError
from kvsim.errors import ConfigError, KvsimError

if TYPE_CHECKING:
    from kvsim.backends.region import Region

_CUDA_HANDLE: Final = struct.Struct("!QQ64s")  # offset from the base, length, handle
MAX_OFFER_BYTES: Final = _CUDA_HANDLE.size


class WindowError(KvsimError, RuntimeError):
    """A peer's memory that cannot be mapped, or written."""


class Window(Protocol):
    """A way from this region into a peer's."""

    def write(self, source: int, target: int, num_bytes: int) -> None:
        """Copy bytes; they may be on their way until `finish` has returned."""

    def finish(self) -> None:
        """Wait until all that was written is there."""

    def close(self) -> None:
        """Unmap the peer's memory."""


class WindowMaker(Protocol):
    """One kind of memory: how to offer one's own, and how to map a peer's."""

    def offer(self) -> tuple[bytes, int | None]:
        """Return what a peer maps this region with: bytes, and a file to go with them."""

    def open(self, offer: bytes, file: int | None, num_bytes: int) -> Window:
        """Map a peer's region of this length. The file stays the caller's.

        Raises
        ------
        WindowError
            If it cannot be.
        """


class HostWindows:
    """Windows by memory files.

    Parameters
    ----------
    region
        Of this side.
    memory_file
        That it is a mapping of.

    Raises
    ------
    ConfigError
        If there is no file, or not one that is safe to map.
    """

    def __init__(self, region: Region, memory_file: int | None) -> None:
        if memory_file is None:
            raise ConfigError(
                "ipc needs host memory that peers can map: register a"
                " kvsim.backends.transports.MemoryFile (region, memory_file=its file)"
            )
        check_file(memory_file, region.num_bytes)
        self._source = view_region(region)
        self._file = memory_file

    def offer(self) -> tuple[bytes, int | None]:
        """See `WindowMaker`."""
        return b"", self._file

    def open(self, offer: bytes, file: int | None, num_bytes: int) -> Window:
        """See `WindowMaker`."""
        if file is None or offer:
            raise WindowError("the peer's memory is not on the host")
        try:
            check_file(file, num_bytes)
            return _HostWindow(self._source, mmap.mmap(file, num_bytes))
        except (ConfigError, OSError, ValueError) as error:
            raise WindowError(f"the peer's memory cannot be mapped: {error}") from error


class _HostWindow:
    def __init__(self, source: np.ndarray[Any, np.dtype[np.uint8]], target: mmap.mmap) -> None:
        self._source = source
        self._map = target
        self._target: np.ndarray[Any, np.dtype[np.uint8]] | None
        self._target = np.frombuffer(target, np.uint8)

    def write(self, source: int, target: int, num_bytes: int) -> None:
        assert self._target is not None
        # A copy within numpy, which lets the other threads run.
        self._target[target : target + num_bytes] = self._source[source : source + num_bytes]

    def finish(self) -> None:
        """Nothing is on its way."""

    def close(self) -> None:
        self._target = None
        self._map.close()


class CudaWindows:
    """Windows by CUDA IPC, between two processes. Not yet run on a GPU.

    Parameters
    ----------
    region
        Of this side.
    runtime, driver
        `cuda.bindings.runtime` and `.driver`, or what behaves like them.

    Raises
    ------
    ConfigError
        If the bindings are not installed.
    TransportError
        If CUDA does not know the memory.
    """

    def __init__(self, region: Region, *, runtime: Any = None, driver: Any = None) -> None:  # noqa: ANN401
        self._runtime = _load("runtime") if runtime is None else runtime
        self._driver = _load("driver") if driver is None else driver
        self._region = region
        (attributes,) = call_cuda(self._runtime, "cudaPointerGetAttributes", region.ptr)
        # A device is set for a thread: this is the one that will copy.
        call_cuda(self._runtime, "cudaSetDevice", attributes.device)
        flags = self._runtime.cudaStreamNonBlocking
        (self._stream,) = call_cuda(self._runtime, "cudaStreamCreateWithFlags", flags)

    def offer(self) -> tuple[bytes, int | None]:
        """Return the handle of the allocation that the region is in, and where in it.

        A handle is of a whole allocation: `cudaIpcOpenMemHandle` returns its base, wherever in it
        the pointer was that the handle was asked for.
        """
        base, _ = call_cuda(self._driver, "cuMemGetAddressRange", self._region.ptr)
        (handle,) = call_cuda(self._runtime, "cudaIpcGetMemHandle", self._region.ptr)
        offset = self._region.ptr - int(base)
        return _CUDA_HANDLE.pack(offset, self._region.num_bytes, bytes(handle.reserved)), None

    def open(self, offer: bytes, file: int | None, num_bytes: int) -> Window:
        """See `WindowMaker`."""
        if file is not None or len(offer) != _CUDA_HANDLE.size:
            raise WindowError("the peer's memory is not on a GPU")
        offset, length, raw = _CUDA_HANDLE.unpack(offer)
        if length != num_bytes:
            raise WindowError(f"the peer offers {length} bytes and has described {num_bytes}")
        handle = self._runtime.cudaIpcMemHandle_t()
        handle.reserved = raw
        flags = self._runtime.cudaIpcMemLazyEnablePeerAccess
        try:
            (base,) = call_cuda(self._runtime, "cudaIpcOpenMemHandle", handle, flags)
        except TransportError as error:
            raise WindowError(f"the peer's memory cannot be mapped: {error}") from error
        return _CudaWindow(self._runtime, self._stream, self._region.ptr, int(base), offset)


class _CudaWindow:
    def __init__(self, runtime: Any, stream: object, source: int, base: int, offset: int) -> None:  # noqa: ANN401
        self._runtime, self._stream = runtime, stream
        self._source, self._base, self._offset = source, base, offset

    def write(self, source: int, target: int, num_bytes: int) -> None:
        self._call(
            "cudaMemcpyAsync",
            self._base + self._offset + target,
            self._source + source,
            num_bytes,
            self._runtime.cudaMemcpyKind.cudaMemcpyDefault,
            self._stream,
        )

    def finish(self) -> None:
        self._call("cudaStreamSynchronize", self._stream)

    def close(self) -> None:
        # What is on its way must not arrive at memory that is mapped no more.
        self._call("cudaStreamSynchronize", self._stream)
        self._call("cudaIpcCloseMemHandle", self._base)

    def _call(self, name: str, *arguments: object) -> None:
        try:
            call_cuda(self._runtime, name, *arguments)
        except TransportError as error:
            raise WindowError(str(error)) from error


def call_cuda(library: Any, name: str, *arguments: object) -> tuple[Any, ...]:  # noqa: ANN401
    """Call a function of the bindings, which return an error code and then their results.

    Raises
    ------
    TransportError
        If the code is not that of success, which is 0 in both libraries.
    """
    error, *results = getattr(library, name)(*arguments)
    if int(error) != 0:
        raise TransportError(f"{name} failed: {error}")
    return tuple(results)


def make_windows(region: Region, memory_file: int | None) -> WindowMaker:
    """Return what maps memory of this region's kind."""
    if region.kind is MemoryKind.HOST:
        return HostWindows(region, memory_file)
    return CudaWindows(region)


def take_file(files: list[int]) -> int | None:
    """Return the one file that came with a message; close what else came."""
    for extra in files[1:]:
        os.close(extra)
    return files[0] if files else None


def _load(name: str) -> Any:  # noqa: ANN401  (the bindings have no types)
    try:
        return importlib.import_module(f"cuda.bindings.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            "ipc between GPUs needs cuda-bindings, which are not installed:"
            " pip install 'cuda-bindings' with the major version of your CUDA"
        ) from error
