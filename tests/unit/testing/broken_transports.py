"""Transports that break one sentence of the contract each, made from a right one.

Each class opens an endpoint, so "tests.unit.testing.broken_transports:NAME" names a transport.
"""

# ruff: noqa: ANN401  (most hand on what they were given, as it is)

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kvsim.backends.transports import open_transport
from kvsim.backends.transports.pieces import Pieces
from kvsim.backends.transports.ports import (
    Connected,
    PeerLost,
    PieceError,
    Reason,
    WriteDone,
    WriteFailed,
)
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.backends.region import Region
    from kvsim.backends.transports.ports import Capabilities, EndpointConfig, Event, PeerId

FAR = 2**62
blocked = threading.Event()
"""Lets go what blocks, when the test is over."""


class Right:
    """Nothing is wrong with it: `ipc`, and room for what the others add to its events."""

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        self.inner = open_transport("ipc", config)
        self.added: list[Event] = []

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def register(self, region: Region, *, memory_file: int | None = None) -> bytes:
        return self.inner.register(region, memory_file=memory_file)

    def connect(self, peer: PeerId, description: bytes) -> None:
        self.inner.connect(peer, description)

    def write(
        self,
        peer: PeerId,
        write_id: int,
        pieces: Pieces,
        *,
        deadline_at: int,
        tag: bytes | None = None,
    ) -> None:
        self.inner.write(peer, write_id, pieces, deadline_at=deadline_at, tag=tag)

    def cancel(self, write_id: int) -> None:
        self.inner.cancel(write_id)

    def flush(self, peer: PeerId) -> None:
        self.inner.flush(peer)

    def disconnect(self, peer: PeerId) -> None:
        self.inner.disconnect(peer)

    def poll(self, timeout_ns: int = 0) -> Sequence[Event]:
        added, self.added = self.added, []
        return [*added, *self.inner.poll(0 if added else timeout_ns)]

    def close(self) -> None:
        self.inner.close()


class TellsTagsFirst(Right):
    """The tag goes at once, and the bytes when the writer looks again."""

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        self.late: list[tuple[Any, ...]] = []

    def write(self, peer: PeerId, write_id: int, pieces: Pieces, **options: Any) -> None:
        self.inner.write(peer, 2 * write_id, Pieces.of([]), **options)
        self.late.append((peer, 2 * write_id + 1, pieces, options["deadline_at"]))

    def poll(self, timeout_ns: int = 0) -> Sequence[Event]:
        for peer, write_id, pieces, deadline_at in self.late:
            self.inner.write(peer, write_id, pieces, deadline_at=deadline_at)
        self.late = []
        return super().poll(timeout_ns)


class LosesTags(Right):
    def write(self, *arguments: Any, deadline_at: int, tag: bytes | None = None) -> None:
        self.inner.write(*arguments, deadline_at=deadline_at)


class ShiftsBytes(Right):
    """Every piece lands a byte too far to the left, where there is room."""

    def write(self, peer: PeerId, write_id: int, pieces: Pieces, **options: Any) -> None:
        shifted = replace(pieces, targets=(pieces.targets - 1).clip(0))
        self.inner.write(peer, write_id, shifted, **options)


class EndsTwice(Right):
    def poll(self, timeout_ns: int = 0) -> Sequence[Event]:
        events = super().poll(timeout_ns)
        return [*events, *(event for event in events if isinstance(event, WriteDone))]


class WritesBeforeItRefuses(Right):
    def write(self, peer: PeerId, write_id: int, pieces: Pieces, **options: Any) -> None:
        try:
            self.inner.write(peer, 2 * write_id, pieces, **options)
        except PieceError:
            first = Pieces.of(list(pieces)[:1])
            self.inner.write(peer, 2 * write_id + 1, first, deadline_at=FAR)
            raise

    def poll(self, timeout_ns: int = 0) -> Sequence[Event]:
        return [
            WriteDone(event.write_id // 2) if isinstance(event, WriteDone) else event
            for event in super().poll(timeout_ns)
        ]


class TakesAnIdTwice(Right):
    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        self.ids: list[int] = []

    def write(self, peer: PeerId, write_id: int, pieces: Pieces, **options: Any) -> None:
        self.ids.append(write_id)
        self.inner.write(peer, len(self.ids) - 1, pieces, **options)

    def poll(self, timeout_ns: int = 0) -> Sequence[Event]:
        return [
            WriteDone(self.ids[event.write_id]) if isinstance(event, WriteDone) else event
            for event in super().poll(timeout_ns)
        ]


class ForgetsThatItIsConnected(Right):
    """It says nothing when it is connected already."""

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        self.peers: set[PeerId] = set()

    def connect(self, peer: PeerId, description: bytes) -> None:
        if peer not in self.peers:
            self.peers.add(peer)
            self.inner.connect(peer, description)


class ConnectsTwice(Right):
    def poll(self, timeout_ns: int = 0) -> Sequence[Event]:
        events = super().poll(timeout_ns)
        return [*events, *(event for event in events if isinstance(event, Connected))]


class TakesAnyDescription(Right):
    def connect(self, peer: PeerId, description: bytes) -> None:
        try:
            self.inner.connect(peer, description)
        except ConfigError:
            return


class TakesAnyKey(Right):
    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(replace(config, key=bytes(32)))


class TellsTheKey(Right):
    def register(self, region: Region, *, memory_file: int | None = None) -> bytes:
        return self.inner.register(region, memory_file=memory_file) + self.config.key


class NeverNotifies(Right):
    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(replace(config, notify=None))


class FailsEmptyWrites(Right):
    """The first thing that a write needs is a connection, whatever there is to write."""

    def write(self, peer: PeerId, write_id: int, pieces: Pieces, **options: Any) -> None:
        if pieces.total_bytes:
            self.inner.write(peer, write_id, pieces, **options)
        else:
            self.added.append(WriteFailed(write_id, Reason.CONNECT, "nobody", is_settled=True))


class DoesNotWait(Right):
    """A write fails unless `Connected` has been told."""

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        self.is_connected = False

    def write(self, peer: PeerId, write_id: int, pieces: Pieces, **options: Any) -> None:
        if self.is_connected:
            self.inner.write(peer, write_id, pieces, **options)
        else:
            self.added.append(WriteFailed(write_id, Reason.CONNECT, "not yet", is_settled=True))

    def poll(self, timeout_ns: int = 0) -> Sequence[Event]:
        events = super().poll(timeout_ns)
        self.is_connected |= any(isinstance(event, Connected) for event in events)
        return events


class WritesToNobody(Right):
    """A write without a connection is done."""

    def poll(self, timeout_ns: int = 0) -> Sequence[Event]:
        return [
            WriteDone(event.write_id)
            if isinstance(event, WriteFailed) and event.reason is Reason.CONNECT
            else event
            for event in super().poll(timeout_ns)
        ]


class IgnoresFlushes(TellsTagsFirst):
    """Tags overtake bytes, flush or not; bytes go when the tag is done."""

    def write(self, peer: PeerId, write_id: int, pieces: Pieces, **options: Any) -> None:
        if options.get("tag") is None:
            self.late.append((peer, write_id, pieces, options["deadline_at"]))
        else:
            self.inner.write(peer, 10**6 + write_id, pieces, **options)

    def poll(self, timeout_ns: int = 0) -> Sequence[Event]:
        events = self.inner.poll(timeout_ns)
        return [
            WriteDone(event.write_id - 10**6) if isinstance(event, WriteDone) else event
            for event in events
        ]


class IgnoresCancels(Right):
    def cancel(self, write_id: int) -> None:
        pass


class TimesOutEarly(Right):
    def write(self, *arguments: Any, deadline_at: int, tag: bytes | None = None) -> None:
        self.inner.write(*arguments, deadline_at=deadline_at - 10**9, tag=tag)


class HidesLosses(Right):
    """Nobody is told of a peer that is lost; writes to it fail for another reason."""

    def poll(self, timeout_ns: int = 0) -> Sequence[Event]:
        return [each for each in super().poll(timeout_ns) if not isinstance(each, PeerLost)]


class StainsOthers(Right):
    """With one peer, all are lost; and so they are for ever."""

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        self.is_stained = False

    def write(self, peer: PeerId, write_id: int, pieces: Pieces, **options: Any) -> None:
        if self.is_stained:
            self.added.append(WriteFailed(write_id, Reason.PEER_LOST, "all", is_settled=True))
        else:
            self.inner.write(peer, write_id, pieces, **options)

    def poll(self, timeout_ns: int = 0) -> Sequence[Event]:
        events = super().poll(timeout_ns)
        self.is_stained |= any(isinstance(event, PeerLost) for event in events)
        return events


class WritesToTheOldOne(Right):
    """It keeps to the first description of a peer."""

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        self.first: dict[PeerId, bytes] = {}

    def connect(self, peer: PeerId, description: bytes) -> None:
        self.inner.connect(peer, self.first.setdefault(peer, description))


class DoesNotDisconnect(Right):
    def disconnect(self, peer: PeerId) -> None:
        pass


class LeavesAThread(Right):
    def close(self) -> None:
        super().close()
        threading.Thread(target=blocked.wait, name="left behind", daemon=True).start()


class LeavesAFile(Right):
    left: ClassVar[list[Any]] = []

    def close(self) -> None:
        super().close()
        self.left.append(Path(__file__).open())  # noqa: SIM115


class ClosesOnce(Right):
    is_closed = False

    def close(self) -> None:
        if self.is_closed:
            raise RuntimeError("it is closed already")
        self.is_closed = True
        super().close()


class BlocksInWrite(Right):
    def write(self, *arguments: Any, **options: Any) -> None:
        blocked.wait()
