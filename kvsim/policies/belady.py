"""Belady's clairvoyant policy: evict what is needed latest.

Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM
Systems Journal 5(2), 1966. With chained keys a parent is never needed later than its child, so
with ties broken leaf first this is the optimum under the prefix rule, not only without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kvsim.errors import PolicyError
from kvsim.policies.rank import RankPolicy
from kvsim.types import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import AccessInfo, PolicyContext
    from kvsim.types import NodeId


class Belady(RankPolicy):
    """Evict the block whose next request comes last. Needs a trace with `next_use_at`.

    Every tier reads the same next uses, so a demoted block keeps its own.

    This is the optimum called "resident": a request's whole path is in the cache at once, as the
    manager has it. The bound called "bypass", where a block may be computed without being kept,
    cannot be a policy: admission is all or nothing, and what a request holds is never a victim.
    It is a count over a trace (`kvsim.hitrate`), never less than this one's.

    A request that is refused wants its blocks all the same, so the optimum is exact only where
    every request fits.
    """

    needs_future = True

    __slots__ = ("_next_use",)

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        known = context.shared.setdefault("belady.next_use", [NEVER] * context.num_nodes)
        self._next_use = cast("list[int]", known)

    def resize(self, capacity_blocks: int, num_nodes: int) -> None:
        """Make room for more nodes, once for all tiers."""
        super().resize(capacity_blocks, num_nodes)
        self._next_use += [NEVER] * (num_nodes - len(self._next_use))

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Look up when the nodes are needed next."""
        if info is not None:
            self._look_ahead(nodes, depth, info)
        else:
            self._rank(nodes)

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        """Look up when the nodes are needed next."""
        self._look_ahead(nodes, depth, info)

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        """Change nothing."""

    def _look_ahead(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        future = info.next_use_at
        if future is None:
            raise PolicyError("belady needs to know the future: load the trace with next uses")
        next_use = self._next_use
        # Blocks beyond the prompt are output tokens: nobody asks for them again.
        for i, node in enumerate(nodes, depth):
            next_use[node] = future[i] if i < len(future) else NEVER
        self._rank(nodes)

    def _rank(self, nodes: Sequence[NodeId]) -> None:
        rank, next_use = self.rank, self._next_use
        for node in nodes:
            rank[node] = NEVER - next_use[node]
