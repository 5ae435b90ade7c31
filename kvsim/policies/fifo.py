"""First in, first out, under the prefix rule.

A parent outlives its children whatever its age, so the rule forces FIFO to take its second choice
whenever the oldest block has children in the tier; that makes it nearly LRU on real traces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.policies.rank import RankPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import AccessInfo
    from kvsim.types import NodeId


class FIFO(RankPolicy):
    """Evict the block that entered the tier first. Hits change nothing."""

    ignores_hits = True

    __slots__ = ()

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Stamp the nodes in the order in which they entered."""
        del depth, info
        self._stamp_each(nodes)

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        """Change nothing."""

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        """Change nothing."""
