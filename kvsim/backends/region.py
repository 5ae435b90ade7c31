"""A piece of memory, whoever made it: all that a copier or a transport ever sees."""

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

    Copiers and transports know nothing else of memory, so they work on a Paddle tensor, on what
    `cudaMalloc` gave and on a mapped file alike.
    """

    ptr: int
    num_bytes: int
    kind: MemoryKind
