"""Listens and dials, on this machine only: AF_UNIX where names vanish by themselves, or loopback.

An address is text: `unix:NAME` (a name of Linux's abstract namespace: no file is left behind,
however a process ends) or `tcp:127.0.0.1:PORT`.
"""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from secrets import token_hex
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, TypeAlias

from kvsim.backends.control.channel import Channel, sleep_on
from kvsim.backends.control.codec import In
from kvsim.backends.control.errors import AuthenticationError, ChannelClosedError, ChannelError
from kvsim.backends.control.framing import MAX_FRAME_BYTES
from kvsim.backends.control.handshake import (
    GREETING_BYTES,
    REPLY_BYTES,
    WELCOME_BYTES,
    DiallerHandshake,
    ListenerHandshake,
)

if TYPE_CHECKING:
    from kvsim.backends.control.channel import HasFileno
    from kvsim.backends.control.codec import Codec

    Place: TypeAlias = str | tuple[str, int]

LOOPBACK: Final = "127.0.0.1"
_MAX_PENDING: Final = 64
_HANDSHAKE_S: Final = 10.0  # three short messages on one machine


class _Pending:
    """Somebody who has connected and has not shown yet that they know the key."""

    __slots__ = ("handshake", "received", "sock", "until")

    def __init__(self, sock: socket.socket, key: bytes, until: float) -> None:
        self.sock = sock
        self.handshake = ListenerHandshake(key)
        self.received = b""
        self.until = until

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self.sock.fileno()


class Listener(Generic[In]):
    """Takes connections of those who know the key. Nobody can hold it up.

    Parameters
    ----------
    key
        See `new_key`.
    codec
        Reads what comes in on its channels.
    is_local
        Whether to use AF_UNIX rather than loopback. Default: where the abstract namespace is.
    handshake_s
        How long somebody who has connected has to show that they know the key.
    max_frame_bytes
        Of its channels.

    Attributes
    ----------
    address
        To be dialled.
    num_refused
        How many connected and did not know the key, were too slow, or one too many at a time.
    """

    def __init__(
        self,
        key: bytes,
        codec: Codec[In],
        *,
        is_local: bool = sys.platform == "linux",
        handshake_s: float = _HANDSHAKE_S,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self._key = key
        self._codec = codec
        self._handshake_s = handshake_s
        self._max_frame_bytes = max_frame_bytes
        self._pending: list[_Pending] = []
        self.num_refused = 0
        if is_local:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            name = f"kvsim-{token_hex(16)}"
            self._socket.bind(f"\0{name}")
            self.address = f"unix:{name}"
        else:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._socket.bind((LOOPBACK, 0))
            self.address = f"tcp:{LOOPBACK}:{self._socket.getsockname()[1]}"
        self._socket.settimeout(0)
        self._socket.listen(_MAX_PENDING)

    def waiting(self) -> list[HasFileno]:
        """Return what to sleep on before the next `accept`."""
        return [self._socket, *self._pending]

    def accept(self) -> list[Channel[In]]:
        """Return the connections that have become good since the last call; never waits."""
        self._greet_new()
        channels, pending = [], []
        for each in self._pending:
            try:
                channel = self._go_on(each)
            except (ChannelError, OSError):
                self._refuse(each)
                continue
            if channel is not None:
                channels.append(channel)
            elif monotonic() > each.until:
                self._refuse(each)
            else:
                pending.append(each)
        self._pending = pending
        return channels

    def close(self) -> None:
        """Take no more connections; those that were returned stay. Idempotent."""
        self._socket.close()
        for each in self._pending:
            each.sock.close()
        self._pending = []

    def _greet_new(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:  # nobody is there, or gone again
                return
            if len(self._pending) >= _MAX_PENDING:
                self.num_refused += 1
                sock.close()
                continue
            sock.settimeout(0)
            pending = _Pending(sock, self._key, monotonic() + self._handshake_s)
            self._pending.append(pending)

    def _go_on(self, pending: _Pending) -> Channel[In] | None:
        """Take what has come of a handshake; return the channel if that was the last of it."""
        sock, handshake = pending.sock, pending.handshake
        if handshake.greeting:
            # A few bytes on a new connection: the system takes them as a whole.
            sock.sendall(handshake.greeting)
            handshake.greeting = b""
        try:
            data = sock.recv(REPLY_BYTES - len(pending.received))
        except BlockingIOError:
            return None
        if not data:
            raise ChannelClosedError("gone before it has shown that it knows the key")
        pending.received += data
        if len(pending.received) < REPLY_BYTES:
            return None
        welcome, keys = handshake.welcome(pending.received)
        sock.sendall(welcome)
        return Channel(sock, keys, self._codec, max_frame_bytes=self._max_frame_bytes)

    def _refuse(self, pending: _Pending) -> None:
        self.num_refused += 1
        pending.sock.close()


def dial(
    address: str,
    key: bytes,
    codec: Codec[In],
    *,
    timeout_s: float = _HANDSHAKE_S,
    max_frame_bytes: int = MAX_FRAME_BYTES,
) -> Channel[In]:
    """Connect to a listener, and wait until both ends know that the other knows the key.

    Raises
    ------
    AuthenticationError
        If the listener does not know the key, or does not take ours.
    ChannelError
        If nobody listens there, or not in time.
    """
    family, place = _parse(address)
    with ExitStack() as undo:
        sock = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
        handshake = DiallerHandshake(key)
        try:
            sock.settimeout(timeout_s)
            sock.connect(place)
            sock.sendall(handshake.reply(_receive(sock, GREETING_BYTES)))
            welcome = _receive(sock, WELCOME_BYTES)
        except ChannelClosedError as error:
            raise AuthenticationError("the listener does not take our key") from error
        except OSError as error:
            raise ChannelError(f"no connection to {address}: {error}") from error
        keys = handshake.keys(welcome)
        undo.pop_all()
    return Channel(sock, keys, codec, max_frame_bytes=max_frame_bytes)


def receive_one(channel: Channel[In], *, until: float) -> list[In]:
    """Wait for the next messages of a channel, at least one, up to a time of `time.monotonic`.

    Raises
    ------
    ChannelError
        If none has come by then, or the channel is closed.
    """
    while True:
        messages = channel.receive()
        if messages:
            return list(messages)
        left_s = until - monotonic()
        if left_s <= 0:
            raise ChannelError("the other end has not answered in time")
        sleep_on((channel,), timeout_s=left_s)


def _parse(address: str) -> tuple[socket.AddressFamily, Place]:
    kind, _, rest = address.partition(":")
    if kind == "unix" and rest:
        return socket.AF_UNIX, f"\0{rest}"
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and port.isdecimal():
        return socket.AF_INET, (host, int(port))
    raise ChannelError(f"address must be unix:NAME or tcp:HOST:PORT, not {address!r}")


def _receive(sock: socket.socket, num_bytes: int) -> bytes:
    """Return exactly so many bytes of a blocking socket."""
    received = b""
    while len(received) < num_bytes:
        data = sock.recv(num_bytes - len(received))
        if not data:
            raise ChannelClosedError("the other end has closed the connection")
        received += data
    return received
