"""`rdma`: by NIXL over UCX, which takes the fastest way there is between two machines.

Installed by a line of its own (the wheel declares a dependency that it does not need). What its
use has to heed:

- Its progress thread burns a core, so there is none; then whoever receives must ask for news again
  and again, or a write over TCP stands still. That is what this driver's thread is for.
- Left alone, UCX listens on every interface: it is told the device.
- Posts into shared memory block, so UCX is told not to use it (`ipc` is the transport for that).
- A peer that stands still leaves a write in progress for ever: the deadline of the endpoint ends
  it. One that is killed makes posts and notifications raise; who only waits for a peer hears
  nothing, so each side sends the other a beat.
- Memory that was deregistered after the exchange is still written, and reported as done: nothing is
  deregistered before the endpoint closes.
- NIXL knows no keys. Who reaches its port can send notifications under any name: those of a peer
  carry a MAC under a key of the connection. To write, one needs what is in the description.
"""

from __future__ import annotations

import secrets
import select
import struct
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import numpy as np

from kvsim.backends.region import MemoryKind
from kvsim.backends.transports.driver import Came, Finished, Left, LinkDown, LinkUp
from kvsim.backends.transports.endpoint import Endpoint
from kvsim.backends.transports.greeting import Caller, GreetingError, Listener, seal, unseal
from kvsim.backends.transports.nixl import open_agent
from kvsim.backends.transports.ports import Capabilities, Reason
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.region import Region
    from kvsim.backends.transports.driver import Fact, Post, Waker
    from kvsim.backends.transports.ports import EndpointConfig, PeerId

CAPABILITIES: Final = Capabilities(crosses_hosts=True, settles_target=False)

_ID: Final = struct.Struct("!Q")
_BEAT_S: Final = 0.25
"""Between two beats. NIXL needs up to a quarter of a second to see that a peer is dead."""
_BUSY_WAIT_S: Final = 50e-6
_IDLE_WAIT_S: Final = 1e-3
_BUSY_S: Final = 0.05
"""How long after the last news the next is expected soon."""


class _Address(msgspec.Struct, array_like=True, frozen=True):
    metadata: Annotated[bytes, msgspec.Meta(max_length=1 << 15)]
    base: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


_DECODER: Final = msgspec.msgpack.Decoder(_Address)


@dataclass(slots=True)
class _Out:
    """A link; `name` is that of the peer's agent."""

    link_id: int
    peer: PeerId
    name: str
    base: int
    caller: Caller
    is_up: bool = False
    transfers: dict[int, Any] = field(default_factory=dict)  # by write: what NIXL is at
    has_tag: set[int] = field(default_factory=set)  # of those
    unheard: set[int] = field(default_factory=set)  # told, and not acknowledged
    aborted: set[int] = field(default_factory=set)  # of `transfers`


@dataclass(slots=True)
class _Guest:
    """A peer that has said HELLO; `name` is that of its agent."""

    listener: Listener
    is_known: bool = False
    heard: deque[int] = field(default_factory=lambda: deque(maxlen=1 << 12))


class RdmaDriver:
    """The driver of `rdma` (see `kvsim.backends.transports.driver.Driver`).

    Parameters
    ----------
    config
        Of the endpoint.
    """

    capabilities = CAPABILITIES

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._agent: Any = None
        self._errors: tuple[type[Exception], ...] = ()
        self._memory: Any = None
        self._outs: dict[int, _Out] = {}
        self._guests: dict[str, _Guest] = {}
        self._dying: dict[int, tuple[Any, str]] = {}  # by write: of links that are no more
        self._next_beat_at = 0.0
        self._busy_until = 0.0

    def start(
        self, region: Region, memory_file: int | None, tell: Callable[[Fact], None], waker: Waker
    ) -> bytes:
        """See `Driver`."""
        if region.kind is not MemoryKind.HOST:
            raise ConfigError(f"rdma moves memory of the host here, not of kind {region.kind}")
        self._tell, self._waker = tell, waker
        self._region = region
        me = self._config.peer_id
        name = f"kvsim-{me.instance}-{me.rank}-{secrets.token_hex(8)}"
        self._agent, self._errors = open_agent(name, self._config.device)
        self._memory = self._agent.register_memory([(region.ptr, region.num_bytes, 0, "")], "DRAM")
        self._metadata = self._agent.get_agent_metadata()
        return msgspec.msgpack.encode(_Address(self._metadata, region.ptr))

    def connect(self, link_id: int, peer: PeerId, address: bytes) -> None:
        """See `Driver`."""
        caller = Caller(self._config.key, self._config.peer_id, peer, self._metadata)
        errors: tuple[type[Exception], ...] = (msgspec.MsgspecError, *self._errors)
        try:
            found = _DECODER.decode(address)
            name = _text(self._agent.add_remote_agent(found.metadata))
            out = _Out(link_id, peer, name, found.base, caller)
            self._agent.send_notif(name, b"H" + caller.hello)
        except errors as error:
            detail = f"{peer} cannot be reached: {error}"
            self._tell(LinkDown(link_id, Reason.CONNECT, detail))
            return
        self._outs[link_id] = out
        self._hurry()

    def post(self, post: Post) -> None:
        """See `Driver`."""
        out = self._outs.get(post.link_id)
        if out is None:
            self._tell(Finished(post.write_id, Reason.PEER_LOST, "the connection is no more"))
            return
        self._hurry()
        tag = b"" if post.tag is None else self._tag_message(out, post.write_id, post.tag)
        try:
            if not len(post.pieces):
                self._agent.send_notif(out.name, tag)
                out.unheard.add(post.write_id)
                return
            source = self._rows(post.pieces.sources, post.pieces.num_bytes, self._region.ptr)
            target = self._rows(post.pieces.targets, post.pieces.num_bytes, out.base)
            transfer = self._agent.initialize_xfer("WRITE", source, target, out.name, tag)
            out.transfers[post.write_id] = transfer
            if post.tag is not None:
                out.has_tag.add(post.write_id)
            state = self._agent.transfer(transfer)
        except self._errors as error:
            self._fail(out, post.write_id, error)
            return
        self._settle(out, post.write_id, state)

    def abort(self, write_id: int) -> None:
        """See `Driver`."""
        for out in self._outs.values():
            if write_id in out.transfers:
                out.aborted.add(write_id)

    def disconnect(self, link_id: int) -> None:
        """See `Driver`."""
        out = self._outs.pop(link_id, None)
        if out is not None:
            self._end(out, "it was disconnected")

    def turn(self) -> None:
        """See `Driver`."""
        is_busy = time.monotonic() < self._busy_until
        wait_s = _BUSY_WAIT_S if is_busy else _IDLE_WAIT_S
        if select.select([self._waker], [], [], wait_s)[0]:
            self._waker.clear()
        self._hear_all()
        self._bury()
        for out in list(self._outs.values()):
            for write_id in list(out.transfers):
                if out.link_id in self._outs:
                    self._look_at(out, write_id)
        if time.monotonic() >= self._next_beat_at:
            self._next_beat_at = time.monotonic() + _BEAT_S
            self._beat()

    def stop(self) -> None:
        """See `Driver`."""
        for link_id in list(self._outs):
            self.disconnect(link_id)
        self._guests.clear()
        self._dying.clear()
        if self._agent is not None and self._memory is not None:
            self._agent.deregister_memory(self._memory)
        self._agent = self._memory = None  # which is what ends it

    def _rows(self, offsets: Any, num_bytes: Any, base: int) -> Any:  # noqa: ANN401
        """Return NIXL's list of pieces: address, length and device of each."""
        table = np.empty((len(offsets), 3), np.uint64)
        table[:, 0] = offsets + base
        table[:, 1] = num_bytes
        table[:, 2] = 0
        return self._agent.get_xfer_descs(table, "DRAM")

    def _hurry(self) -> None:
        self._busy_until = time.monotonic() + _BUSY_S

    def _session(self, out: _Out) -> bytes:
        assert out.caller.session is not None
        return out.caller.session

    def _tag_message(self, out: _Out, write_id: int, tag: bytes) -> bytes:
        return b"T" + seal(self._session(out), b"tag", _ID.pack(write_id) + tag)

    def _look_at(self, out: _Out, write_id: int) -> None:
        """See how far NIXL is with a write; an aborted one is over when NIXL lets go of it."""
        transfer = out.transfers[write_id]
        try:
            if write_id in out.aborted:
                transfer.release()
                self._forget(out, write_id)
                self._tell(Finished(write_id, Reason.CANCELLED))
                return
            state = self._agent.check_xfer_state(transfer)
        except self._errors as error:
            if write_id not in out.aborted:
                self._fail(out, write_id, error)
            return
        self._settle(out, write_id, state)

    def _settle(self, out: _Out, write_id: int, state: str) -> None:
        self._hurry()
        if state == "PROC":
            return
        has_tag = write_id in out.has_tag
        self._release(out, write_id)
        if state != "DONE":
            self._tell(Finished(write_id, Reason.WRITE, f"NIXL ended it in state {state}"))
        elif has_tag:
            out.unheard.add(write_id)
        else:
            self._tell(Finished(write_id))

    def _fail(self, out: _Out, write_id: int, error: Exception) -> None:
        self._release(out, write_id)
        detail = f"{type(error).__name__}: {error}"
        if "Disconnect" in type(error).__name__:
            self._tell(Finished(write_id, Reason.PEER_LOST, detail))
            self._lose(out, detail)
        else:
            self._tell(Finished(write_id, Reason.WRITE, detail))

    def _let_go(self, transfer: Any) -> None:  # noqa: ANN401  (NIXL has no types)
        with suppress(*self._errors):  # under way still: the agent tries again when it ends
            transfer.release()

    def _release(self, out: _Out, write_id: int) -> None:
        transfer = out.transfers.get(write_id)
        self._forget(out, write_id)
        if transfer is not None:
            self._let_go(transfer)

    def _forget(self, out: _Out, write_id: int) -> None:
        out.transfers.pop(write_id, None)
        out.has_tag.discard(write_id)
        out.aborted.discard(write_id)

    def _lose(self, out: _Out, detail: str) -> None:
        if self._outs.pop(out.link_id, None) is not None:
            self._end(out, detail)
            if out.name not in self._guests:
                self._drop_agent(out.name)
            reason = Reason.PEER_LOST if out.is_up else Reason.CONNECT
            self._tell(LinkDown(out.link_id, reason, detail))

    def _end(self, out: _Out, detail: str) -> None:
        for write_id, transfer in out.transfers.items():
            self._dying[write_id] = (transfer, detail)
        for write_id in out.unheard:
            self._tell(Finished(write_id, Reason.PEER_LOST, detail))
        self._bury()

    def _bury(self) -> None:
        """Tell of transfers of links that are no more, as NIXL lets go of them."""
        for write_id, (transfer, detail) in list(self._dying.items()):
            try:
                transfer.release()
            except self._errors:  # it has begun to cancel it: its source may still be read
                continue
            del self._dying[write_id]
            self._tell(Finished(write_id, Reason.PEER_LOST, detail))

    def _drop_agent(self, name: str) -> None:
        with suppress(*self._errors):  # NIXL may have dropped it itself, with its connection
            self._agent.remove_remote_agent(name)

    def _hear_all(self) -> None:
        # Nobody of this run, or of a connection of before: NIXL lets anyone say anything.
        ignored: tuple[type[Exception], ...] = (GreetingError, struct.error, *self._errors)
        for name, messages in self._agent.get_new_notifs().items():
            self._hurry()
            for message in messages:
                with suppress(*ignored):
                    self._hear(_text(name), message[:1], message[1:])

    def _hear(self, name: str, kind: bytes, body: bytes) -> None:
        if kind in {b"H", b"P", b"T", b"E"}:
            self._hear_guest(name, kind, body)
            return
        for out in [each for each in self._outs.values() if each.name == name]:
            self._hear_host(out, kind, body)

    def _hear_host(self, out: _Out, kind: bytes, body: bytes) -> None:
        """Take an answer of the peer that a link leads to."""
        if kind == b"W":
            self._send(out.name, b"P" + out.caller.answer(body))
        elif out.caller.session is None:
            raise GreetingError("an answer to a connection of before")
        elif kind == b"R":
            unseal(self._session(out), b"ready", body)
            out.is_up = True
            self._tell(LinkUp(out.link_id))
        elif kind == b"A":
            (write_id,) = _ID.unpack(unseal(self._session(out), b"heard", body))
            if write_id in out.unheard:
                out.unheard.discard(write_id)
                self._tell(Finished(write_id))

    def _hear_guest(self, name: str, kind: bytes, body: bytes) -> None:
        """Take a message of a peer that has a link to here."""
        guest = self._guests.get(name)
        if kind == b"H":
            listener = Listener(self._config.key, self._config.peer_id, body)
            if _text(self._agent.add_remote_agent(listener.address)) != name:
                raise GreetingError("a greeting of one agent, sent by another")
            self._guests[name] = _Guest(listener)
            self._send(name, b"W" + listener.welcome)
        elif guest is not None and kind == b"P":
            guest.listener.check(body)
            guest.is_known = True
            self._send(name, b"R" + seal(guest.listener.session, b"ready", b""))
        elif guest is not None and guest.is_known and kind == b"T":
            message = unseal(guest.listener.session, b"tag", body)
            (write_id,) = _ID.unpack(message[: _ID.size])
            if write_id in guest.heard:
                return  # played back by somebody
            guest.heard.append(write_id)
            self._tell(Came(guest.listener.peer, message[_ID.size :]))
            answer = seal(guest.listener.session, b"heard", _ID.pack(write_id))
            self._send(name, b"A" + answer)

    def _send(self, name: str, message: bytes) -> bool:
        """Send a notification; return whether NIXL took it."""
        try:
            self._agent.send_notif(name, message)
        except self._errors:
            return False
        return True

    def _beat(self) -> None:
        """Send everybody a message that means nothing: it raises where a peer is dead."""
        for out in list(self._outs.values()):
            if out.is_up and not self._send(out.name, b"E"):
                self._lose(out, f"{out.peer} has died or closed")
        for name, guest in list(self._guests.items()):
            if not self._send(name, b"E"):
                del self._guests[name]
                if guest.is_known:
                    peer = guest.listener.peer
                    self._tell(Left(peer, f"{peer} has died or closed"))


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode()


def open_endpoint(config: EndpointConfig) -> Endpoint:
    """Return an endpoint of `rdma`."""
    return Endpoint("rdma", config, RdmaDriver(config))
