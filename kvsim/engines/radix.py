"""Eviction by whole nodes of a compressed radix tree, one request after another.

A node is a run of blocks that no request has parted yet. A request that ends, or parts from the
others, inside a node splits it there. What is evicted is the leaf node used longest ago, as a
whole: more room than was needed may come free.

Source: SGLang 0.5.23, `srt/mem_cache/radix_cache.py`, `RadixCache.match_prefix`, `insert`, `evict`
and `_split_node`: what they do, not how.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.types import BlockKey

    KeyPath = Sequence[BlockKey]

_ROOT: Final = 0


def radix_runs(paths: Sequence[KeyPath], capacity: int, *, renews_tail: bool) -> list[int]:
    """Return how many leading blocks each request finds.

    O(nodes it touches + log nodes) a request.

    Parameters
    ----------
    paths
        The block keys of each request, root first; a key names its whole prefix.
    capacity
        In blocks. A longer path keeps its first blocks.
    renews_tail
        Whether the part of a split node that the request did not ask for counts as used by it.
    """
    tree = _RadixTree(paths, capacity)
    return [tree.serve(request, renews_tail=renews_tail) for request in range(len(paths))]


class _RadixTree:
    """Nodes in parallel lists: node n is blocks start[n] to end[n] of the path of owner[n]."""

    def __init__(self, paths: Sequence[KeyPath], capacity: int) -> None:
        self.paths, self.num_free = paths, capacity
        self.owner, self.start, self.end = [0], [0], [0]
        self.parent = [_ROOT]
        self.num_children = [0]
        self.used_at = [0]
        self.node_at: dict[BlockKey, int] = {}  # first block of a node -> the node
        self.leaves: list[tuple[int, int]] = []  # heap of (used_at, node); some are out of date

    def serve(self, request: int, *, renews_tail: bool) -> int:
        """Match, evict, insert; return the leading run."""
        path = self.paths[request]
        # Twice a request: a renewed tail is older than what the request holds until it is done.
        now = 2 * request + 1
        run, node = self._match(path, now, renews_tail=renews_tail)
        self._evict(len(path) - run, now)
        num_new = min(len(path) - run, self.num_free)
        if num_new:
            self.num_free -= num_new
            self._add(request, run, run + num_new, parent=node, used_at=now)
        elif node != _ROOT:
            self._offer(node)
        return run

    def _match(self, path: KeyPath, now: int, *, renews_tail: bool) -> tuple[int, int]:
        """Return how many blocks are found, and the node that ends there, split off if need be."""
        run, last = 0, _ROOT
        while run < len(path):
            node = self.node_at.get(path[run])
            if node is None:
                break
            old, start = self.paths[self.owner[node]], self.start[node]
            shared_end = _shared_until(old, path, start, self.end[node])
            if shared_end < self.end[node]:
                last = self._split(node, shared_end, now)
                if renews_tail:
                    self.used_at[node] = now - 1
                    self._offer(node)
                return shared_end, last
            self.used_at[node] = now
            run, last = shared_end, node
        return run, last

    def _split(self, node: int, at: int, now: int) -> int:
        """Make a node of the blocks before `at`; the other part remains what it was."""
        start = self.start[node]
        top = self._add(self.owner[node], start, at, parent=self.parent[node], used_at=now)
        self.num_children[self.parent[node]] -= 1  # the other part is not its child any more
        self.num_children[top] = 1
        self.parent[node], self.start[node] = top, at
        self.node_at[self.paths[self.owner[node]][at]] = node
        return top

    def _add(self, owner: int, start: int, end: int, *, parent: int, used_at: int) -> int:
        node = len(self.owner)
        self.owner.append(owner)
        self.start.append(start)
        self.end.append(end)
        self.parent.append(parent)
        self.num_children.append(0)
        self.used_at.append(used_at)
        self.num_children[parent] += 1
        self.node_at[self.paths[owner][start]] = node
        self._offer(node)
        return node

    def _offer(self, node: int) -> None:
        if not self.num_children[node]:
            heappush(self.leaves, (self.used_at[node], node))

    def _evict(self, num_needed: int, now: int) -> None:
        """Evict leaves that the request does not hold until enough is free, or none is left."""
        leaves = self.leaves
        while self.num_free < num_needed and leaves:
            used_at, node = leaves[0]
            if used_at == now:
                return  # what this request holds is the newest
            heappop(leaves)
            start = self.start[node]
            if self.num_children[node] or self.used_at[node] != used_at or start < 0:
                continue
            self.num_free += self.end[node] - start
            del self.node_at[self.paths[self.owner[node]][start]]
            self.start[node] = -1  # gone
            parent = self.parent[node]
            self.num_children[parent] -= 1
            if parent != _ROOT and self.used_at[parent] != now:
                self._offer(parent)


def _shared_until(old: KeyPath, new: KeyPath, start: int, end: int) -> int:
    """Return up to which position, at most `end`, two chained paths agree that agree at `start`."""
    low, high = start + 1, min(end, len(new))
    while low < high:
        middle = (low + high) >> 1
        if old[middle] == new[middle]:
            low = middle + 1
        else:
            high = middle
    return low
