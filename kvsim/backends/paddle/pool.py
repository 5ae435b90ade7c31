"""The memory of one tier on one rank: one arena of bytes, made by Paddle."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvsim.backends.paddle.arenas import HostArena
from kvsim.backends.paddle.cudart import Cuda
from kvsim.backends.paddle.layout import Layout, PoolLayout
from kvsim.backends.paddle.runtime import device_index, find_place, load_paddle
from kvsim.backends.region import MemoryKind, Region
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from kvsim.backends.paddle.shape import KVShape

_USABLE_PERCENT: Final = 80  # the rest is for the engine, the trace, and everybody else
_MEMINFO: Final = Path("/proc/meminfo")


class KVPool:
    """`num_blocks` blocks of one shape in one uint8 tensor of Paddle's, filled with zeros.

    Every page of it has been written once, so that no copy pays for the first touch.

    Parameters
    ----------
    shape
        Of a block on this rank.
    device
        "cpu" or "gpu:N".
    layout
        The order of the memory.

    Attributes
    ----------
    layout
        Where the pieces of a block are.
    region
        The memory; it lives as long as the pool.

    Raises
    ------
    ConfigError
        If the device is not there.
    """

    def __init__(
        self,
        shape: KVShape,
        num_blocks: int,
        *,
        device: str = "cpu",
        layout: Layout = Layout.BLOCK_MAJOR,
    ) -> None:
        self.layout = PoolLayout(shape, num_blocks, layout)
        num_bytes = self.layout.num_bytes
        zeros = np.zeros(num_bytes, np.uint8)
        paddle, place = load_paddle(), find_place(device)
        self._arena = paddle.to_tensor(zeros, place=place)
        kind = MemoryKind.HOST
        if device != "cpu":
            kind = MemoryKind.GPU
            # The zeros travel on Paddle's stream, and our copies on another: they must be there.
            paddle.device.synchronize(place)
        self.region = Region(self._arena.data_ptr(), num_bytes, kind)

    def words(self) -> Any:  # noqa: ANN401  (Paddle has no types)
        """Return the whole arena as words of 64 bits, without a copy."""
        return self._arena.view("int64")

    def tensors(self) -> list[Any]:
        """Return the sections of the pool as Paddle sees them, without a copy.

        One, or a second one of extra layers that have more blocks; see `PoolLayout.dimensions`.
        """
        values, found = self._arena.view(self.layout.shape.dtype), []
        first = 0
        for section in self.layout.sections:
            dimensions = self.layout.dimensions(section)
            found.append(values[first : first + prod(dimensions)].reshape(dimensions))
            first += prod(dimensions)
        return found


class PinnedPool:
    """`num_blocks` blocks in memory of the host that a GPU copies to and from by itself.

    Anonymous memory, of which every page has been written once, registered with CUDA; no tensor of
    Paddle's, whose pinned memory needs a build for CUDA and which nobody computes on anyway.

    Parameters
    ----------
    shape
        Of a block on this rank.
    device
        "gpu:N", the GPU that is to see it.
    cuda
        The CUDA runtime of that device; None: loaded.

    Attributes
    ----------
    region
        The memory; it lives as long as the pool.

    Raises
    ------
    ConfigError
        If the bindings are not installed, or the host refuses to pin so much.
    """

    def __init__(
        self, shape: KVShape, num_blocks: int, *, device: str, cuda: Cuda | None = None
    ) -> None:
        self._arena = HostArena(shape.pool_bytes(num_blocks))
        self._arena.pin(Cuda(device_index(device)) if cuda is None else cuda)
        self.region = self._arena.region


def check_memory(num_bytes: int, *, ask_for: str = "fewer blocks (gpu_blocks, cpu_blocks)") -> None:
    """Raise `ConfigError` if the host has not got this much to give: better now than killed later.

    Does nothing where the system does not tell.
    """
    free_bytes = available_bytes()
    if free_bytes is not None and num_bytes > free_bytes * _USABLE_PERCENT // 100:
        raise ConfigError(
            f"the pools of all ranks take {num_bytes / 2**30:.1f} GiB of host memory and"
            f" {free_bytes / 2**30:.1f} GiB are free: ask for {ask_for}"
        )


def available_bytes() -> int | None:
    """Return how much memory the host can give without swapping; None where it does not tell.

    Not its free pages: most of the memory of a machine that has run for a while is a cache of
    files, and given away on demand.
    """
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10  # in kB, which are KiB
    return None
