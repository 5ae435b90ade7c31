"""The receiving half of `tcp`: who has connected, and what they write."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import numpy as np
import zmq
from zmq.utils.monitor import recv_monitor_message

from kvsim.backends.transports.driver import Came, Left
from kvsim.backends.transports.greeting import MAX_GREETING_BYTES, GreetingError, Listener
from kvsim.backends.transports.pieces import Pieces
from kvsim.backends.transports.ports import MAX_PIECES, MAX_TAG_BYTES, PieceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.transports.driver import Fact
    from kvsim.backends.transports.memory import Bytes
    from kvsim.backends.transports.ports import EndpointConfig

MAX_CHUNK_BYTES: Final = 1 << 20
"""Bytes of a chunk: long enough that the word that goes with it costs little."""

_MAX_STRANGERS: Final = 64
"""Connections that have not shown the key; the oldest is forgotten for the next."""

_ID: Final = struct.Struct("!Q")
_Column = Annotated[bytes, msgspec.Meta(max_length=8 * MAX_PIECES)]


class Chunk(msgspec.Struct, array_like=True, frozen=True):
    """What goes before the bytes of a chunk: where they belong. Columns are int64, big end first.

    The tag comes with the last chunk of a write.
    """

    write_id: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    targets: _Column
    lengths: _Column
    tag: Annotated[bytes, msgspec.Meta(max_length=MAX_TAG_BYTES)] | None
    is_last: bool

    @classmethod
    def of(cls, write_id: int, part: Pieces, tag: bytes | None, *, is_last: bool) -> Chunk:
        """Return the chunk of a part of a write."""
        targets, lengths = (
            column.astype(">i8").tobytes() for column in (part.targets, part.num_bytes)
        )
        return cls(write_id, targets, lengths, tag, is_last)

    def pieces(self) -> Pieces:
        """Return what goes where, the sources counted within the chunk.

        Raises
        ------
        PieceError
            If the columns do not fit each other.
        """
        try:
            targets, lengths = (
                np.frombuffer(column, ">i8").astype(np.int64)
                for column in (self.targets, self.lengths)
            )
        except ValueError as error:  # not a multiple of eight
            raise PieceError(f"a column of a chunk is cut short: {error}") from error
        ends = np.cumsum(lengths)
        return Pieces(ends - lengths, targets, lengths)


_DECODER: Final = msgspec.msgpack.Decoder(Chunk)


@dataclass(slots=True)
class _Guest:
    """A connection to here, from its HELLO on."""

    listener: Listener
    file: int  # of the connection: what its end is told by
    is_known: bool = False


class Guests:
    """Takes the writes of those that have shown the key, and nothing of others.

    Parameters
    ----------
    config
        Of the endpoint.
    router, monitor
        The socket that peers connect to, bound; and its monitor.
    memory
        That they write into.
    tell
        Takes facts.
    """

    def __init__(
        self,
        config: EndpointConfig,
        router: zmq.Socket[bytes],
        monitor: zmq.Socket[bytes],
        memory: Bytes,
        tell: Callable[[Fact], None],
    ) -> None:
        self._config = config
        self._router = router
        self._monitor = monitor
        self._memory = memory
        self._tell = tell
        # By the id that ROUTER gives to a connection: no other connection can take it.
        self._guests: dict[bytes, _Guest] = {}

    def serve(self) -> None:
        """Take all that has come."""
        with suppress(zmq.Again):
            while True:
                self._hear(self._router.recv_multipart(zmq.NOBLOCK, copy=False))
        self._watch()

    def _hear(self, frames: list[zmq.Frame]) -> None:
        name, first, *payload = frames
        guest = self._guests.get(name.bytes)
        try:
            if guest is not None and guest.is_known:
                self._hear_known(name.bytes, guest, first, payload)
            elif not payload and len(first) <= MAX_GREETING_BYTES:
                self._greet(name.bytes, guest, first)
        except (GreetingError, msgspec.MsgspecError, struct.error):
            # Nobody of this run: what else comes on this connection is for nobody either.
            self._guests.pop(name.bytes, None)

    def _greet(self, name: bytes, guest: _Guest | None, first: zmq.Frame) -> None:
        kind, body = first.bytes[:1], first.bytes[1:]
        if kind == b"H" and guest is None:
            listener = Listener(self._config.key, self._config.peer_id, body)
            # Numbers of connections are used again: the end of the last that had this one was
            # told before this message was.
            self._watch()
            strangers = [key for key, each in self._guests.items() if not each.is_known]
            if len(strangers) >= _MAX_STRANGERS:
                del self._guests[strangers[0]]
            file = first.get(zmq.SRCFD)
            assert isinstance(file, int)
            self._guests[name] = _Guest(listener, file)
            self._answer(name, b"W" + listener.welcome)
        elif kind == b"P" and guest is not None:
            guest.listener.check(body)
            guest.is_known = True
            self._answer(name, b"R")

    def _hear_known(
        self, name: bytes, guest: _Guest, first: zmq.Frame, payload: list[zmq.Frame]
    ) -> None:
        kind = bytes(first.buffer[:1])
        if kind == b"X":
            (write_id,) = _ID.unpack(first.buffer[1:])
            self._answer(name, b"X" + _ID.pack(write_id))
        elif kind == b"D":
            chunk = _DECODER.decode(first.buffer[1:])
            try:
                self._store(chunk, payload)
            except PieceError as error:
                self._answer(name, b"N" + _ID.pack(chunk.write_id) + str(error).encode())
                return
            if chunk.tag is not None:
                self._tell(Came(guest.listener.peer, chunk.tag))
            self._answer(name, b"A" + _ID.pack(chunk.write_id))

    def _store(self, chunk: Chunk, payload: list[zmq.Frame]) -> None:
        """Put the bytes of a chunk where they belong, once all of it is checked."""
        pieces = chunk.pieces()
        if [len(frame) for frame in payload] != [pieces.total_bytes]:
            raise PieceError("the bytes of a chunk are not as many as it announces")
        pieces.check_within(pieces.total_bytes, len(self._memory))
        sent = np.frombuffer(payload[0].buffer, np.uint8)
        for source, target, length in pieces:
            self._memory[target : target + length] = sent[source : source + length]

    def _answer(self, name: bytes, message: bytes) -> None:
        with suppress(zmq.ZMQError):  # whoever asked is gone: the monitor says so
            self._router.send_multipart([name, message], zmq.NOBLOCK)

    def _watch(self) -> None:
        """Read the monitor: forget connections that have ended."""
        with suppress(zmq.Again):
            while True:
                event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
                for name, guest in list(self._guests.items()):
                    if guest.file == event["value"]:
                        del self._guests[name]
                        if guest.is_known:
                            peer = guest.listener.peer
                            self._tell(Left(peer, f"{peer} has died, closed, or left"))
