"""Random replacement: every evictable block is as good a victim as any other.

Source: the baseline RAND of L. A. Belady, "A study of replacement algorithms for a virtual-storage
computer", IBM Systems Journal 5(2), 1966. https://doi.org/10.1147/sj.52.0078
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import AccessInfo, Peel, PolicyContext, RemoveReason
    from kvsim.types import NodeId


class RandomChoice:
    """Evict one of the evictable blocks by a draw from `PolicyContext.rng`.

    Under the prefix rule only leaves are drawn, so it is not uniform over the tier: blocks near
    the end of a path go first.
    """

    ignores_hits = True

    __slots__ = ("_listed", "_position", "_rank", "_rng")

    def __init__(self, context: PolicyContext) -> None:
        self._rng = context.rng
        self._listed: list[NodeId] = []
        self._position: dict[NodeId, int] = {}
        self._rank = [0] * context.num_nodes
        context.on_resize.append(self.resize)

    def resize(self, capacity_blocks: int, num_nodes: int) -> None:
        """Make room for more nodes."""
        del capacity_blocks
        self._rank += [0] * (num_nodes - len(self._rank))

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Change nothing."""

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        """Change nothing."""

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        """Change nothing."""

    def on_evictable(self, node: NodeId) -> None:
        """List the block."""
        if node not in self._position:
            self._position[node] = len(self._listed)
            self._listed.append(node)

    def on_pinned(self, node: NodeId) -> None:
        """Take the block off the list; the last one fills its place."""
        position = self._position.pop(node, None)
        if position is not None:
            last = self._listed.pop()
            if last != node:
                self._listed[position] = last
                self._position[last] = position

    def on_remove(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        """Take the blocks off the list."""
        del reason
        for node in nodes:
            self.on_pinned(node)

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        """Draw one after another; a parent that is bared can be drawn next."""
        del now
        victims: list[NodeId] = []
        while len(victims) < n and self._listed:
            node = self._listed[self._rng.randrange(len(self._listed))]
            self.on_pinned(node)
            bare = peel(node, 1, self._rank, -1, victims)
            if bare >= 0:
                self.on_evictable(bare)
        return victims
