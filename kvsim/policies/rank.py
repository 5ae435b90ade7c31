"""Policies that are a rank per block: the smallest evictable rank leaves first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from kvsim.types import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import Peel, PolicyContext, RemoveReason
    from kvsim.types import NodeId

_NODE_BITS = 32
_NODE_MASK = (1 << _NODE_BITS) - 1
_OWN_CHOICE = frozenset({"evicted", "demoted"})


class RankPolicy:
    """What policies with a rank per block have in common. A subclass keeps `rank` up to date.

    Evictable leaves lie in a lazy heap, by rank, then by node id. Entries are never searched for:
    one that is no longer listed, or whose rank has changed since, is thrown away when it comes
    up. A parent that is bared and still the smallest is taken at once by `peel`, without entering
    the heap (one callback a victim costs 1.3 times as much on a real trace).

    The one place where kvsim inherits: a rank policy is a few lines on top of this.

    Attributes
    ----------
    rank
        By node; the smallest leaves first.
    """

    __slots__ = ("_clock", "_heap", "_is_listed", "_num_listed", "rank")

    def __init__(self, context: PolicyContext) -> None:
        self.rank = [0] * context.num_nodes
        self._clock = 0
        self._heap: list[int] = []
        self._is_listed = [False] * context.num_nodes
        self._num_listed = 0
        context.on_resize.append(self.resize)

    def resize(self, capacity_blocks: int, num_nodes: int) -> None:
        """Make room for more nodes."""
        del capacity_blocks
        num_new = num_nodes - len(self.rank)
        self.rank += [0] * num_new
        self._is_listed += [False] * num_new

    def on_evictable(self, node: NodeId) -> None:
        """List the node by its present rank."""
        if not self._is_listed[node]:
            self._is_listed[node] = True
            self._num_listed += 1
        heap = self._heap
        heappush(heap, self.rank[node] << _NODE_BITS | node)
        # A workload of hits alone lists and pins for ever without a victim to clear stale entries.
        if len(heap) > 64 and len(heap) > 4 * self._num_listed:
            self._rebuild()

    def on_pinned(self, node: NodeId) -> None:
        """Take the node off the list."""
        if self._is_listed[node]:
            self._is_listed[node] = False
            self._num_listed -= 1

    def on_remove(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        """Take the nodes off the list; victims of our own are off it already."""
        if reason not in _OWN_CHOICE:
            for node in nodes:
                self.on_pinned(node)

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        """Take the `n` smallest ranks, each parent as soon as it is bare."""
        del now
        victims: list[NodeId] = []
        heap, rank, is_listed = self._heap, self.rank, self._is_listed
        while len(victims) < n and heap:
            entry = heappop(heap)
            node = entry & _NODE_MASK
            if not is_listed[node] or rank[node] != entry >> _NODE_BITS:
                continue
            is_listed[node] = False
            self._num_listed -= 1
            limit = heap[0] >> _NODE_BITS if heap else NEVER
            bare = peel(node, n - len(victims), rank, limit, victims)
            if bare >= 0:
                self.on_evictable(bare)
                heap = self._heap
        return victims

    def _stamp(self, nodes: Sequence[NodeId]) -> None:
        """Give the nodes one new rank, larger than all before."""
        self._clock = clock = self._clock + 1
        rank = self.rank
        for node in nodes:
            rank[node] = clock

    def _stamp_each(self, nodes: Sequence[NodeId]) -> None:
        """Give each node a new rank of its own, rising along `nodes`."""
        clock, rank = self._clock, self.rank
        for node in nodes:
            clock += 1
            rank[node] = clock
        self._clock = clock

    def _rebuild(self) -> None:
        rank = self.rank
        self._heap = [
            rank[node] << _NODE_BITS | node for node, listed in enumerate(self._is_listed) if listed
        ]
        heapify(self._heap)
