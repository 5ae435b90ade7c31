"""Least frequently used: by the uses since the block entered, or by all it ever had.

Source: A. V. Aho, P. J. Denning and J. D. Ullman, "Principles of optimal page replacement",
Journal of the ACM 18(1), 1971 (https://doi.org/10.1145/321623.321632): with counts that survive
it estimates their A0. The form that forgets is the common one, in libCacheSim as elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.policies.rank import RankPolicy
from kvsim.policies.uses import Uses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import AccessInfo, PolicyContext, RemoveReason
    from kvsim.types import NodeId

_CLOCK_BITS: Final = 48
"""Room for 2**48 requests in the lower part of a rank."""


class LFU(RankPolicy):
    """Evict the block with the fewest uses since it entered the cache; of equals, the oldest use.

    A path is used as a whole, at its release. A block that moves between tiers keeps its count.

    Under the prefix rule a parent outlives its children although it may have as few uses and an
    older last one, when a part of its path came back after an eviction: then LFU takes its second
    choice. Up to 6 points of hit rate lie between this and `PersistentLFU`: name the one you mean.
    """

    is_persistent = False

    __slots__ = ("_key_of", "_uses")

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._key_of = context.key_of
        self._uses = Uses(context, is_kept=self.is_persistent)

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Count a use, or rank blocks that come from the tier above."""
        self._uses.enter(nodes, depth, info)
        if info is None:
            for node in nodes:
                self._rank([node])

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        """Count a use."""
        del depth, info
        self._uses.hit(nodes)

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        """Rank the path, used as a whole."""
        del info
        self._rank(path)

    def on_remove(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        """Forget the counts of blocks that are in no tier any more."""
        super().on_remove(nodes, reason)
        self._uses.leave(nodes, reason)

    def _rank(self, nodes: Sequence[NodeId]) -> None:
        self._clock = clock = self._clock + 1
        rank, key_of, num_uses = self.rank, self._key_of, self._uses.num_uses
        for node in nodes:
            rank[node] = num_uses.get(key_of[node], 0) << _CLOCK_BITS | clock


class PersistentLFU(LFU):
    """Evict the block with the fewest uses ever; of equals, the one whose last use is oldest.

    Counts are kept by key after eviction, without bound. A parent has at least the uses of its
    children, so the prefix rule never forces a second choice.
    """

    is_persistent = True

    __slots__ = ()
