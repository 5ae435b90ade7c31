"""The memory of one tier on one rank: one arena of bytes, made by Paddle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvsim.backends.paddle.runtime import find_place, load_paddle
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

    Attributes
    ----------
    shape, num_blocks
        As given.
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
        paddle, place = load_paddle(), find_place(device)
        self._arena = paddle.to_tensor(zeros, place=place)
        kind = MemoryKind.HOST
        if device != "cpu":
            kind = MemoryKind.GPU
            # The zeros travel on Paddle's stream, and our copies on another: they must be there.
            paddle.device.synchronize(place)
        self.region = Region(self._arena.data_ptr(), num_bytes, kind)

    def tensor(self) -> Any:  # noqa: ANN401  (Paddle has no types)
        """Return the pool as Paddle sees it, without a copy: see `KVShape.dimensions`."""
        return self._arena.view(self.shape.dtype).reshape(self.shape.dimensions(self.num_blocks))


def check_memory(num_bytes: int) -> None:
    """Raise `ConfigError` if the host has not got this much to give: better now than killed later.

    Does nothing where the system does not tell.
    """
    free_bytes = available_bytes()
    if free_bytes is not None and num_bytes > free_bytes * _USABLE_PERCENT // 100:
        raise ConfigError(
            f"the pools of all ranks take {num_bytes / 2**30:.1f} GiB of host memory and"
            f" {free_bytes / 2**30:.1f} GiB are free: ask for fewer blocks (gpu_blocks, cpu_blocks)"
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
