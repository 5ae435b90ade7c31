"""The promises of an endpoint, whatever its driver tells and in whatever order.

The driver of these tests moves nothing. It notes what it is asked, and tells facts when the machine
says so: links come up, break or stay silent, posts end well, badly or late.
"""

from __future__ import annotations

import select
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.backends.region import MemoryKind, Region
from kvsim.backends.transports.description import encode_description
from kvsim.backends.transports.driver import Came, Finished, LinkDown, LinkUp
from kvsim.backends.transports.endpoint import Endpoint
from kvsim.backends.transports.pieces import Pieces
from kvsim.backends.transports.ports import (
    Capabilities,
    Connected,
    ConnectFailed,
    EndpointConfig,
    PeerId,
    Reason,
    WriteDone,
    WriteFailed,
    WriteSettled,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.transports.driver import Fact, Post, Waker
    from kvsim.backends.transports.ports import Event

PEERS = [PeerId(1, rank) for rank in range(2)]
PEER = st.sampled_from(PEERS)
CONNECT_NS = 50


class Scripted:
    """A driver that is told what to tell."""

    capabilities = Capabilities()

    def __init__(self) -> None:
        self.posts: dict[int, Post] = {}  # not finished
        self.links: dict[int, PeerId] = {}  # asked for, and neither down nor given up
        self.up: set[int] = set()
        self.post_order: list[int] = []

    def start(
        self, region: Region, memory_file: int | None, tell: Callable[[Fact], None], waker: Waker
    ) -> bytes:
        self.tell, self._waker = tell, waker
        return b"here"

    def connect(self, link_id: int, peer: PeerId, address: bytes) -> None:
        self.links[link_id] = peer

    def post(self, post: Post) -> None:
        self.post_order.append(post.write_id)
        if post.link_id in self.links:
            assert post.link_id in self.up
            self.posts[post.write_id] = post
        else:
            self.tell(Finished(post.write_id, Reason.PEER_LOST, "no link"))

    def abort(self, write_id: int) -> None:
        """Leave it be: it is over when the machine says so, as with a peer that stands still."""

    def disconnect(self, link_id: int) -> None:
        self.end_link(link_id)

    def end_link(self, link_id: int) -> None:
        self.links.pop(link_id, None)
        for write_id, post in list(self.posts.items()):
            if post.link_id == link_id:
                del self.posts[write_id]
                self.tell(Finished(write_id, Reason.PEER_LOST, "link"))

    def turn(self) -> None:
        select.select([self._waker], [], [])
        self._waker.clear()

    def stop(self) -> None:
        self.links.clear()


class EndpointMachine(RuleBasedStateMachine):
    """Calls and facts in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.driver = Scripted()
        config = EndpointConfig(
            peer_id=PeerId(0, 0),
            key=bytes(32),
            connect_timeout_ns=CONNECT_NS,
            clock=lambda: self.now,
        )
        self.endpoint = Endpoint("scripted", config, self.driver)
        self.next_write_id = 0
        self.version = 0
        self.ends: dict[int, Event] = {}
        self.settled: set[int] = set()
        self.deadlines: dict[int, int] = {}
        self.fences: dict[PeerId, set[int]] = {}  # writes before the last flush
        self.behind: dict[int, set[int]] = {}  # write -> those it must wait for
        self.asked: dict[PeerId, int] = {}
        self.answered: dict[PeerId, int] = {}
        self.writes_of: dict[PeerId, set[int]] = {}

    @initialize()
    def register(self) -> None:
        self.endpoint.register(Region(0, 100, MemoryKind.HOST))
        # Short runs are the usual ones: these shall not be about connections alone.
        for peer in PEERS:
            self.connect(peer, is_new=True, comes_up=True)

    def teardown(self) -> None:
        self.endpoint.close()
        self.endpoint.close()

    def wait(self) -> None:
        """Wait until the driver has been called as asked."""
        done: SimpleQueue[None] = SimpleQueue()
        self.endpoint._thread.call(lambda: done.put(None))  # noqa: SLF001
        done.get(timeout=30)

    @rule(peer=PEER, is_new=st.booleans(), comes_up=st.booleans())
    def connect(self, peer: PeerId, *, is_new: bool, comes_up: bool) -> None:
        self.version += is_new
        self.endpoint.connect(
            peer, encode_description("scripted", peer, 100, bytes([self.version % 256]))
        )
        self.asked[peer] = self.asked.get(peer, 0) + 1
        self.wait()
        links = [link_id for link_id, each in self.driver.links.items() if each == peer]
        assert len(links) <= 1  # the one before was given up
        if comes_up and not self.driver.up.issuperset(links):
            self.driver.up.update(links)
            self.driver.tell(LinkUp(links[0]))
            self.poll(0)

    @rule(
        peer=PEER,
        num_bytes=st.integers(0, 3),
        wait_ns=st.integers(1, 300),
        tag=st.booleans(),
        is_behind=st.booleans(),
    )
    def write(
        self, peer: PeerId, num_bytes: int, wait_ns: int, *, tag: bool, is_behind: bool
    ) -> None:
        if is_behind:
            self.endpoint.flush(peer)
            self.fences[peer] = self.writes_of.get(peer, set()) - self.ends.keys()
        write_id = self.next_write_id
        self.next_write_id += 1
        self.deadlines[write_id] = self.now + wait_ns
        self.behind[write_id] = set(self.fences.get(peer, ()))
        self.writes_of.setdefault(peer, set()).add(write_id)
        self.endpoint.write(
            peer,
            write_id,
            Pieces.of([(0, 0, num_bytes)]),
            deadline_at=self.deadlines[write_id],
            tag=b"t" if tag else None,
        )
        self.wait()

    @rule(back=st.integers(0, 4))
    def cancel(self, back: int) -> None:
        self.endpoint.cancel(self.next_write_id - back)  # also one that is not, or has ended
        self.wait()

    @rule(peer=PEER)
    def disconnect(self, peer: PeerId) -> None:
        self.endpoint.disconnect(peer)
        self.wait()

    @precondition(lambda self: self.driver.links.keys() - self.driver.up)
    @rule(data=st.data(), is_good=st.booleans())
    def answer_connect(self, data: Any, *, is_good: bool) -> None:  # noqa: ANN401  (hypothesis)
        link_id = data.draw(st.sampled_from(sorted(self.driver.links.keys() - self.driver.up)))
        if is_good:
            self.driver.up.add(link_id)
            self.driver.tell(LinkUp(link_id))
        else:
            del self.driver.links[link_id]
            self.driver.tell(LinkDown(link_id, Reason.CONNECT, "nobody"))

    @precondition(lambda self: self.driver.links.keys() & self.driver.up)
    @rule(data=st.data())
    def break_link(self, data: Any) -> None:  # noqa: ANN401
        link_id = data.draw(st.sampled_from(sorted(self.driver.links.keys() & self.driver.up)))
        self.driver.end_link(link_id)
        self.driver.tell(LinkDown(link_id, Reason.PEER_LOST, "broken"))

    @precondition(lambda self: self.driver.posts)
    @rule(data=st.data(), is_good=st.booleans())
    def finish(self, data: Any, *, is_good: bool) -> None:  # noqa: ANN401
        write_id = data.draw(st.sampled_from(sorted(self.driver.posts)))
        del self.driver.posts[write_id]
        self.driver.tell(Finished(write_id, None if is_good else Reason.WRITE, "so"))

    @rule(peer=PEER)
    def receive(self, peer: PeerId) -> None:
        self.driver.tell(Came(peer, b"x"))

    @rule(passed_ns=st.integers(0, 60))
    def poll(self, passed_ns: int) -> None:
        self.now += passed_ns
        for event in self.endpoint.poll():
            self.take(event)
        self.wait()
        for write_id, deadline_at in self.deadlines.items():
            assert deadline_at > self.now or write_id in self.ends

    def take(self, event: Event) -> None:
        match event:
            case WriteDone(write_id) | WriteFailed(write_id):
                assert write_id not in self.ends
                self.ends[write_id] = event
                if isinstance(event, WriteFailed):
                    if event.is_settled:
                        self.settled.add(write_id)
                    if event.reason is Reason.TIMEOUT:
                        assert self.deadlines[write_id] <= self.now
            case WriteSettled(write_id):
                end = self.ends[write_id]
                assert isinstance(end, WriteFailed)
                assert write_id not in self.settled
                self.settled.add(write_id)
            case Connected(peer) | ConnectFailed(peer):
                self.answered[peer] = self.answered.get(peer, 0) + 1
                assert self.answered[peer] <= self.asked[peer]

    @invariant()
    def nothing_overtakes_a_flush(self) -> None:
        for write_id in self.driver.post_order[-3:]:
            # Those it waits for have ended; all of them may not have been told yet.
            still = self.behind[write_id] & self.driver.posts.keys() - self.ends.keys()
            given_up = {each for each in still if self.deadlines[each] <= self.now}
            assert not still - given_up - self.untold()

    def untold(self) -> set[int]:
        """Return the writes whose end has been decided, and is told by the next `poll`."""
        events = self.endpoint._events  # noqa: SLF001
        return {event.write_id for event in events if isinstance(event, WriteDone | WriteFailed)}

    @rule()
    def bring_all_to_an_end(self) -> None:
        """Whatever is under way: once the driver has told all, all has ended and is settled."""
        for write_id in list(self.driver.posts):
            del self.driver.posts[write_id]
            self.driver.tell(Finished(write_id))
        self.poll(1000)
        for write_id in list(self.driver.posts):
            del self.driver.posts[write_id]
            self.driver.tell(Finished(write_id))
        self.poll(0)
        assert self.ends.keys() == set(range(self.next_write_id))
        failed = {i for i, end in self.ends.items() if isinstance(end, WriteFailed)}
        assert self.settled == failed
        assert not self.endpoint._writes  # noqa: SLF001
        assert all(not any(lane.parts) for lane in self.endpoint._lanes.values())  # noqa: SLF001


TestEndpoint = EndpointMachine.TestCase
TestEndpoint.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
