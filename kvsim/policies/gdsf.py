"""GDSF: keep what is used often and costly to compute again, and let the past fade.

Source: L. Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching
policy", HP Laboratories technical report HPL-98-69R1, 1998.
https://www.hpl.hp.com/techreports/98/HPL-98-69R1.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.policies.uses import UsesPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import Peel, PolicyContext
    from kvsim.types import NodeId

_CLOCK_BITS: Final = 48


class GDSF(UsesPolicy):
    """Evict the block with the least of: age + uses since it entered x cost of computing it again.

    All blocks are of one size, so the paper's division by it falls away. The cost is
    `PolicyContext.recompute_ns` of the block's depth: attention makes a later block dearer. The
    age rises to the value of each victim, which lets blocks sink that are used no more. Of equals,
    the one whose last use is oldest goes.

    Under the prefix rule a parent outlives its children although it is cheaper to compute: where
    the children have nearly as many uses, GDSF takes its second choice.
    """

    __slots__ = ("_age", "_cost_at", "_recompute_ns")

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._age = 0
        self._recompute_ns = context.recompute_ns
        self._cost_at: dict[int, int] = {}

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        """Take the `n` of least value; the age rises to the greatest value among them."""
        victims = super().choose_victims(n, peel, now)
        rank = self.rank
        for node in victims:
            self._age = max(self._age, rank[node] >> _CLOCK_BITS)
        return victims

    def rank_all(self, nodes: Sequence[NodeId]) -> None:
        """Value the blocks at the present age."""
        self._clock = clock = self._clock + 1
        age, rank, key_of = self._age, self.rank, self._key_of
        num_uses, depth_of = self._uses.num_uses, self._uses.depth
        for node in nodes:
            key = key_of[node]
            cost = self._cost(depth_of.get(key, 0))
            rank[node] = (age + num_uses.get(key, 0) * cost) << _CLOCK_BITS | clock

    def _cost(self, depth: int) -> int:
        cost = self._cost_at.get(depth)
        if cost is None:
            cost = self._cost_at[depth] = self._recompute_ns(depth)
        return cost
