"""The prefix tree: one node per full block, in dense parallel lists.

A node is found by its chained key, so matching needs no child pointers: only taking a subtree out,
which is a failure path, does, and it may scan.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from kvsim.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.types import BlockKey, NodeId

ROOT: Final = 0
"""The node above all others. It has no block, and is always there."""


class PrefixTree:
    """Nodes, their keys and parents, and the references that hold them.

    Attributes
    ----------
    parent, key_of
        By node. Both are stale for a node that is not in use.
    pins
        References that end at the node (live attempts, pins of open ops and of prefixes). A
        reference holds every ancestor too: on the GPU a child protects its parent, so one count
        at the end does.
    detached
        Nodes that are out of the index but still have a copy somewhere. Nearly always empty.
    """

    __slots__ = (
        "_free",
        "detached",
        "index",
        "key_of",
        "parent",
        "pins",
    )

    def __init__(self, num_nodes: int) -> None:
        self.parent: list[NodeId] = [ROOT] * num_nodes
        self.key_of: list[BlockKey] = [None] * num_nodes
        self.pins = [0] * num_nodes
        self.detached: set[NodeId] = set()
        self.index: dict[BlockKey, NodeId] = {}
        self._free: list[NodeId] = list(range(num_nodes - 1, 0, -1))

    @property
    def num_nodes(self) -> int:
        """How many node ids there are, the root included."""
        return len(self.parent)

    def add_nodes(self, n: int) -> None:
        """Make room for `n` more nodes; the lists stay the same objects."""
        first = len(self.parent)
        self.parent += [ROOT] * n
        self.key_of += [None] * n
        self.pins += [0] * n
        self._free[:0] = range(first + n - 1, first - 1, -1)

    def match(self, keys: Sequence[BlockKey]) -> list[NodeId]:
        """Return the nodes of the longest leading run of `keys` in the tree. Changes nothing."""
        path = list(map(self.index.get, keys))
        if None in path:
            del path[path.index(None) :]
        return path  # type: ignore[return-value]  # the first None ends the run

    def insert(self, parent: NodeId, keys: Sequence[BlockKey]) -> list[NodeId]:
        """Add a chain of new nodes below `parent` and move a reference to its end.

        The caller holds a reference that ends at `parent` (or `parent` is the root and the
        reference is new); afterwards it ends at the last new node.
        """
        n = len(keys)
        nodes = self._free[-n:]
        if len(nodes) < n:
            raise MisuseError(f"{n} nodes asked for, {len(nodes)} free")
        del self._free[-n:]
        parents, key_of = self.parent, self.key_of
        above = parent
        for node, key in zip(nodes, keys, strict=True):
            parents[node] = above
            key_of[node] = key
            above = node
        self.index.update(zip(keys, nodes, strict=True))
        if parent != ROOT:
            self.pins[parent] -= 1
        self.pins[nodes[-1]] = 1
        return nodes

    def unpin(self, node: NodeId) -> None:
        """Take back a reference that ends at `node`.

        Raises
        ------
        MisuseError
            If there is none.
        """
        if self.pins[node] <= 0:
            raise MisuseError(f"node {node} has no reference to take back")
        self.pins[node] -= 1

    def path_to(self, node: NodeId) -> list[NodeId]:
        """Return the nodes from the first below the root down to `node`."""
        path: list[NodeId] = []
        while node != ROOT:
            path.append(node)
            node = self.parent[node]
        return path[::-1]

    def remove(self, nodes: Sequence[NodeId]) -> None:
        """Forget nodes that have no copy left. Their ids will be used again."""
        index, key_of = self.index, self.key_of
        if self.detached:
            for node in nodes:
                if node in self.detached:
                    self.detached.remove(node)
                else:
                    del index[key_of[node]]
        else:
            # A loop in C: this is one of the hottest steps of a replay.
            deque(map(index.__delitem__, map(key_of.__getitem__, nodes)), maxlen=0)
        self._free += nodes

    def detach(self, node: NodeId) -> None:
        """Take one node out of the index, so that it is never matched again."""
        del self.index[self.key_of[node]]
        self.detached.add(node)

    def subtree(self, top: NodeId) -> list[NodeId]:
        """Return `top` and every attached node below it, parents before children."""
        inside = {top}
        order = [top]
        parent = self.parent
        for start in self.index.values():
            chain: list[NodeId] = []
            node = start
            while node != ROOT and node not in inside:
                chain.append(node)
                node = parent[node]
            if node != ROOT:
                inside.update(chain)
                order += reversed(chain)
        return order

    def in_order(self) -> list[NodeId]:
        """Return every attached node, parents before children."""
        seen, order = {ROOT}, list[int]()
        for start in self.index.values():
            chain: list[NodeId] = []
            node = start
            while node not in seen:
                chain.append(node)
                node = self.parent[node]
            seen.update(chain)
            order += reversed(chain)
        return order

    def is_path(self, nodes: Sequence[NodeId]) -> bool:
        """Whether each node is the parent of the next, and the first is below the root."""
        parent = self.parent
        return not nodes or (
            parent[nodes[0]] == ROOT and all(parent[low] == high for high, low in pairwise(nodes))
        )
