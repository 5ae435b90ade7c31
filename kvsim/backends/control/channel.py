"""A connection of two ends that know each other: messages out and in, and never a wait.

Whoever wants to wait sleeps on several channels at once (`sleep_on`).
"""

from __future__ import annotations

import select
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, Protocol

from kvsim.backends.control.codec import In, joined
from kvsim.backends.control.errors import ChannelClosedError
from kvsim.backends.control.framing import MAX_FRAME_BYTES, FrameReader, FrameWriter

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Sequence

    from kvsim.backends.control.codec import Codec
    from kvsim.backends.control.handshake import SessionKeys

_CHUNK_BYTES: Final = 1 << 18
_ARRAY_HEADER_BYTES: Final = 5  # the longest
_FEW_DESCRIPTORS: Final = 1024  # FD_SETSIZE: `select` takes none from here on


class HasFileno(Protocol):
    """What can be slept on."""

    def fileno(self) -> int:
        """Return the file descriptor."""


class Channel(Generic[In]):
    """One end of a connection.

    Parameters
    ----------
    sock
        The connected socket, behind the handshake. It becomes the channel's own.
    keys
        Of the handshake.
    codec
        Reads what comes in.
    max_frame_bytes
        What a frame carries at most, in either direction.
    """

    def __init__(
        self,
        sock: socket.socket,
        keys: SessionKeys,
        codec: Codec[In],
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        sock.settimeout(0)
        self._socket = sock
        self._codec = codec
        self._writer = FrameWriter(keys.sending, max_bytes=max_frame_bytes)
        self._reader = FrameReader(keys.receiving, max_bytes=max_frame_bytes)
        self._messages: list[bytes] = []
        self._unsent = bytearray()
        self._has_ended = False

    def fileno(self) -> int:
        """Return the file descriptor, to sleep on."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether something waits for the other end to read."""
        return bool(self._unsent or self._messages)

    def encode(self, message: object) -> bytes:
        """Return a message as `post` takes it; the same bytes are good for every channel."""
        return self._codec.encode(message)

    def post(self, encoded: bytes) -> None:
        """Put a message with those that the next `flush` sends, in one frame."""
        self._messages.append(encoded)

    def send(self, message: object) -> None:
        """Encode a message and `post` it."""
        self.post(self._codec.encode(message))

    def flush(self) -> None:
        """Send as much as the other end takes at once, and keep the rest for the next call.

        Raises
        ------
        ChannelClosedError
            If the other end has gone.
        ChannelError
            If a message is too long.
        """
        self._seal_messages()
        unsent = self._unsent
        while unsent:
            try:
                num_sent = self._socket.send(unsent)
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelClosedError("the connection is closed") from error
            del unsent[:num_sent]

    def receive(self) -> Sequence[In]:
        """Return what has come, without waiting; empty if nothing has.

        Raises
        ------
        ChannelClosedError
            If the other end has gone, and all that it had sent has been returned.
        ChannelError
            If what came is not what was sent, or no message.
        """
        messages: list[In] = []
        while not self._has_ended:
            try:
                data = self._socket.recv(_CHUNK_BYTES)
            except BlockingIOError:
                return messages
            except OSError:  # a reset is an end too: the other process was killed
                data = b""
            self._has_ended = not data
            for payload in self._reader.feed(data):
                messages += self._codec.decode(payload)
            if data and len(data) < _CHUNK_BYTES:
                return messages
        if not messages:
            raise ChannelClosedError("the other end has closed the connection")
        return messages

    def close(self) -> None:
        """Close the connection; idempotent. What has not been sent is lost."""
        with suppress(OSError):
            self._socket.close()

    def _seal_messages(self) -> None:
        if not self._messages:
            return
        most = self._writer.max_bytes - _ARRAY_HEADER_BYTES
        part: list[bytes] = []
        num_bytes = 0
        for message in self._messages:
            if part and num_bytes + len(message) > most:
                self._unsent += self._writer.seal(joined(part))
                part, num_bytes = [], 0
            part.append(message)
            num_bytes += len(message)
        self._messages = []
        self._unsent += self._writer.seal(joined(part))


def sleep_on(
    readers: Iterable[HasFileno], writers: Iterable[HasFileno] = (), *, timeout_s: float | None
) -> None:
    """Sleep until one of `readers` has something or one of `writers` takes something.

    At most `timeout_s` seconds; None: without an end. It may return early.
    """
    reading = [each.fileno() for each in readers]
    writing = [each.fileno() for each in writers]
    if max(reading + writing, default=0) < _FEW_DESCRIPTORS:
        # Not `selectors`: those round up to whole milliseconds, and a step may last less.
        select.select(reading, writing, (), timeout_s)
        return
    poll = select.poll()
    for fileno in reading:
        poll.register(fileno, select.POLLIN)
    for fileno in writing:
        poll.register(fileno, select.POLLOUT)
    poll.poll(None if timeout_s is None else timeout_s * 1000)
