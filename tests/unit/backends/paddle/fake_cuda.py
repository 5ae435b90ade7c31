"""A stand-in for the CUDA runtime: its memory is the host's, and its streams are late.

Nothing that is put on a stream is done before somebody asks for it, and then one thing at a time:
who reads before having waited finds what was there before; who lets descriptors go, who lets a
stream wait for nothing, who copies from freed memory, is found out.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SUCCESS, INVALID, NOT_READY, FAILED, NO_DEVICE = 0, 1, 600, 719, 100


class Event:
    """How often it was recorded, and how many of these have happened."""

    def __init__(self) -> None:
        self.num_recorded = self.num_happened = 0
        self.is_destroyed = False


class Stream:
    """What is to be done, in this order."""

    def __init__(self) -> None:
        self.todo: deque[Callable[[], bool]] = deque()
        self.is_destroyed = False


class Attributes:
    """Of the copies of a batch."""

    srcAccessOrder: int | None = None  # noqa: N815  (as in CUDA)


class FakeCuda:
    """Behaves like `cuda.bindings.runtime` of a major version.

    Parameters
    ----------
    major
        12 or 13: the former tells which copy of a batch was wrong.
    driver
        Version of the driver, as CUDA gives it.
    num_devices
        GPUs there are.
    """

    cudaError_t = SimpleNamespace(cudaSuccess=SUCCESS, cudaErrorNotReady=NOT_READY)  # noqa: N815
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyDefault=4)  # noqa: N815
    cudaMemcpySrcAccessOrder = SimpleNamespace(  # noqa: N815
        cudaMemcpySrcAccessOrderStream=1
    )
    cudaStreamNonBlocking, cudaEventDisableTiming = 1, 2  # noqa: N815
    cudaMemcpyAttributes = Attributes  # noqa: N815

    def __init__(self, major: int = 13, *, driver: int = 13_000, num_devices: int = 4) -> None:
        self.major = major
        self.driver = driver
        self.num_devices = num_devices
        self.calls: list[tuple[object, ...]] = []
        self.streams: list[Stream] = []
        self.events: list[Event] = []
        self.allocated: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.pinned: dict[int, int] = {}
        self.pinned_limit_bytes = 1 << 60
        self.fails_at = 1 << 60  # of the copies
        self.num_copies = 0
        self.is_broken = False
        self.device: int | None = None

    # -- what tests do

    @property
    def bindings(self) -> tuple[FakeCuda, int]:
        """What a `Cuda` is made from."""
        return self, self.major

    def names(self) -> list[object]:
        """Return what was called, by name."""
        return [call[0] for call in self.calls]

    def put(self, stream: Stream, work: Callable[[], None]) -> None:
        """Let a stream do something, as a kernel would."""

        def do() -> bool:
            work()
            return True

        stream.todo.append(do)

    def step(self) -> bool:
        """Do one thing on the first stream that can; return whether there was one."""
        return any(self._step(stream) for stream in self.streams)

    def is_idle(self) -> bool:
        """Whether nothing is on its way."""
        return not any(stream.todo for stream in self.streams)

    # -- devices and memory

    def cudaGetDeviceCount(self) -> tuple[int, int | None]:  # noqa: N802
        if not self.num_devices:
            return (NO_DEVICE, None)
        return (SUCCESS, self.num_devices)

    def cudaDriverGetVersion(self) -> tuple[int, int]:  # noqa: N802
        return (SUCCESS, self.driver)

    def cudaSetDevice(self, device: int) -> tuple[int]:  # noqa: N802
        self.calls.append(("device", device))
        self.device = device
        return (SUCCESS,)

    def cudaGetDeviceProperties(self, device: int) -> tuple[int, SimpleNamespace]:  # noqa: N802
        assert 0 <= device < self.num_devices
        return (SUCCESS, SimpleNamespace(name=b"stand-in", totalGlobalMem=1 << 30))

    def cudaMalloc(self, num_bytes: int) -> tuple[int, int | None]:  # noqa: N802
        if self.device is None or num_bytes >= 1 << 40:
            return (2, None)
        memory = ctypes.create_string_buffer(b"\xaa" * num_bytes, max(num_bytes, 1))
        pointer = ctypes.addressof(memory)
        self.allocated[pointer] = memory
        return (SUCCESS, pointer)

    def cudaFree(self, pointer: int) -> tuple[int]:  # noqa: N802
        assert self.is_idle(), "memory was freed while copies were under way"
        del self.allocated[pointer]
        return (SUCCESS,)

    def cudaMemset(self, pointer: int, value: int, num_bytes: int) -> tuple[int]:  # noqa: N802
        ctypes.memset(pointer, value, num_bytes)
        return (SUCCESS,)

    def cudaHostRegister(self, pointer: int, num_bytes: int, flags: int) -> tuple[int]:  # noqa: N802
        assert flags == 0
        if sum(self.pinned.values()) + num_bytes > self.pinned_limit_bytes:
            return (2,)
        assert pointer not in self.pinned
        self.pinned[pointer] = num_bytes
        return (SUCCESS,)

    def cudaHostUnregister(self, pointer: int) -> tuple[int]:  # noqa: N802
        assert self.is_idle(), "memory was unpinned while copies were under way"
        del self.pinned[pointer]
        return (SUCCESS,)

    def cudaDeviceSynchronize(self) -> tuple[int]:  # noqa: N802
        while self.step():
            pass
        return (SUCCESS,)

    # -- streams and events

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[int, Stream]:  # noqa: N802
        assert flags == self.cudaStreamNonBlocking
        assert self.device is not None, "no device was set"
        self.calls.append(("stream", flags))
        self.streams.append(Stream())
        return (SUCCESS, self.streams[-1])

    def cudaStreamDestroy(self, stream: Stream) -> tuple[int]:  # noqa: N802
        assert not stream.is_destroyed
        stream.is_destroyed = True
        return (SUCCESS,)

    def cudaStreamSynchronize(self, stream: Stream) -> tuple[int]:  # noqa: N802
        self.calls.append(("wait",))
        while stream.todo:
            assert self.step(), "a stream waits for ever"
        return (FAILED if self.is_broken else SUCCESS,)

    def cudaStreamWaitEvent(self, stream: Stream, event: Event, flags: int) -> tuple[int]:  # noqa: N802
        assert flags == 0
        assert not event.is_destroyed
        assert event.num_recorded, "a stream waits for an event that was never recorded"
        awaited = event.num_recorded
        self.calls.append(("wait for",))
        stream.todo.append(lambda: event.num_happened >= awaited)
        return (SUCCESS,)

    def cudaEventCreateWithFlags(self, flags: int) -> tuple[int, Event]:  # noqa: N802
        assert flags in (0, self.cudaEventDisableTiming)
        self.events.append(Event())
        return (SUCCESS, self.events[-1])

    def cudaEventDestroy(self, event: Event) -> tuple[int]:  # noqa: N802
        assert not event.is_destroyed
        event.is_destroyed = True
        return (SUCCESS,)

    def cudaEventRecord(self, event: Event, stream: Stream) -> tuple[int]:  # noqa: N802
        assert not event.is_destroyed
        event.num_recorded += 1
        self.calls.append(("record",))

        def happen() -> bool:
            event.num_happened += 1
            return True

        stream.todo.append(happen)
        return (SUCCESS,)

    def cudaEventQuery(self, event: Event) -> tuple[int]:  # noqa: N802
        assert not event.is_destroyed
        self.step()
        if self.is_broken:
            return (FAILED,)
        return (SUCCESS if event.num_happened == event.num_recorded else NOT_READY,)

    def cudaEventSynchronize(self, event: Event) -> tuple[int]:  # noqa: N802
        while event.num_happened < event.num_recorded:
            assert self.step(), "an event never happens"
        return (FAILED if self.is_broken else SUCCESS,)

    # -- copies

    def cudaMemcpyAsync(  # noqa: N802
        self, target: int, source: int, num_bytes: int, kind: int, stream: Stream
    ) -> tuple[int]:
        assert kind == self.cudaMemcpyKind.cudaMemcpyDefault
        self.num_copies += 1
        if self.num_copies > self.fails_at:
            return (FAILED,)
        self.calls.append(("copy", num_bytes))
        stream.todo.append(lambda: self._move(target, source, num_bytes))
        return (SUCCESS,)

    def cudaMemcpyBatchAsync(  # noqa: N802
        self,
        targets: list[int],
        sources: list[int],
        sizes: list[int],
        count: int,
        attributes: list[Attributes],
        attribute_indexes: list[int],
        num_attributes: int,
        stream: Stream,
    ) -> tuple[int] | tuple[int, int]:
        assert len(targets) == len(sources) == len(sizes) == count <= 512
        assert (attribute_indexes, num_attributes, len(attributes)) == ([0], 1, 1)
        assert attributes[0].srcAccessOrder == 1
        assert self.driver >= 12_080, "this driver does not know the call"
        self.num_copies += count
        if self.num_copies > self.fails_at:
            index = self.fails_at - (self.num_copies - count)
            return (INVALID, index) if self.major < 13 else (INVALID,)
        self.calls.append(("batch", count))
        descriptors = weakref.ref(attributes[0])
        for piece in zip(targets, sources, sizes, strict=True):
            stream.todo.append(partial(self._move, *piece, descriptors=descriptors))
        return (SUCCESS, 2**64 - 1) if self.major < 13 else (SUCCESS,)

    def _move(
        self,
        target: int,
        source: int,
        num_bytes: int,
        descriptors: weakref.ref[Attributes] | None = None,
    ) -> bool:
        assert descriptors is None or descriptors() is not None, "its descriptors are gone"
        ctypes.memmove(target, source, num_bytes)
        return True

    def _step(self, stream: Stream) -> bool:
        if not stream.todo or not stream.todo[0]():
            return False
        stream.todo.popleft()
        return True


VERSIONS = {"12": (12, 12_090), "13": (13, 13_000), "old driver": (12, 12_060)}
"""Name -> major version and driver; the last one knows no batches."""
