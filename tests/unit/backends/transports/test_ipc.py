"""`ipc`: strangers at the socket, memory that is not safe to map."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, closing

import numpy as np
import pytest

from kvsim.backends.region import MemoryKind, Region
from kvsim.backends.transports import open_transport
from kvsim.backends.transports.description import decode_description
from kvsim.backends.transports.memory import MemoryFile
from kvsim.backends.transports.pieces import Pieces
from kvsim.backends.transports.ports import (
    Connected,
    EndpointConfig,
    PeerId,
    TransportError,
    WriteDone,
)
from kvsim.errors import ConfigError

LONG_NS = 30 * 10**9
ONE, TWO = PeerId(0, 0), PeerId(1, 0)


def test_a_stranger_gets_no_memory_and_disturbs_nobody() -> None:
    with ExitStack() as stack:
        memories = [stack.enter_context(MemoryFile(4096)) for _ in range(2)]
        ends = [
            stack.enter_context(
                closing(open_transport("ipc", EndpointConfig(peer_id=peer, key=bytes(32))))
            )
            for peer in (ONE, TWO)
        ]
        one, two = ends
        one.register(memories[0].region, memory_file=memories[0].file)
        description = two.register(memories[1].region, memory_file=memories[1].file)
        name = decode_description("ipc", TWO, description).address[:-8]
        # More than are kept at a time, and one that says something and waits for the answer.
        for _ in range(70):
            idle = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            idle.connect(b"\0" + name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.settimeout(30)
            stranger.connect(b"\0" + name)
            stranger.send(b"let me in" * 20)
            message, files, _, _ = socket.recv_fds(stranger, 4096, 4)
            assert (message, files) == (b"", [])  # hung up on
        one.connect(TWO, description)
        assert one.poll(LONG_NS) == [Connected(TWO)]
        far = time.monotonic_ns() + LONG_NS
        one.write(TWO, 0, Pieces.of([(0, 0, 4096)]), deadline_at=far)
        assert one.poll(LONG_NS) == [WriteDone(0)]
        assert two.poll() == []


def test_memory_that_peers_cannot_map_is_refused_at_once() -> None:
    array = np.zeros(64, np.uint8)
    end = open_transport("ipc", EndpointConfig(peer_id=ONE, key=bytes(32)))
    with pytest.raises(ConfigError, match="ipc needs host memory that peers can map"):
        end.register(Region(array.ctypes.data, 64, MemoryKind.HOST))
    end.close()


def test_an_endpoint_whose_driver_gave_up_says_so() -> None:
    with MemoryFile(64) as memory:
        end = open_transport("ipc", EndpointConfig(peer_id=ONE, key=bytes(32)))
        end.register(memory.region, memory_file=memory.file)
        end._thread.call(lambda: 1 / 0)  # type: ignore[attr-defined]  # noqa: SLF001
        with pytest.raises(TransportError, match="ipc of rank 0 of instance 0 broke: ZeroDiv"):
            end.poll(LONG_NS)
        end.close()
