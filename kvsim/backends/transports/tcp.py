"""`tcp`: between processes of any machines, over ZeroMQ.

Every endpoint listens with one ROUTER; a link is a DEALER of its own, so that what happens to one
does not touch another. ZeroMQ says nothing about a peer that has died, neither to those that send
nor to those that receive: the monitor of each socket does.

A write goes in chunks, few of them under way at a time, each acknowledged when its bytes are in
the peer's memory. So an aborted write stops soon, and a peer that stands still holds up no more
than these few. Chunks are copied into ZeroMQ's memory as they are sent: without that copy pyzmq
needs a thread that outlives every socket, and a write that has failed would read its source until
the peer moves again.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from kvsim.backends.transports.driver import Finished, LinkDown, LinkUp
from kvsim.backends.transports.endpoint import Endpoint
from kvsim.backends.transports.greeting import Caller, GreetingError
from kvsim.backends.transports.memory import view_region
from kvsim.backends.transports.ports import Capabilities, Reason
from kvsim.backends.transports.tcp_guests import MAX_CHUNK_BYTES, Chunk, Guests
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.region import Region
    from kvsim.backends.transports.driver import Fact, Post, Waker
    from kvsim.backends.transports.memory import Bytes
    from kvsim.backends.transports.pieces import Pieces
    from kvsim.backends.transports.ports import EndpointConfig, PeerId

CAPABILITIES: Final = Capabilities(crosses_hosts=True)

_WINDOW_CHUNKS: Final = 4
"""Under way at a time on a link: enough to keep both ends busy."""

_LINK_ENDS: Final = (
    zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_ID: Final = struct.Struct("!Q")


@dataclass(slots=True)
class _Sending:
    """A post under way."""

    post: Post
    parts: deque[Pieces]
    num_unheard: int = 0
    is_aborted: bool = False


@dataclass(slots=True)
class _Out:
    """A link."""

    link_id: int
    peer: PeerId
    socket: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    caller: Caller
    is_up: bool = False
    num_unheard: int = 0
    queue: deque[_Sending] = field(default_factory=deque)  # not all sent
    sendings: dict[int, _Sending] = field(default_factory=dict)  # not over


class TcpDriver:
    """The driver of `tcp` (see `kvsim.backends.transports.driver.Driver`).

    On the loopback the bytes of a run can be read by the administrator of the machine alone, and
    are not encrypted. On any other address they are (CURVE, under keys made from that of the run),
    at a third to a half of the speed.

    Parameters
    ----------
    config
        Of the endpoint.
    encrypts
        Whether to encrypt; None: where the address is not of the loopback.

    Raises
    ------
    ConfigError
        If the address to listen on is not one that peers can reach.
    """

    def __init__(self, config: EndpointConfig, *, encrypts: bool | None = None) -> None:
        try:
            address = ip_address(config.bind)
        except ValueError as error:
            raise ConfigError(f"bind is an IP address, not {config.bind!r}") from error
        if address.is_unspecified:
            raise ConfigError(
                f"bind is the address that peers reach this machine at, not {config.bind}:"
                " nobody else is to reach it"
            )
        self._config = config
        self._host = f"[{address}]" if address.version == 6 else str(address)
        self._is_encrypted = not address.is_loopback if encrypts is None else encrypts
        self.capabilities = replace(CAPABILITIES, encrypts=self._is_encrypted)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._outs: dict[int, _Out] = {}
        self._poller = zmq.Poller()

    def start(
        self, region: Region, memory_file: int | None, tell: Callable[[Fact], None], waker: Waker
    ) -> bytes:
        """See `Driver`."""
        self._tell, self._waker = tell, waker
        self._memory: Bytes = view_region(region)
        self._context = zmq.Context()
        router = self._socket(zmq.ROUTER)
        router.setsockopt(zmq.MAXMSGSIZE, 2 * MAX_CHUNK_BYTES)
        if self._is_encrypted:
            router.curve_server = True
        monitor = router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        port = router.bind_to_random_port(f"tcp://{self._host}")
        self._guests = Guests(self._config, router, monitor, self._memory, tell)
        self._poller.register(waker, zmq.POLLIN)
        self._poller.register(router, zmq.POLLIN)
        self._poller.register(monitor, zmq.POLLIN)
        return f"tcp://{self._host}:{port}".encode()

    def connect(self, link_id: int, peer: PeerId, address: bytes) -> None:
        """See `Driver`."""
        caller = Caller(self._config.key, self._config.peer_id, peer)
        dealer = self._socket(zmq.DEALER)
        dealer.setsockopt(zmq.RECONNECT_IVL, -1)  # whoever comes back is somebody else
        if self._is_encrypted:
            dealer.setsockopt(zmq.CURVE_SERVERKEY, self._curve_keys()[0])
        monitor = dealer.get_monitor_socket(_LINK_ENDS)
        out = _Out(link_id, peer, dealer, monitor, caller)
        try:
            dealer.connect(address.decode("ascii"))
            dealer.send(b"H" + caller.hello, zmq.NOBLOCK)
        except (zmq.ZMQError, UnicodeDecodeError) as error:
            self._close(out)
            self._tell(LinkDown(link_id, Reason.CONNECT, f"{peer} cannot be reached: {error}"))
            return
        self._outs[link_id] = out
        self._poller.register(dealer, zmq.POLLIN)
        self._poller.register(monitor, zmq.POLLIN)

    def post(self, post: Post) -> None:
        """See `Driver`."""
        out = self._outs.get(post.link_id)
        if out is None:
            self._tell(Finished(post.write_id, Reason.PEER_LOST, "the connection is no more"))
            return
        parts = deque(post.pieces.split(MAX_CHUNK_BYTES)) or deque([post.pieces])
        sending = out.sendings[post.write_id] = _Sending(post, parts)
        out.queue.append(sending)
        self._send_some(out)

    def abort(self, write_id: int) -> None:
        """See `Driver`.

        What is on its way is over when the peer has answered the word that follows it.
        """
        for out in self._outs.values():
            sending = out.sendings.get(write_id)
            if sending is None:
                continue
            sending.is_aborted = True
            if sending in out.queue:
                out.queue.remove(sending)
            if not sending.num_unheard:
                del out.sendings[write_id]
                self._tell(Finished(write_id, Reason.CANCELLED))
            elif not self._send(out, [b"X" + _ID.pack(write_id)]):
                return
            self._send_some(out)
            return

    def disconnect(self, link_id: int) -> None:
        """See `Driver`."""
        out = self._outs.pop(link_id, None)
        if out is not None:
            self._end(out, "it was disconnected")

    def turn(self) -> None:
        """See `Driver`."""
        ready = dict(self._poller.poll())
        if self._waker.fileno() in ready:
            self._waker.clear()
        self._guests.serve()
        for out in list(self._outs.values()):
            if out.socket in ready:
                self._serve(out)
            if out.monitor in ready and out.link_id in self._outs:
                self._watch(out)

    def stop(self) -> None:
        """See `Driver`."""
        for link_id in list(self._outs):
            self.disconnect(link_id)
        if self._context is not None:
            # Also a router whose port could not be had: with no time to send what waits.
            self._context.destroy(linger=0)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        assert self._context is not None
        made = self._context.socket(kind)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, 0),  # what is under way is bounded by `_WINDOW_CHUNKS`
            (zmq.RCVHWM, 0),
            (zmq.IPV6, self._host.startswith("[")),
        ):
            made.setsockopt(option, int(value))
        if self._is_encrypted:
            public, secret = self._curve_keys()
            made.setsockopt(zmq.CURVE_PUBLICKEY, public)
            made.setsockopt(zmq.CURVE_SECRETKEY, secret)
        return made

    def _curve_keys(self) -> tuple[bytes, bytes]:
        """Return the key pair that all endpoints of the run have.

        Who does not know the key of the run knows the public one neither, so cannot connect. The
        greeting follows all the same.
        """
        secret = z85.encode(hmac.digest(self._config.key, b"curve", hashlib.sha256))
        return zmq.curve_public(secret), secret

    def _send(self, out: _Out, frames: list[Any]) -> bool:
        """Send a message; if that cannot be, the link is lost. Return whether it is there."""
        try:
            out.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError:  # no connection to put it into
            self._lose(out, f"{out.peer} has died or closed")
            return False
        return True

    def _send_some(self, out: _Out) -> None:
        """Send chunks while not too many are under way."""
        while out.queue and out.num_unheard < _WINDOW_CHUNKS:
            sending = out.queue[0]
            part = sending.parts.popleft()
            is_last = not sending.parts
            tag = sending.post.tag if is_last else None
            header = Chunk.of(sending.post.write_id, part, tag, is_last=is_last)
            if is_last:
                out.queue.popleft()
            sending.num_unheard += 1
            out.num_unheard += 1
            runs = [self._memory[source : source + length] for source, _, length in part]
            # One frame for all: a frame of its own costs more than a copy of a short run.
            payload = runs[0] if len(runs) == 1 else np.concatenate([self._memory[:0], *runs])
            if not self._send(out, [b"D" + msgspec.msgpack.encode(header), payload]):
                return

    def _serve(self, out: _Out) -> None:
        try:
            while out.link_id in self._outs:
                self._hear(out, out.socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return
        except (GreetingError, struct.error, UnicodeDecodeError) as error:
            self._lose(out, str(error))

    def _hear(self, out: _Out, message: bytes) -> None:
        kind, body = message[:1], message[1:]
        if kind == b"W":
            self._send(out, [b"P" + out.caller.answer(body)])
        elif out.caller.session is None:
            raise GreetingError("the other end has not shown that it has the key of this run")
        elif kind == b"R":
            out.is_up = True
            self._tell(LinkUp(out.link_id))
        elif kind in {b"A", b"N", b"X"}:
            (write_id,) = _ID.unpack(body[: _ID.size])
            self._settle(out, kind, write_id, body[_ID.size :].decode())

    def _settle(self, out: _Out, kind: bytes, write_id: int, detail: str) -> None:
        """Take an answer: to a chunk (A: it is there; N: refused), or to the end of a write (X)."""
        sending = out.sendings.get(write_id)
        if kind != b"X":
            out.num_unheard -= 1
        if sending is not None:
            if kind == b"X":
                del out.sendings[write_id]
                self._tell(Finished(write_id, Reason.CANCELLED))
            else:
                sending.num_unheard -= 1
                self._settle_chunk(out, sending, detail if kind == b"N" else "")
        self._send_some(out)

    def _settle_chunk(self, out: _Out, sending: _Sending, refusal: str) -> None:
        write_id = sending.post.write_id
        if refusal and not sending.is_aborted:
            # The first refusal decides; answers to the other chunks find nobody.
            if sending in out.queue:
                out.queue.remove(sending)
            del out.sendings[write_id]
            self._tell(Finished(write_id, Reason.WRITE, f"{out.peer} refuses it: {refusal}"))
        elif not sending.num_unheard and not sending.parts and not sending.is_aborted:
            del out.sendings[write_id]
            self._tell(Finished(write_id))

    def _watch(self, out: _Out) -> None:
        """Read the monitor of a link: all it tells of is the end."""
        with suppress(zmq.Again):
            event = recv_monitor_message(out.monitor, zmq.NOBLOCK)
            if event["event"] & _LINK_ENDS:
                self._serve(out)  # what came before the end
                if out.link_id in self._outs:
                    self._lose(out, f"{out.peer} has died, closed, or refused the connection")

    def _lose(self, out: _Out, detail: str) -> None:
        del self._outs[out.link_id]
        reason = Reason.PEER_LOST if out.is_up else Reason.CONNECT
        self._end(out, detail)
        self._tell(LinkDown(out.link_id, reason, detail))

    def _end(self, out: _Out, detail: str) -> None:
        self._poller.unregister(out.socket)
        self._poller.unregister(out.monitor)
        self._close(out)
        for write_id in out.sendings:
            self._tell(Finished(write_id, Reason.PEER_LOST, detail))

    def _close(self, out: _Out) -> None:
        out.socket.disable_monitor()
        out.monitor.close(linger=0)
        out.socket.close(linger=0)


def open_endpoint(config: EndpointConfig) -> Endpoint:
    """Return an endpoint of `tcp`."""
    return Endpoint("tcp", config, TcpDriver(config))
