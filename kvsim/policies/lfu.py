"""Least frequently used: by the uses since the block entered, or by all it ever had.

Source: A. V. Aho, P. J. Denning and J. D. Ullman, "Principles of optimal page replacement",
Journal of the ACM 18(1), 1971 (https://doi.org/10.1145/321623.321632): with counts that survive
it estimates their A0. The form that forgets is the common one, in libCacheSim as elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.policies.uses import UsesPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.types import NodeId

_CLOCK_BITS: Final = 48
"""Room for 2**48 requests in the lower part of a rank."""


class LFU(UsesPolicy):
    """Evict the block with the fewest uses since it entered the cache; of equals, the oldest use.

    A path is used as a whole, at its release. A block that moves between tiers keeps its count.

    Under the prefix rule a parent outlives its children although it may have as few uses and an
    older last one, when a part of its path came back after an eviction: then LFU takes its second
    choice. Up to 6 points of hit rate lie between this and `PersistentLFU`: name the one you mean.
    """

    __slots__ = ()

    def rank_all(self, nodes: Sequence[NodeId]) -> None:
        """Rank by uses, then by this moment."""
        self._clock = clock = self._clock + 1
        rank, key_of, num_uses = self.rank, self._key_of, self._uses.num_uses
        for node in nodes:
            rank[node] = num_uses.get(key_of[node], 0) << _CLOCK_BITS | clock


class PersistentLFU(LFU):
    """Evict the block with the fewest uses ever; of equals, the one whose last use is oldest.

    Counts are kept by key after eviction, without bound. A parent has at least the uses of its
    children, so the prefix rule never forces a second choice.
    """

    keeps_uses = True

    __slots__ = ()
