"""`ipc`: between processes of one machine, into memory of the peer's that is mapped here.

The bytes are copied by the writer alone. A connection over AF_UNIX carries the greeting, then once
the peer's memory (a file descriptor, or a CUDA handle), then a word for each tag and its
acknowledgement; its end is how the death of a peer is seen. Names are abstract: they are no files,
so a killed process leaves none.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import struct
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvsim.backends.region import MemoryKind
from kvsim.backends.transports.driver import Came, Finished, Left, LinkDown, LinkUp
from kvsim.backends.transports.endpoint import Endpoint
from kvsim.backends.transports.greeting import (
    MAX_GREETING_BYTES,
    Caller,
    GreetingError,
    Listener,
)
from kvsim.backends.transports.ports import Capabilities, Reason
from kvsim.backends.transports.windows import (
    WindowError,
    make_windows,
    take_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.region import Region
    from kvsim.backends.transports.driver import Fact, Post, Waker
    from kvsim.backends.transports.ports import EndpointConfig, PeerId
    from kvsim.backends.transports.windows import Window, WindowMaker

CAPABILITIES: Final = Capabilities(
    memory=frozenset({MemoryKind.HOST, MemoryKind.GPU}),
    needs_memory_file=True,
    writes_past_frozen=True,
)

_WORD: Final = struct.Struct("!Q")  # the id of a write
_COPY_BYTES: Final = 4 << 20
"""Copied between two looks at the connections: a millisecond."""
_MAX_STRANGERS: Final = 64
"""Connections that have not shown the key; the oldest is dropped for the next."""


@dataclass(slots=True)
class _Line:
    """A connection, and what waits to be sent on it."""

    socket: socket.socket
    outbox: deque[bytes] = field(default_factory=deque)

    def send(self, message: bytes) -> None:
        """Send a message after those that wait."""
        self.outbox.append(message)
        self.push()

    def push(self) -> None:
        """Send what waits, as far as it goes: a peer that stands still takes no more some time."""
        with suppress(BlockingIOError):
            while self.outbox:
                self.socket.send(self.outbox[0])
                self.outbox.popleft()


@dataclass(slots=True)
class _Out:
    """A link: a connection that was made from here."""

    link_id: int
    line: _Line
    caller: Caller
    num_bytes: int
    posts: deque[tuple[Post, deque[tuple[int, int, int]]]] = field(default_factory=deque)
    unheard: dict[int, Post] = field(default_factory=dict)  # told, and not acknowledged
    window: Window | None = None


@dataclass(slots=True)
class _In:
    """A connection that was made to here; `listener` after its HELLO."""

    line: _Line
    listener: Listener | None = None
    is_known: bool = False


class IpcDriver:
    """The driver of `ipc` (see `kvsim.backends.transports.driver.Driver`).

    Parameters
    ----------
    config
        Of the endpoint.
    make
        Makes the windows of a region.
    """

    capabilities = CAPABILITIES

    def __init__(
        self,
        config: EndpointConfig,
        make: Callable[[Region, int | None], WindowMaker] = make_windows,
    ) -> None:
        self._config = config
        self._make = make
        self._selector: selectors.BaseSelector | None = None
        self._listening: socket.socket | None = None
        self._outs: dict[int, _Out] = {}
        self._ins: list[_In] = []

    def start(
        self, region: Region, memory_file: int | None, tell: Callable[[Fact], None], waker: Waker
    ) -> bytes:
        """See `Driver`."""
        self._tell, self._waker = tell, waker
        self._windows = self._make(region, memory_file)
        self._selector = selectors.DefaultSelector()
        self._selector.register(waker, selectors.EVENT_READ, None)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.settimeout(0)
        name = b"kvsim-" + secrets.token_hex(16).encode()
        self._listening.bind(b"\0" + name)
        self._listening.listen(socket.SOMAXCONN)
        self._selector.register(self._listening, selectors.EVENT_READ, None)
        return name + _WORD.pack(region.num_bytes)

    def connect(self, link_id: int, peer: PeerId, address: bytes) -> None:
        """See `Driver`."""
        assert self._selector is not None
        name, length = address[: -_WORD.size], address[-_WORD.size :]
        line = _Line(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        line.socket.settimeout(0)
        caller = Caller(self._config.key, self._config.peer_id, peer)
        try:
            (num_bytes,) = _WORD.unpack(length)
            line.socket.connect(b"\0" + name)
            line.send(caller.hello)
        except (OSError, struct.error) as error:
            line.socket.close()
            self._tell(LinkDown(link_id, Reason.CONNECT, f"{peer} cannot be reached: {error}"))
            return
        out = self._outs[link_id] = _Out(link_id, line, caller, num_bytes)
        self._selector.register(line.socket, selectors.EVENT_READ, out)

    def post(self, post: Post) -> None:
        """See `Driver`."""
        out = self._outs.get(post.link_id)
        if out is None:
            self._tell(Finished(post.write_id, Reason.PEER_LOST, "the connection is no more"))
            return
        out.posts.append((post, deque(post.pieces)))

    def abort(self, write_id: int) -> None:
        """See `Driver`.

        What the peer has been told cannot be taken back: that is over when it has answered.
        """
        for out in self._outs.values():
            for entry in out.posts:
                if entry[0].write_id == write_id:
                    out.posts.remove(entry)
                    if out.window is not None:
                        with suppress(WindowError):  # then it has come to its end as well
                            out.window.finish()
                    self._tell(Finished(write_id, Reason.CANCELLED))
                    return

    def disconnect(self, link_id: int) -> None:
        """See `Driver`."""
        out = self._outs.pop(link_id, None)
        if out is not None:
            self._end(out, "it was disconnected")

    def turn(self) -> None:
        """See `Driver`."""
        assert self._selector is not None
        is_busy = any(out.posts and out.window for out in self._outs.values())
        for key, mask in self._selector.select(0 if is_busy else None):
            if key.fileobj is self._waker:
                self._waker.clear()
            elif key.fileobj is self._listening:
                self._accept()
            elif isinstance(key.data, _Out):
                self._serve_out(key.data, mask)
            elif key.data in self._ins:
                self._serve_in(key.data, mask)
        for out in list(self._outs.values()):
            if out.posts and out.window is not None:
                self._copy_some(out, out.window)

    def stop(self) -> None:
        """See `Driver`."""
        for out in list(self._outs.values()):
            self.disconnect(out.link_id)
        for guest in self._ins:
            guest.line.socket.close()
        self._ins.clear()
        if self._listening is not None:
            self._listening.close()
        if self._selector is not None:
            self._selector.close()

    def _copy_some(self, out: _Out, window: Window) -> None:
        """Go on with the first post of a link; when its bytes are there, tell the peer."""
        post, left = out.posts[0]
        room = _COPY_BYTES
        try:
            while left and room > 0:
                source, target, num_bytes = left.popleft()
                step = min(num_bytes, room)
                window.write(source, target, step)
                room -= step
                if step < num_bytes:
                    left.appendleft((source + step, target + step, num_bytes - step))
            if left:
                return
            window.finish()
        except WindowError as error:
            out.posts.popleft()
            self._tell(Finished(post.write_id, Reason.WRITE, str(error)))
            return
        out.posts.popleft()
        if post.tag is None:
            self._tell(Finished(post.write_id))
            return
        # Sending is a system call, so the bytes are there for whoever has received the word.
        out.unheard[post.write_id] = post
        self._send(out, _WORD.pack(post.write_id) + post.tag)

    def _send(self, out: _Out, message: bytes) -> None:
        try:
            out.line.send(message)
        except OSError as error:
            self._lose(out, f"the peer is gone: {error.strerror}")
            return
        self._watch(out.line, out)

    def _serve_out(self, out: _Out, mask: int) -> None:
        if out.link_id not in self._outs:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                out.line.push()
                self._watch(out.line, out)
            if mask & selectors.EVENT_READ:
                while self._read_out(out):
                    pass
        except BlockingIOError:
            return
        except (GreetingError, WindowError, struct.error) as error:
            self._lose(out, str(error))
        except OSError as error:
            self._lose(out, f"the peer is gone: {error.strerror}")

    def _read_out(self, out: _Out) -> bool:
        """Take a message; return whether there may be more."""
        message, files, _, _ = socket.recv_fds(out.line.socket, MAX_GREETING_BYTES, 1)
        file = take_file(files)
        try:
            if not message:
                self._lose(out, "the peer has died, closed, or refused the connection")
                return False
            if out.caller.session is None:
                out.line.send(out.caller.answer(message))
                self._watch(out.line, out)
            elif out.window is None:
                out.window = self._windows.open(message[1:], file, out.num_bytes)
                self._tell(LinkUp(out.link_id))
            else:
                (write_id,) = _WORD.unpack(message)
                if out.unheard.pop(write_id, None) is not None:
                    self._tell(Finished(write_id))
        finally:
            if file is not None:
                os.close(file)
        return True

    def _lose(self, out: _Out, detail: str) -> None:
        del self._outs[out.link_id]
        reason = Reason.CONNECT if out.window is None else Reason.PEER_LOST
        self._end(out, detail)
        self._tell(LinkDown(out.link_id, reason, detail))

    def _end(self, out: _Out, detail: str) -> None:
        assert self._selector is not None
        self._selector.unregister(out.line.socket)
        out.line.socket.close()
        if out.window is not None:
            with suppress(WindowError):  # of a context that is gone, with all its mappings
                out.window.close()
        for write_id in [*(post.write_id for post, _ in out.posts), *out.unheard]:
            self._tell(Finished(write_id, Reason.PEER_LOST, detail))

    def _accept(self) -> None:
        assert self._listening is not None
        assert self._selector is not None
        with suppress(BlockingIOError):
            accepted, _ = self._listening.accept()
            accepted.settimeout(0)
            strangers = [each for each in self._ins if not each.is_known]
            if len(strangers) >= _MAX_STRANGERS:
                self._leave(strangers[0])
            guest = _In(_Line(accepted))
            self._ins.append(guest)
            self._selector.register(accepted, selectors.EVENT_READ, guest)

    def _serve_in(self, guest: _In, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                guest.line.push()
                self._watch(guest.line, guest)
            if mask & selectors.EVENT_READ:
                while message := guest.line.socket.recv(MAX_GREETING_BYTES):
                    self._hear(guest, message)
                self._leave(guest)
        except BlockingIOError:
            return
        except (GreetingError, OSError, struct.error):
            self._leave(guest)

    def _hear(self, guest: _In, message: bytes) -> None:
        if guest.listener is None:
            guest.listener = Listener(self._config.key, self._config.peer_id, message)
            guest.line.send(guest.listener.welcome)
        elif not guest.is_known:
            guest.listener.check(message)
            guest.is_known = True
            offer, file = self._windows.offer()
            # The first send of a file blocks for nothing: nobody has filled this buffer yet.
            socket.send_fds(guest.line.socket, [b"\0" + offer], [] if file is None else [file])
        else:
            (write_id,) = _WORD.unpack(message[: _WORD.size])
            self._tell(Came(guest.listener.peer, message[_WORD.size :]))
            guest.line.send(_WORD.pack(write_id))
        self._watch(guest.line, guest)

    def _leave(self, guest: _In) -> None:
        assert self._selector is not None
        self._ins.remove(guest)
        self._selector.unregister(guest.line.socket)
        guest.line.socket.close()
        if guest.is_known and guest.listener is not None:
            peer = guest.listener.peer
            self._tell(Left(peer, f"{peer} has died, closed, or left"))

    def _watch(self, line: _Line, data: _In | _Out) -> None:
        """Wait for room to send only while something waits to be sent."""
        assert self._selector is not None
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.outbox else 0)
        self._selector.modify(line.socket, mask, data)


def open_endpoint(config: EndpointConfig) -> Endpoint:
    """Return an endpoint of `ipc`."""
    return Endpoint("ipc", config, IpcDriver(config))
