"""An endpoint of any medium: what is promised of writes, whoever moves the bytes."""

from __future__ import annotations

import heapq
import time
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Final

from kvsim.backends.transports.description import decode_description, encode_description
from kvsim.backends.transports.driver import (
    Broken,
    Came,
    DriverThread,
    Finished,
    Left,
    LinkDown,
    LinkUp,
    Post,
)
from kvsim.backends.transports.ports import (
    MAX_TAG_BYTES,
    Arrived,
    Connected,
    ConnectFailed,
    PeerLost,
    Reason,
    TransportError,
    WriteDone,
    WriteFailed,
    WriteSettled,
)
from kvsim.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.backends.region import Region
    from kvsim.backends.transports.driver import Driver, Fact
    from kvsim.backends.transports.pieces import Pieces
    from kvsim.backends.transports.ports import Capabilities, EndpointConfig, Event, PeerId

_LONGEST_WAIT_S: Final = 60.0  # far below what the system's waits can express


class _State(Enum):
    CONNECTING = auto()
    UP = auto()
    DOWN = auto()


@dataclass(slots=True)
class _Link:
    """The present connection to a peer, or the last one."""

    link_id: int
    peer: PeerId
    description: bytes
    num_bytes: int
    deadline_at: int
    state: _State = _State.CONNECTING


@dataclass(slots=True)
class _Write:
    """A write that has not ended, or not settled."""

    write_id: int
    peer: PeerId
    pieces: Pieces
    tag: bytes | None
    is_posted: bool = False
    has_ended: bool = False


@dataclass(slots=True)
class _Lane:
    """The writes to a peer that have not ended, cut by `flush`: those of the first part may go."""

    parts: deque[dict[int, _Write]] = field(default_factory=lambda: deque([{}]))


class Endpoint:
    """A transport over the medium of a driver (see `kvsim.backends.transports.ports.Transport`).

    Parameters
    ----------
    name
        Of the transport: only endpoints of one name connect.
    config
        Whose it is, and how.
    driver
        Moves the bytes.
    """

    def __init__(self, name: str, config: EndpointConfig, driver: Driver) -> None:
        self._name = name
        self._config = config
        self._driver = driver
        self._thread = DriverThread(driver, f"{name} of {config.peer_id}", config.notify)
        self._num_bytes: int | None = None  # of the region, once there is one
        self._is_closed = False
        self._broken: str | None = None
        self._links: dict[PeerId, _Link] = {}
        self._links_by_id: dict[int, _Link] = {}
        self._next_link_id = 0
        self._last_write_id: int | None = None
        self._writes: dict[int, _Write] = {}
        self._lanes: dict[PeerId, _Lane] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._events: list[Event] = []

    @property
    def capabilities(self) -> Capabilities:
        """See `Transport`."""
        return self._driver.capabilities

    def register(self, region: Region, *, memory_file: int | None = None) -> bytes:
        """See `Transport`."""
        if self._is_closed or self._num_bytes is not None:
            raise MisuseError("an endpoint has one region, registered once, before it is closed")
        address = self._thread.start(region, memory_file)
        self._num_bytes = region.num_bytes
        return encode_description(self._name, self._config.peer_id, region.num_bytes, address)

    def connect(self, peer: PeerId, description: bytes) -> None:
        """See `Transport`."""
        self._check_open()
        found = decode_description(self._name, peer, description)
        link = self._links.get(peer)
        if link is not None and link.description == description and link.state is not _State.DOWN:
            if link.state is _State.UP:
                self._events.append(Connected(peer))
            return
        self.disconnect(peer)
        link = _Link(
            self._next_link_id,
            peer,
            description,
            found.num_bytes,
            self._config.clock() + self._config.connect_timeout_ns,
        )
        self._next_link_id += 1
        self._links[peer] = self._links_by_id[link.link_id] = link
        self._thread.call(partial(self._driver.connect, link.link_id, peer, found.address))

    def write(
        self,
        peer: PeerId,
        write_id: int,
        pieces: Pieces,
        *,
        deadline_at: int,
        tag: bytes | None = None,
    ) -> None:
        """See `Transport`."""
        num_bytes = self._check_open()
        if self._last_write_id is not None and write_id <= self._last_write_id:
            raise MisuseError(
                f"write {write_id} comes after write {self._last_write_id}: ids of writes grow"
            )
        if tag is not None and len(tag) > MAX_TAG_BYTES:
            raise MisuseError(f"a tag has at most {MAX_TAG_BYTES} bytes, not {len(tag)}")
        link = self._links.get(peer)
        # Without a link nobody knows how long the peer's region is, and nothing will be written.
        pieces.check_within(num_bytes, num_bytes if link is None else link.num_bytes)
        self._last_write_id = write_id
        pieces = pieces.merged()
        if not len(pieces) and tag is None:
            self._events.append(WriteDone(write_id))
            return
        if link is None or link.state is _State.DOWN:
            self._events.append(_failed(write_id, Reason.CONNECT, f"{peer} is not connected"))
            return
        write = _Write(write_id, peer, pieces, tag)
        lane = self._lanes.setdefault(peer, _Lane())
        lane.parts[-1][write_id] = self._writes[write_id] = write
        heapq.heappush(self._deadlines, (deadline_at, write_id))
        if link.state is _State.UP and len(lane.parts) == 1:
            self._post(write, link)

    def cancel(self, write_id: int) -> None:
        """See `Transport`."""
        self._check_open()
        write = self._writes.get(write_id)
        if write is not None and not write.has_ended:
            self._fail(write, Reason.CANCELLED, "it was to be")

    def flush(self, peer: PeerId) -> None:
        """See `Transport`."""
        self._check_open()
        lane = self._lanes.get(peer)
        if lane is not None and lane.parts[-1]:
            lane.parts.append({})

    def disconnect(self, peer: PeerId) -> None:
        """See `Transport`."""
        self._check_open()
        link = self._links.get(peer)
        if link is not None and link.state is not _State.DOWN:
            detail = f"{peer} was disconnected"
            self._drop(link, Reason.PEER_LOST, detail, of_writes=Reason.PEER_LOST)

    def poll(self, timeout_ns: int = 0) -> Sequence[Event]:
        """See `Transport`."""
        self._check_open()
        give_up_at = time.monotonic_ns() + timeout_ns
        while True:
            while (fact := self._thread.next_fact(0)) is not None:
                self._take(fact)
            self._expire()
            left_ns = give_up_at - time.monotonic_ns()
            if self._events or left_ns <= 0 or self._broken is not None:
                break
            fact = self._thread.next_fact(min(left_ns, self._until_next_ns()) / 10**9)
            if fact is not None:
                self._take(fact)
        if self._broken is not None and not self._events:
            raise TransportError(f"{self._name} of {self._config.peer_id} broke: {self._broken}")
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """See `Transport`."""
        self._is_closed = True
        self._thread.stop()
        self._writes.clear()
        self._lanes.clear()

    def _check_open(self) -> int:
        """Return the length of the region."""
        if self._is_closed:
            raise MisuseError("this endpoint is closed")
        if self._num_bytes is None:
            raise MisuseError("register a region first")
        return self._num_bytes

    def _post(self, write: _Write, link: _Link) -> None:
        write.is_posted = True
        post = Post(link.link_id, write.write_id, write.pieces, write.tag)
        self._thread.call(partial(self._driver.post, post))

    def _post_ready(self, link: _Link) -> None:
        """Post what waited for the link, or for earlier writes, and need wait no more."""
        lane = self._lanes.get(link.peer)
        if lane is None or link.state is not _State.UP:
            return
        while len(lane.parts) > 1 and not lane.parts[0]:
            lane.parts.popleft()
        for write in list(lane.parts[0].values()):
            if not write.is_posted:
                self._post(write, link)

    def _end(self, write: _Write) -> None:
        """Note that a write has ended; those behind it may go."""
        write.has_ended = True
        for part in self._lanes[write.peer].parts:
            part.pop(write.write_id, None)
        if not write.is_posted:
            del self._writes[write.write_id]

    def _fail(self, write: _Write, reason: Reason, detail: str) -> None:
        """End a write that the driver may still be at."""
        self._events.append(
            WriteFailed(write.write_id, reason, detail, is_settled=not write.is_posted)
        )
        self._end(write)
        if write.is_posted:
            self._thread.call(partial(self._driver.abort, write.write_id))
        self._post_ready(self._links[write.peer])

    def _drop(self, link: _Link, reason: Reason, detail: str, *, of_writes: Reason) -> None:
        """End a link here, and all that waits for it or is under way on it."""
        was_up = link.state is _State.UP
        self._lose(link, of_writes, detail)
        if not was_up:
            self._events.append(ConnectFailed(link.peer, reason, detail))
        self._thread.call(partial(self._driver.disconnect, link.link_id))

    def _lose(self, link: _Link, reason: Reason, detail: str) -> None:
        link.state = _State.DOWN
        del self._links_by_id[link.link_id]
        lane = self._lanes.pop(link.peer, None)
        for part in () if lane is None else lane.parts:
            for write in part.values():
                write.has_ended = True
                self._events.append(
                    WriteFailed(write.write_id, reason, detail, is_settled=not write.is_posted)
                )
                if not write.is_posted:
                    del self._writes[write.write_id]

    def _take(self, fact: Fact) -> None:
        """Make events of a fact."""
        match fact:
            case Finished():
                self._finish(fact)
            case LinkUp(link_id):
                link = self._links_by_id.get(link_id)
                if link is not None:
                    link.state = _State.UP
                    self._events.append(Connected(link.peer))
                    self._post_ready(link)
            case LinkDown(link_id, reason, detail):
                link = self._links_by_id.get(link_id)
                if link is not None:
                    self._take_down(link, reason, detail)
            case Came(peer, tag):
                self._events.append(Arrived(peer, tag))
            case Left(peer, detail):
                self._events.append(PeerLost(peer, detail))
            case Broken(detail):
                self._broken = detail

    def _take_down(self, link: _Link, reason: Reason, detail: str) -> None:
        if link.state is _State.UP:
            self._lose(link, Reason.PEER_LOST, detail)
            self._events.append(PeerLost(link.peer, detail))
        else:
            self._lose(link, Reason.CONNECT, detail)
            self._events.append(ConnectFailed(link.peer, reason, detail))

    def _finish(self, fact: Finished) -> None:
        write = self._writes.pop(fact.write_id)
        if write.has_ended:
            self._events.append(WriteSettled(write.write_id))
            return
        if fact.reason is None:
            self._events.append(WriteDone(write.write_id))
        else:
            self._events.append(_failed(write.write_id, fact.reason, fact.detail))
        self._end(write)
        self._post_ready(self._links[write.peer])

    def _expire(self) -> None:
        """End what has come to its deadline."""
        now = self._config.clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, write_id = heapq.heappop(self._deadlines)
            write = self._writes.get(write_id)
            if write is not None and not write.has_ended:
                self._fail(write, Reason.TIMEOUT, "it was not done by its deadline")
        for link in list(self._links_by_id.values()):
            if link.state is _State.CONNECTING and link.deadline_at <= now:
                waited_s = self._config.connect_timeout_ns / 10**9
                detail = f"{link.peer} has not answered within {waited_s:g} s"
                self._drop(link, Reason.TIMEOUT, detail, of_writes=Reason.CONNECT)

    def _until_next_ns(self) -> int:
        """Return how long nothing can expire."""
        while self._deadlines and self._is_over(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        ends = [deadline_at for deadline_at, _ in self._deadlines[:1]]
        ends += [
            link.deadline_at
            for link in self._links_by_id.values()
            if link.state is _State.CONNECTING
        ]
        longest_ns = int(_LONGEST_WAIT_S * 10**9)
        return min([longest_ns, *(end - self._config.clock() for end in ends)])

    def _is_over(self, write_id: int) -> bool:
        write = self._writes.get(write_id)
        return write is None or write.has_ended


def _failed(write_id: int, reason: Reason, detail: str) -> WriteFailed:
    """Return the end of a write that nobody is at."""
    return WriteFailed(write_id, reason, detail, is_settled=True)
