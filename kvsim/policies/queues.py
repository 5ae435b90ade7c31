"""Blocks in queues, and of each queue the first that may be chosen."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from kvsim.core.ports import RemoveReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.core.ports import AccessInfo, Peel
    from kvsim.types import NodeId

OWN_CHOICE: Final = frozenset({RemoveReason.EVICTED, RemoveReason.DEMOTED})
"""Removals that the policy chose itself. Both make a ghost: with a tier below nearly every victim
is moved there, and its return is the same news about the order as that of a dropped one."""

OUTSIDE: Final = -1
"""The queue of a block that is in none."""

_NODE_BITS: Final = 32
_NODE_MASK: Final = (1 << _NODE_BITS) - 1


class Queues:
    """First-in-first-out queues of blocks, of which only some may be chosen at a time.

    The block at the head may rarely be chosen (in 94 to 100 of 100 cases it has children or is in
    use), so nothing walks along a queue: each keeps a lazy heap of its listed members by their
    place. Every call is O(log n) amortised.

    Attributes
    ----------
    queue_of
        By node: the queue it is in, or `OUTSIDE`.
    num_in
        By queue: its members, listed or not.
    num_new
        By queue: those of them that came with a request that has not let go of them since. They
        are not counted in yet: the published algorithms make room first.
    num_listed
        By queue: those that may be chosen.
    """

    __slots__ = (
        "_clock",
        "_heaps",
        "_is_listed",
        "_is_new",
        "_left",
        "_place",
        "_rank",
        "num_in",
        "num_listed",
        "num_new",
        "queue_of",
    )

    def __init__(self, num_queues: int, num_nodes: int) -> None:
        self.queue_of = [OUTSIDE] * num_nodes
        self.num_in = [0] * num_queues
        self.num_new = [0] * num_queues
        self.num_listed = [0] * num_queues
        self._place = [0] * num_nodes
        self._is_listed = bytearray(num_nodes)
        self._is_new = bytearray(num_nodes)
        self._left: dict[NodeId, int] = {}
        self._rank = [0] * num_nodes
        self._heaps: list[list[int]] = [[] for _ in range(num_queues)]
        self._clock = 0

    def add_nodes(self, num_nodes: int) -> None:
        """Make room for node ids below `num_nodes`."""
        num_new = num_nodes - len(self.queue_of)
        self.queue_of += [OUTSIDE] * num_new
        self._place += [0] * num_new
        self._is_listed += bytes(num_new)
        self._is_new += bytes(num_new)
        self._rank += [0] * num_new

    def num_settled(self, queue: int) -> int:
        """Return how many members there are without the new ones."""
        return self.num_in[queue] - self.num_new[queue]

    def insert(self, node: NodeId, queue: int, *, is_new: bool) -> None:
        """Put a node that is in no queue at the end of one."""
        self.queue_of[node] = queue
        self.num_in[queue] += 1
        if is_new:
            self._is_new[node] = True
            self.num_new[queue] += 1
        self._clock += 1
        self._place[node] = self._clock

    def move(self, node: NodeId, queue: int) -> None:
        """Put a member at the end of a queue, of its own or of another; it is not new any more."""
        self._forget_newness(node)
        old = self.queue_of[node]
        self.num_in[old] -= 1
        self.num_in[queue] += 1
        self.queue_of[node] = queue
        self._clock += 1
        self._place[node] = self._clock
        if self._is_listed[node]:
            self.num_listed[old] -= 1
            self.num_listed[queue] += 1
            self._push(node, queue)

    def settle(self, path: Sequence[NodeId]) -> None:
        """Count in what was new of a path that is let go of: it takes its places now, leaf first.

        Not before, since the published algorithms queue a block behind those that were moved to
        make room for it.
        """
        is_new = self._is_new
        for node in reversed(path):
            if is_new[node]:
                self.move(node, self.queue_of[node])

    def remove(self, node: NodeId) -> None:
        """Take a member out of its queue."""
        self.unlist(node)
        self._forget_newness(node)
        self.num_in[self.queue_of[node]] -= 1
        self.queue_of[node] = OUTSIDE

    def enlist(self, node: NodeId) -> None:
        """Let a member be chosen from now on."""
        if not self._is_listed[node]:
            queue = self.queue_of[node]
            self._is_listed[node] = True
            self.num_listed[queue] += 1
            self._push(node, queue)

    def unlist(self, node: NodeId) -> None:
        """Let a member not be chosen any more."""
        if self._is_listed[node]:
            self._is_listed[node] = False
            self.num_listed[self.queue_of[node]] -= 1

    def first(self, queue: int) -> NodeId | None:
        """Return the listed member nearest to the head; None if there is none."""
        heap, place, is_listed = self._heaps[queue], self._place, self._is_listed
        while heap:
            node = heap[0] & _NODE_MASK
            if is_listed[node] and place[node] == heap[0] >> _NODE_BITS:
                return node
            heappop(heap)
        return None

    def first_of(self, queue: int, other: int) -> NodeId | None:
        """Return the first of one queue, the first choice, or else of the other, the second."""
        node = self.first(queue)
        return self.first(other) if node is None else node

    def take(self, node: NodeId, peel: Peel, victims: list[NodeId]) -> None:
        """Take a listed member off the tree, and nothing above it; a parent it bares is listed."""
        self._left[node] = self.queue_of[node]
        self.remove(node)
        # A limit below every rank.
        bare = peel(node, 1, self._rank, -1, victims)
        if bare >= 0:
            self.enlist(bare)

    def forget(self, node: NodeId, reason: RemoveReason) -> int | None:
        """Forget a node that left the tier; return the queue it was chosen from, if it was."""
        if reason in OWN_CHOICE:
            return self._left.pop(node)
        self.remove(node)
        return None

    def _forget_newness(self, node: NodeId) -> None:
        if self._is_new[node]:
            self._is_new[node] = False
            self.num_new[self.queue_of[node]] -= 1

    def _push(self, node: NodeId, queue: int) -> None:
        heap, place = self._heaps[queue], self._place
        heappush(heap, place[node] << _NODE_BITS | node)
        # Hits alone list and unlist for ever without a victim to clear stale entries.
        if len(heap) > 64 and len(heap) > 4 * self.num_listed[queue]:
            is_listed, queue_of = self._is_listed, self.queue_of
            nodes = {entry & _NODE_MASK for entry in heap}
            heap[:] = [
                place[each] << _NODE_BITS | each
                for each in nodes
                if is_listed[each] and queue_of[each] == queue
            ]
            heapify(heap)


def leaf_first(nodes: Sequence[NodeId], info: AccessInfo | None) -> Iterable[NodeId]:
    """Return the nodes of one call in the order of the per-block form.

    A path comes root first and is turned round; a demoted batch comes in victim order as it is.
    """
    return nodes if info is None else reversed(nodes)
