"""A piece of memory, whoever made it: all that a copier ever sees."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MemoryKind(StrEnum):
    """Where memory is."""

    HOST = "host"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Region:
    """`num_bytes` bytes from address `ptr` on. Whoever made it keeps the memory alive.

    The transfer engine knows nothing else of memory, so it works on a Paddle tensor, on what
    `cudaMalloc` gave and on a mapped file alike.
    """

    ptr: int
    num_bytes: int
    kind: MemoryKind
