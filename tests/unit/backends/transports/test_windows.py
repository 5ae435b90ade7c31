"""CUDA IPC against a stand-in: offsets, synchronisation, and what is given back."""

from __future__ import annotations

import time
from contextlib import closing

import numpy as np
import pytest

from kvsim.backends.region import MemoryKind, Region
from kvsim.backends.transports.endpoint import Endpoint
from kvsim.backends.transports.ipc import IpcDriver
from kvsim.backends.transports.pieces import Pieces
from kvsim.backends.transports.ports import (
    Arrived,
    Connected,
    ConnectFailed,
    EndpointConfig,
    PeerId,
    Reason,
    WriteDone,
    WriteFailed,
)
from kvsim.backends.transports.windows import CudaWindows, HostWindows, WindowError
from tests.unit.backends.transports.cuda_stand_in import StandIn

KEY = bytes(32)
LONG_NS = 30 * 10**9


def endpoint(cuda: StandIn, instance: int) -> Endpoint:
    config = EndpointConfig(peer_id=PeerId(instance, 0), key=KEY)
    driver = IpcDriver(config, lambda region, _: CudaWindows(region, runtime=cuda, driver=cuda))
    return Endpoint("ipc", config, driver)


def test_bytes_land_at_the_offset_of_the_region_in_its_allocation() -> None:
    # Each region is 64 bytes from 16 on in an allocation of 128: the handle knows the 128 alone.
    cuda = StandIn()
    source, target = cuda.allocate(128), cuda.allocate(128)
    cuda.arrays[source][:] = np.arange(128)
    with closing(endpoint(cuda, 0)) as one, closing(endpoint(cuda, 1)) as two:
        one.register(Region(source + 16, 64, MemoryKind.GPU))
        description = two.register(Region(target + 16, 64, MemoryKind.GPU))
        one.connect(PeerId(1, 0), description)
        assert one.poll(LONG_NS) == [Connected(PeerId(1, 0))]
        far = time.monotonic_ns() + LONG_NS
        one.write(PeerId(1, 0), 0, Pieces.of([(0, 8, 4), (60, 20, 4)]), deadline_at=far, tag=b"t")
        assert one.poll(LONG_NS) == [WriteDone(0)]
        assert two.poll(LONG_NS) == [Arrived(PeerId(0, 0), b"t")]
    # Source bytes 16..19 to 16 + 8, and 76..79 to 16 + 20.
    expected = np.zeros(128, np.uint8)
    expected[24:28] = [16, 17, 18, 19]
    expected[36:40] = [76, 77, 78, 79]
    assert cuda.arrays[target].tolist() == expected.tolist()
    assert set(cuda.mapped.values()) == {0}


def test_a_copy_that_fails_is_a_named_end() -> None:
    cuda = StandIn()
    source, target = cuda.allocate(64), cuda.allocate(64)
    with closing(endpoint(cuda, 0)) as one, closing(endpoint(cuda, 1)) as two:
        one.register(Region(source, 64, MemoryKind.GPU))
        one.connect(PeerId(1, 0), two.register(Region(target, 64, MemoryKind.GPU)))
        one.poll(LONG_NS)
        cuda.fails = "cudaMemcpyAsync"
        far = time.monotonic_ns() + LONG_NS
        one.write(PeerId(1, 0), 0, Pieces.of([(0, 0, 64)]), deadline_at=far, tag=b"t")
        (end,) = one.poll(LONG_NS)
        assert isinstance(end, WriteFailed)
        assert end.reason is Reason.WRITE
        assert end.detail == "cudaMemcpyAsync failed: 700"
        assert two.poll() == []


def test_memory_that_cannot_be_mapped_is_no_connection() -> None:
    cuda = StandIn()
    with closing(endpoint(cuda, 0)) as one, closing(endpoint(cuda, 1)) as two:
        one.register(Region(cuda.allocate(64), 64, MemoryKind.GPU))
        target = cuda.allocate(64)
        description = two.register(Region(target, 64, MemoryKind.GPU))
        cuda.cudaIpcOpenMemHandle = lambda handle, flags: (201, 0)  # type: ignore[method-assign]
        one.connect(PeerId(1, 0), description)
        (failed,) = one.poll(LONG_NS)
        assert isinstance(failed, ConnectFailed)
        assert failed.detail.endswith("cannot be mapped: cudaIpcOpenMemHandle failed: 201")


def test_memory_of_two_kinds_is_not_taken_for_each_other() -> None:
    cuda = StandIn()
    windows = CudaWindows(Region(cuda.allocate(8), 8, MemoryKind.GPU), runtime=cuda, driver=cuda)
    with pytest.raises(WindowError, match="is not on a GPU"):
        windows.open(b"", None, 8)
    offer, _ = windows.offer()
    with pytest.raises(WindowError, match="offers 8 bytes and has described 9"):
        windows.open(offer, None, 9)
    with pytest.raises(WindowError, match="is not on the host"):
        HostWindows.open(None, offer, None, 8)  # type: ignore[arg-type]
