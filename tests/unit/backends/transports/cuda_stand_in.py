"""What behaves like the CUDA runtime and driver as far as IPC goes, on memory of the host.

One "device", whose memory is numpy arrays. As in CUDA, a handle is of a whole allocation, and
opening it gives the base; what is copied has not arrived before the stream is synchronised.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np


class StandIn:
    """Both libraries; `arrays` are the allocations by base, `mapped` how often each is open."""

    cudaStreamNonBlocking = 1  # noqa: N815
    cudaIpcMemLazyEnablePeerAccess = 1  # noqa: N815
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyDefault=4)  # noqa: N815

    def __init__(self) -> None:
        self.arrays: dict[int, np.ndarray[tuple[int], np.dtype[np.uint8]]] = {}
        self.mapped: dict[int, int] = {}
        self.pending: list[tuple[int, int, int]] = []
        self.fails: str | None = None

    def allocate(self, num_bytes: int) -> int:
        array = np.zeros(num_bytes, np.uint8)
        self.arrays[array.ctypes.data] = array
        return array.ctypes.data

    def base_of(self, pointer: int) -> int:
        return max(base for base in self.arrays if base <= pointer)

    def cudaIpcMemHandle_t(self) -> SimpleNamespace:  # noqa: N802  (CUDA's name; so the others)
        return SimpleNamespace(reserved=bytes(64))

    def cudaPointerGetAttributes(self, pointer: int) -> tuple[int, SimpleNamespace]:  # noqa: N802
        return 0, SimpleNamespace(device=0)

    def cudaSetDevice(self, device: int) -> tuple[int]:  # noqa: N802
        return (0,)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[int, object]:  # noqa: N802
        return 0, "stream"

    def cuMemGetAddressRange(self, pointer: int) -> tuple[int, int, int]:  # noqa: N802
        base = self.base_of(pointer)
        return 0, base, len(self.arrays[base])

    def cudaIpcGetMemHandle(self, pointer: int) -> tuple[int, SimpleNamespace]:  # noqa: N802
        return 0, SimpleNamespace(reserved=self.base_of(pointer).to_bytes(64, "big"))

    def cudaIpcOpenMemHandle(self, handle: SimpleNamespace, flags: int) -> tuple[int, int]:  # noqa: N802
        base = int.from_bytes(handle.reserved, "big")
        if base not in self.arrays:
            return 1, 0
        self.mapped[base] = self.mapped.get(base, 0) + 1
        return 0, base

    def cudaIpcCloseMemHandle(self, base: int) -> tuple[int]:  # noqa: N802
        self.mapped[base] -= 1
        return (0,)

    def cudaMemcpyAsync(  # noqa: N802
        self, target: int, source: int, num_bytes: int, kind: int, stream: object
    ) -> tuple[int]:
        if self.fails == "cudaMemcpyAsync":
            return (700,)
        self.pending.append((target, source, num_bytes))
        return (0,)

    def cudaStreamSynchronize(self, stream: object) -> tuple[int]:  # noqa: N802
        for target, source, num_bytes in self.pending:
            ctypes.memmove(target, source, num_bytes)
        self.pending.clear()
        return (0,)
