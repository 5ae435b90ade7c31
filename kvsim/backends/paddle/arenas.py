"""Memory that is not Paddle's: of the host, pinned or not, and of a GPU."""

from __future__ import annotations

import mmap
import sys
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.backends.paddle.copier import CopyError
from kvsim.backends.region import MemoryKind, Region
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from kvsim.backends.paddle.cudart import Cuda

_PINNED: Final = 0
"""`cudaHostRegisterDefault`."""


class HostArena:
    """Anonymous memory of the host, zero, of which every page has been written once.

    Cold pages cost more than the copy: a page is mapped when it is first touched.

    Attributes
    ----------
    region
        The memory; it lives until the arena is closed, or nobody knows it any more.

    Raises
    ------
    ConfigError
        If the host refuses the memory.
    """

    def __init__(self, num_bytes: int) -> None:
        try:
            self._map = mmap.mmap(-1, max(num_bytes, 1))
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"the host refuses {num_bytes / 2**30:.1f} GiB of memory: {error}"
            ) from error
        if sys.platform == "linux":
            # Fewer, larger pages: faster to touch, and fewer to pin. Only advice.
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.bytes = np.frombuffer(self._map, np.uint8, num_bytes)
        self.bytes[:] = 0
        self.region = Region(self.bytes.ctypes.data, num_bytes, MemoryKind.HOST)
        self._cuda: Cuda | None = None

    def pin(self, cuda: Cuda) -> None:
        """Let the GPU copy to and from it by itself.

        Raises
        ------
        ConfigError
            If the host does not let so much be pinned.
        """
        cuda.use()
        try:
            cuda.call("cudaHostRegister", self.region.ptr, self.region.num_bytes, _PINNED)
        except CopyError as error:
            raise ConfigError(
                f"{self.region.num_bytes / 2**30:.1f} GiB of host memory cannot be pinned:"
                f" {error}; ask for fewer CPU blocks, or raise the limit (ulimit -l)"
            ) from error
        self._cuda = cuda

    def close(self) -> None:
        """Give the memory back to CUDA's keeping, not to the system: numpy may still see it."""
        if self._cuda is not None:
            self._cuda.call("cudaHostUnregister", self.region.ptr)
            self._cuda = None


class CudaArena:
    """Memory of a GPU, from `cudaMalloc`; zero.

    Attributes
    ----------
    region
        The memory; it lives until the arena is closed.

    Raises
    ------
    CopyError
        If the GPU has not got so much.
    """

    def __init__(self, cuda: Cuda, num_bytes: int) -> None:
        self._cuda = cuda
        cuda.use()
        (pointer,) = cuda.call("cudaMalloc", num_bytes)
        self._pointer: int | None = int(pointer)
        self.region = Region(int(pointer), num_bytes, MemoryKind.GPU)
        cuda.call("cudaMemset", self.region.ptr, 0, num_bytes)
        cuda.call("cudaDeviceSynchronize")  # our streams do not wait for the default one

    def close(self) -> None:
        """Free it. Idempotent."""
        if self._pointer is not None:
            self._cuda.call("cudaFree", self._pointer)
            self._pointer = None
