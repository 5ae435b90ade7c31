"""Policies in the plainest way, from their papers: lists and dicts, searched from end to end.

An oracle is told `hit` and `enter`, and asked for a victim among the blocks that may go. Of what
it is compared with it shares no code and no idea of how to be fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Set

    from kvsim.types import BlockKey, Request


class Oracle(Protocol):
    """A policy for a cache of `capacity` blocks."""

    def hit(self, key: BlockKey, depth: int, now: int, request: Request) -> None: ...

    def enter(self, key: BlockKey, depth: int, now: int, request: Request) -> None: ...

    def victim(self, may_go: Set[BlockKey], newcomer: BlockKey | None) -> BlockKey:
        """Let one of `may_go` leave. `newcomer` is what it makes room for, where that is known."""

    def turn(self, may_go: Set[BlockKey]) -> None:
        """Hear what may go after that."""


class Still:
    """Has nothing to do after an eviction."""

    def turn(self, may_go: Set[BlockKey]) -> None:
        pass


class Ranked(Still):
    """The least value goes; `value(key)` is asked anew for every block at every eviction."""

    def __init__(self, capacity: int) -> None:
        del capacity
        self.clock = 0
        self.entered: dict[BlockKey, int] = {}
        self.used: dict[BlockKey, int] = {}
        self.count: dict[BlockKey, int] = {}
        self.depth: dict[BlockKey, int] = {}
        self.next_use: dict[BlockKey, int] = {}

    def hit(self, key: BlockKey, depth: int, now: int, request: Request) -> None:
        self.clock += 1
        self.used[key] = now
        self.count[key] += 1
        self.note(key, depth, request)

    def enter(self, key: BlockKey, depth: int, now: int, request: Request) -> None:
        self.clock += 1
        self.entered[key] = self.clock
        self.used[key] = now
        self.count[key] = self.count.get(key, 0) + 1
        self.note(key, depth, request)

    def note(self, key: BlockKey, depth: int, request: Request) -> None:
        self.depth[key] = depth
        assert request.next_use_at is not None
        self.next_use[key] = request.next_use_at[depth]

    def victim(self, may_go: Set[BlockKey], newcomer: BlockKey | None) -> BlockKey:
        del newcomer
        key = min(may_go, key=self.value)
        self.leave(key)
        return key

    def leave(self, key: BlockKey) -> None:
        del self.count[key]

    def value(self, key: BlockKey) -> tuple[int, ...]:
        raise NotImplementedError


class LruOracle(Ranked):
    def value(self, key: BlockKey) -> tuple[int, ...]:
        return (self.used[key], -self.depth[key])


class LfuOracle(Ranked):
    def value(self, key: BlockKey) -> tuple[int, ...]:
        return (self.count[key], self.used[key], -self.depth[key])


class PersistentLfuOracle(LfuOracle):
    def leave(self, key: BlockKey) -> None:
        """Keep the count."""


class LengthAwareOracle(Ranked):
    def value(self, key: BlockKey) -> tuple[int, ...]:
        return (self.count[key], -self.depth[key], self.used[key])


class DepthFirstOracle(Ranked):
    def value(self, key: BlockKey) -> tuple[int, ...]:
        return (-self.depth[key], self.count[key], self.used[key])


class GdsfOracle(Ranked):
    """The cost of a block is its depth + 1, as in the contexts of these tests."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.age = 0
        self.worth: dict[BlockKey, int] = {}

    def note(self, key: BlockKey, depth: int, request: Request) -> None:
        super().note(key, depth, request)
        self.worth[key] = self.age + self.count[key] * (depth + 1)

    def value(self, key: BlockKey) -> tuple[int, ...]:
        return (self.worth[key], self.used[key], -self.depth[key])

    def leave(self, key: BlockKey) -> None:
        super().leave(key)
        self.age = max(self.age, self.worth[key])


def first_of(queue: Iterable[BlockKey], may_go: Set[BlockKey]) -> BlockKey | None:
    return next((key for key in queue if key in may_go), None)


class FifoOracle(Still):
    def __init__(self, capacity: int) -> None:
        del capacity
        self.queue: list[BlockKey] = []

    def hit(self, key: BlockKey, depth: int, now: int, request: Request) -> None:
        pass

    def enter(self, key: BlockKey, depth: int, now: int, request: Request) -> None:
        self.queue.append(key)

    def victim(self, may_go: Set[BlockKey], newcomer: BlockKey | None) -> BlockKey:
        key = first_of(self.queue, may_go)
        self.queue.remove(key)
        return key


class SlruOracle(Still):
    """Eighty of a hundred blocks may be protected."""

    def __init__(self, capacity: int) -> None:
        self.room = int(capacity * 0.8)
        self.probation: list[BlockKey] = []
        self.protected: list[BlockKey] = []

    def hit(self, key: BlockKey, depth: int, now: int, request: Request) -> None:
        segment = self.protected if key in self.protected else self.probation
        segment.remove(key)
        self.protected.append(key)
        if len(self.protected) > self.room:
            self.probation.append(self.protected.pop(0))

    def enter(self, key: BlockKey, depth: int, now: int, request: Request) -> None:
        self.probation.append(key)

    def victim(self, may_go: Set[BlockKey], newcomer: BlockKey | None) -> BlockKey:
        key = first_of([*self.probation, *self.protected], may_go)
        (self.probation if key in self.probation else self.protected).remove(key)
        return key


class TwoQueueOracle(Still):
    """A quarter of the blocks for A1in, ghosts for half of them."""

    def __init__(self, capacity: int) -> None:
        self.k_in, self.k_out = int(capacity * 0.25), int(capacity * 0.5)
        self.a1_in: list[BlockKey] = []
        self.a1_out: list[BlockKey] = []
        self.am: list[BlockKey] = []

    def hit(self, key: BlockKey, depth: int, now: int, request: Request) -> None:
        if key in self.am:
            self.am.remove(key)
            self.am.append(key)

    def enter(self, key: BlockKey, depth: int, now: int, request: Request) -> None:
        if key in self.a1_out:
            self.a1_out.remove(key)
            self.am.append(key)
        else:
            self.a1_in.append(key)

    def victim(self, may_go: Set[BlockKey], newcomer: BlockKey | None) -> BlockKey:
        queues = [self.a1_in, self.am]
        if len(self.a1_in) <= self.k_in:
            queues.reverse()
        key = first_of([*queues[0], *queues[1]], may_go)
        if key in self.a1_in:
            self.a1_in.remove(key)
            self.a1_out.append(key)
            # What comes back leaves A1out before room is made for it.
            if len([ghost for ghost in self.a1_out if ghost != newcomer]) > self.k_out:
                self.a1_out.remove(next(ghost for ghost in self.a1_out if ghost != newcomer))
        else:
            self.am.remove(key)
        return key


class ArcOracle(Still):
    """Figure 4 of the paper, its cases by their numbers."""

    def __init__(self, capacity: int) -> None:
        self.c = capacity
        self.p = 0.0
        self.adapted_for: BlockKey | None = None
        self.t1: list[BlockKey] = []
        self.t2: list[BlockKey] = []
        self.b1: list[BlockKey] = []
        self.b2: list[BlockKey] = []

    def hit(self, key: BlockKey, depth: int, now: int, request: Request) -> None:  # case I
        (self.t1 if key in self.t1 else self.t2).remove(key)
        self.t2.append(key)

    def adapt(self, key: BlockKey) -> None:
        if key in self.b1:  # case II
            self.p = min(self.p + max(len(self.b2) / len(self.b1), 1), self.c)
        elif key in self.b2:  # case III
            self.p = max(self.p - max(len(self.b1) / len(self.b2), 1), 0)

    def enter(self, key: BlockKey, depth: int, now: int, request: Request) -> None:
        if key != self.adapted_for:
            self.adapt(key)
        self.adapted_for = None
        for ghosts in (self.b1, self.b2):
            if key in ghosts:
                ghosts.remove(key)
                self.t2.append(key)
                return
        self.t1.append(key)
        while self.b1 and len(self.t1) + len(self.b1) > self.c:
            self.b1.pop(0)
        while self.b2 and len(self.t1 + self.t2 + self.b1 + self.b2) > 2 * self.c:
            self.b2.pop(0)

    def victim(self, may_go: Set[BlockKey], newcomer: BlockKey | None) -> BlockKey:
        if newcomer in self.b1 or newcomer in self.b2:
            self.adapt(newcomer)
            self.adapted_for = newcomer
        elif newcomer is not None and len(self.t1) + len(self.b1) == self.c:  # case IV A
            if len(self.t1) == self.c:
                key = first_of(self.t1, may_go)
                self.t1.remove(key)
                return key  # no ghost
            self.b1.pop(0)
        elif newcomer is not None and len(self.t1 + self.t2 + self.b1 + self.b2) == 2 * self.c:
            self.b2.pop(0)  # case IV B
        # REPLACE
        size = len(self.t1)
        order = [self.t2, self.t1]
        if size > self.p or (size == self.p and newcomer in self.b2):
            order.reverse()
        key = first_of([*order[0], *order[1]], may_go)
        if key in self.t1:
            self.t1.remove(key)
            self.b1.append(key)
        else:
            self.t2.remove(key)
            self.b2.append(key)
        return key


class SieveOracle:
    """Algorithm 1: `queue` from the tail to the head, `hand` the block to look at next."""

    def __init__(self, capacity: int) -> None:
        del capacity
        self.queue: list[BlockKey] = []
        self.visited: set[BlockKey] = set()
        self.hand = 0  # how many blocks from the tail it has passed

    def hit(self, key: BlockKey, depth: int, now: int, request: Request) -> None:
        self.visited.add(key)

    def enter(self, key: BlockKey, depth: int, now: int, request: Request) -> None:
        self.queue.append(key)

    def victim(self, may_go: Set[BlockKey], newcomer: BlockKey | None) -> BlockKey:
        while True:
            key = first_of(self.queue[self.hand :], may_go)
            if key is None:
                self.hand = 0
            elif key in self.visited:
                self.visited.remove(key)
                self.hand = self.queue.index(key) + 1
            else:
                self.hand = self.queue.index(key)
                self.queue.remove(key)
                return key

    def turn(self, may_go: Set[BlockKey]) -> None:
        """Go back to the tail if nothing is left ahead that may go."""
        if first_of(self.queue[self.hand :], may_go) is None:
            self.hand = 0


class S3FifoOracle(Still):
    """A tenth for the small queue, ghosts for nine tenths, as in libCacheSim."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.small_size = int(capacity * 0.1)
        self.ghost_size = int(capacity * 0.9)
        self.small: list[BlockKey] = []
        self.main: list[BlockKey] = []
        self.ghosts: list[BlockKey] = []
        self.hits: dict[BlockKey, int] = {}
        self.has_evicted = False

    def hit(self, key: BlockKey, depth: int, now: int, request: Request) -> None:
        self.hits[key] = min(self.hits[key] + 1, 3)

    def enter(self, key: BlockKey, depth: int, now: int, request: Request) -> None:
        self.hits[key] = 0
        if key in self.ghosts:
            self.ghosts.remove(key)
            self.main.append(key)
        elif not self.has_evicted and len(self.small) >= self.small_size:
            self.main.append(key)
        else:
            self.small.append(key)

    def victim(self, may_go: Set[BlockKey], newcomer: BlockKey | None) -> BlockKey:
        self.has_evicted = True
        order: list[Callable[[Set[BlockKey], BlockKey | None], BlockKey | None]]
        order = [self.from_small, self.from_main, self.from_main]
        if len(self.main) > self.capacity - self.small_size or not self.small:
            order = [self.from_main, self.from_small, self.from_main]
        for evict in order:
            key = evict(may_go, newcomer)
            if key is not None:
                return key
        raise AssertionError("nothing may go")

    def from_small(self, may_go: Set[BlockKey], newcomer: BlockKey | None) -> BlockKey | None:
        while (key := first_of(self.small, may_go)) is not None:
            self.small.remove(key)
            if self.hits[key] < 2:
                self.ghosts.append(key)
                # What comes back leaves the ghosts before room is made for it.
                others = [ghost for ghost in self.ghosts if ghost != newcomer]
                if len(others) > self.ghost_size:
                    self.ghosts.remove(others[0])
                return key
            self.hits[key] = 0
            self.main.append(key)
        return None

    def from_main(self, may_go: Set[BlockKey], newcomer: BlockKey | None) -> BlockKey | None:
        del newcomer
        while (key := first_of(self.main, may_go)) is not None:
            self.main.remove(key)
            if not self.hits[key]:
                return key
            self.hits[key] -= 1
            self.main.append(key)
        return None


class BeladyOracle(Ranked):
    def value(self, key: BlockKey) -> tuple[int, ...]:
        return (-self.next_use[key], -self.depth[key])


ORACLES: dict[str, Callable[[int], Oracle]] = {
    "lru": LruOracle,
    "lru-admit": LruOracle,  # one after another, the moment makes no difference
    "fifo": FifoOracle,
    "lfu": LfuOracle,
    "lfu-persistent": PersistentLfuOracle,
    "slru": SlruOracle,
    "2q": TwoQueueOracle,
    "arc": ArcOracle,
    "sieve": SieveOracle,
    "s3fifo": S3FifoOracle,
    "gdsf": GdsfOracle,
    "length-aware": LengthAwareOracle,
    "belady": BeladyOracle,
}
