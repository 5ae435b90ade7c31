"""`tcp`: strangers at the port, encryption, and what may be listened on."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from kvsim.backends.transports.endpoint import Endpoint
from kvsim.backends.transports.memory import MemoryFile
from kvsim.backends.transports.pieces import Pieces
from kvsim.backends.transports.ports import (
    Arrived,
    Connected,
    ConnectFailed,
    EndpointConfig,
    PeerId,
    PieceError,
    Reason,
    WriteDone,
)
from kvsim.errors import ConfigError

zmq = pytest.importorskip("zmq", reason="tcp needs pyzmq")

from kvsim.backends.transports.description import decode_description  # noqa: E402
from kvsim.backends.transports.tcp import TcpDriver  # noqa: E402
from kvsim.backends.transports.tcp_guests import Chunk  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG_NS = 30 * 10**9
ONE, TWO = PeerId(0, 0), PeerId(1, 0)


class Ends:
    """Two endpoints of 4096 bytes each, closed after the test."""

    def __init__(self, closing_stack: ExitStack, *, encrypts: bool | None = None) -> None:
        self.memories = [closing_stack.enter_context(MemoryFile(4096)) for _ in range(2)]
        self.ends = []
        self.descriptions = []
        for peer, memory, key in zip((ONE, TWO), self.memories, (bytes(32),) * 2, strict=True):
            config = EndpointConfig(peer_id=peer, key=key, connect_timeout_ns=LONG_NS)
            end = Endpoint("tcp", config, TcpDriver(config, encrypts=encrypts))
            closing_stack.enter_context(closing(end))
            self.ends.append(end)
            self.descriptions.append(end.register(memory.region))

    def write(self) -> None:
        one, two = self.ends
        one.connect(TWO, self.descriptions[1])
        assert one.poll(LONG_NS) == [Connected(TWO)]
        self.memories[0].bytes[:] = 9
        far = time.monotonic_ns() + LONG_NS
        one.write(TWO, 0, Pieces.of([(0, 1000, 50)]), deadline_at=far, tag=b"t")
        assert one.poll(LONG_NS) == [WriteDone(0)]
        assert two.poll(LONG_NS) == [Arrived(ONE, b"t")]
        assert np.flatnonzero(self.memories[1].bytes).tolist() == list(range(1000, 1050))

    def address(self) -> str:
        return decode_description("tcp", TWO, self.descriptions[1]).address.decode()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as closing_stack:
        yield closing_stack


def test_a_stranger_is_not_listened_to_and_disturbs_nobody(stack: ExitStack) -> None:
    ends = Ends(stack)
    chunk = Chunk.of(1, Pieces.of([(0, 0, 4)]), b"tag", is_last=True)
    messages: list[list[bytes]] = [
        [b""],
        [b"H"],
        [b"H" + bytes(200)],
        [b"P" + bytes(200)],
        [b"D" + msgspec.msgpack.encode(chunk), b"evil"],
        [b"X" + bytes(8)],
        [b"\xff" * 70_000],
        [b"", b"", b""],
    ]
    context = stack.enter_context(zmq.Context())
    for first in messages:
        with context.socket(zmq.DEALER) as stranger:
            stranger.linger = 1000
            stranger.connect(ends.address())
            for message in (first, *messages):
                stranger.send_multipart(message)
    ends.write()
    assert ends.ends[1].poll() == []


def test_an_encrypted_run_arrives_as_well(stack: ExitStack) -> None:
    ends = Ends(stack, encrypts=True)
    assert ends.ends[0].capabilities.encrypts
    ends.write()


def test_who_does_not_encrypt_cannot_talk_to_one_who_does(stack: ExitStack) -> None:
    ends = Ends(stack, encrypts=True)
    config = EndpointConfig(peer_id=PeerId(5, 5), key=bytes(32), connect_timeout_ns=10**9 // 2)
    plain = stack.enter_context(closing(Endpoint("tcp", config, TcpDriver(config))))
    plain.register(stack.enter_context(MemoryFile(64)).region)
    plain.connect(TWO, ends.descriptions[1])
    (failed,) = plain.poll(LONG_NS)
    assert isinstance(failed, ConnectFailed)
    assert failed.reason in {Reason.CONNECT, Reason.TIMEOUT}


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        ("0.0.0.0", "bind is the address that peers reach this machine at, not 0.0.0.0"),
        ("::", "bind is the address that peers reach this machine at, not ::"),
        ("localhost", "bind is an IP address, not 'localhost'"),
    ],
)
def test_nothing_listens_on_every_address(bind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TcpDriver(EndpointConfig(peer_id=ONE, key=bytes(32), bind=bind))


@pytest.mark.parametrize(("bind", "encrypts"), [("127.0.0.1", False), ("192.0.2.1", True)])
def test_what_leaves_the_machine_is_encrypted(bind: str, *, encrypts: bool) -> None:
    config = EndpointConfig(peer_id=ONE, key=bytes(32), bind=bind)
    assert TcpDriver(config).capabilities.encrypts is encrypts


def test_a_chunk_says_what_goes_where() -> None:
    pieces = Pieces.of([(7, 100, 3), (50, 200, 5)])
    chunk = Chunk.of(1, pieces, None, is_last=True)
    # Sources count within the chunk: 0..2 and 3..7.
    assert list(chunk.pieces()) == [(0, 100, 3), (3, 200, 5)]


@pytest.mark.parametrize(
    ("targets", "lengths"),
    [(b"1234567", b"12345678"), (bytes(16), bytes(8)), (b"\xff" * 8, bytes(8))],
    ids=["cut short", "of two lengths", "negative"],
)
def test_a_chunk_that_does_not_fit_itself_is_refused(targets: bytes, lengths: bytes) -> None:
    with pytest.raises(PieceError):
        Chunk(1, targets, lengths, None, is_last=True).pieces()
