"""LengthAware: as LFU, but the later a block occurs in its requests, the sooner it goes.

Source: LengthAwareCache in R. Qin et al., "Mooncake: a KVCache-centric disaggregated architecture
for LLM serving" (https://arxiv.org/abs/2407.00079), section 4. It is described there in one
sentence and no code of it is public, so how use and position combine is a reading.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from kvsim.policies.uses import UsesPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import PolicyContext
    from kvsim.types import NodeId

_CLOCK_BITS: Final = 48
_FIELD_BITS: Final = 32
_DEEPEST: Final = (1 << _FIELD_BITS) - 1


class First(StrEnum):
    """What counts first, where use and position disagree."""

    USES = "uses"
    """Fewest uses first; of equals, the deepest block."""
    DEPTH = "depth"
    """Deepest block first; of equals, the one with the fewest uses."""


class LengthAware(UsesPolicy):
    """Evict the block with the fewest uses since it entered, of equals the deepest in its prompt.

    Of blocks equal in both, the one whose last use is oldest. Where depth decides, a leaf goes
    before its parent anyhow, so the prefix rule forces a second choice only as with LFU.

    Parameters
    ----------
    context
        The tier.
    first
        Which of the two counts first. Source: "similar to LFU", hence the uses.
    """

    __slots__ = ("_first",)

    def __init__(self, context: PolicyContext, *, first: First = First.USES) -> None:
        super().__init__(context)
        self._first = First(first)

    def rank_all(self, nodes: Sequence[NodeId]) -> None:
        """Rank by uses and depth, then by this moment."""
        self._clock = clock = self._clock + 1
        uses_of, depth_of = self._uses.num_uses, self._uses.depth
        for node in nodes:
            key = self._key_of[node]
            num_uses = min(uses_of.get(key, 0), _DEEPEST)
            height = _DEEPEST - depth_of.get(key, 0)
            pair = (num_uses, height) if self._first is First.USES else (height, num_uses)
            self.rank[node] = (pair[0] << _FIELD_BITS | pair[1]) << _CLOCK_BITS | clock
