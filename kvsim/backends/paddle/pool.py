"""The memory of one tier on one rank: one arena of bytes, made by Paddle."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvsim.backends.paddle.region import MemoryKind, Region
from kvsim.backends.paddle.runtime import find_place, load_paddle
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from kvsim.backends.paddle.shape import KVShape

_USABLE_PERCENT: Final = 80  # the rest is for the engine, the trace, and everybody else


class KVPool:
    """`num_blocks` blocks of one shape in one uint8 tensor of Paddle's, filled with zeros.

    Every page of it has been written once, so that no copy pays for the first touch.

    Parameters
    ----------
    shape
        Of a block on this rank.
    device
        "cpu" or "gpu:N".

    Attributes
    ----------
    region
        The memory; it lives as long as the pool.

    Raises
    ------
    ConfigError
        If the device is not there.
    """

    def __init__(self, shape: KVShape, num_blocks: int, *, device: str = "cpu") -> None:
        num_bytes = num_blocks * shape.block_bytes
        self.shape = shape
        self.num_blocks = num_blocks
        zeros = np.zeros(num_bytes, np.uint8)
        self._arena = load_paddle().to_tensor(zeros, place=find_place(device))
        kind = MemoryKind.HOST if device == "cpu" else MemoryKind.GPU
        self.region = Region(self._arena.data_ptr(), num_bytes, kind)

    def tensor(self) -> Any:  # noqa: ANN401  (Paddle has no types)
        """Return the pool as Paddle sees it, without a copy: see `KVShape.dimensions`."""
        return self._arena.view(self.shape.dtype).reshape(self.shape.dimensions(self.num_blocks))


def check_memory(num_bytes: int) -> None:
    """Raise `ConfigError` if the host has not got this much to give: better now than killed later.

    Does nothing where the system does not tell.
    """
    try:
        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # no such call, or no such name, on this system
        return
    if num_bytes > free_bytes * _USABLE_PERCENT // 100:
        raise ConfigError(
            f"the pools of all ranks take {num_bytes / 2**30:.1f} GiB of host memory and"
            f" {free_bytes / 2**30:.1f} GiB are free: ask for fewer blocks (gpu_blocks, cpu_blocks)"
        )
