"""Which victims are written back, which are dropped, and which must stay after all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.ports import RemoveReason
from kvsim.core.residency import ABSENT, READY, CopyEvent
from kvsim.core.tree import ROOT
from kvsim.events import RemoveCause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.core.cache import CacheState
    from kvsim.core.tier import Tier
    from kvsim.types import NodeId


class Planner:
    """Sorts the victims of a tier by what becomes of them.

    Parameters
    ----------
    cache
        The state to change.
    drop_chosen
        Finishes victims of a tier whose copies are ABSENT.
    """

    def __init__(
        self, cache: CacheState, drop_chosen: Callable[[Tier, list[NodeId]], None]
    ) -> None:
        self._cache = cache
        self._drop_chosen = drop_chosen
        self._writes_back = cache.hits_to_write_through is None
        # With two tiers, what hangs below a victim can be evicted first: it is at the end there.
        self._drops_strays = len(cache.below) > 1

    def without_need(self, tier: Tier, victims: Sequence[NodeId]) -> set[NodeId]:
        """Return the victims that are not to be copied down.

        Those that have a copy below, or above; and, unless blocks are written back, those below
        which nothing hangs that would be out of reach.
        """
        tiers, index = self._cache.tiers, tier.index
        found: set[NodeId] = set()
        for other in (*tiers[:index], *tiers[index + 1 :]):
            state = other.copies.state
            found.update([node for node in victims if state[node] == READY])
        if not self._writes_back:
            parent = self._cache.tree.parent
            wanted: set[NodeId] = set()  # by children that are copied down themselves
            for node in victims:
                if node in found:
                    continue
                if node in wanted or self._has_children_elsewhere(tier, node):
                    wanted.add(parent[node])
                else:
                    found.add(node)
        return found

    def sort_out(self, tier: Tier, victims: list[NodeId], num_slots: int) -> list[NodeId]:
        """Drop what finds no room below, oldest first; return what is to be written back.

        A victim that has a copy below already needs no room. One stays where it is if something
        of its subtree is busy below (a copy under way, or read): dropping it would leave that out
        of reach. Whoever stays keeps its ancestors too; they come later in `victims`.
        """
        cache = self._cache
        parent, holds = cache.tree.parent, tier.copies.holds
        contented = self.without_need(tier, victims)
        num_over = len(victims) - len(contented) - num_slots
        dropped: list[NodeId] = []
        twins: list[NodeId] = []
        demoted: list[NodeId] = []
        kept: list[NodeId] = []
        strays = _Strays(cache, tier) if self._drops_strays else None
        for node in victims:
            wants_room = node not in contented
            if not holds[node]:
                if wants_room and num_over <= 0:
                    demoted.append(node)
                    continue
                if not wants_room and cache.is_below(tier, node):
                    twins.append(node)
                    continue
                if self._may_go(tier, node) or (strays is not None and strays.drop(node, victims)):
                    dropped.append(node)
                    num_over -= wants_room
                    continue
            kept.append(node)
            num_over -= wants_room
            cache.hold(tier, parent[node])
        if dropped:
            tier.copies.move(dropped, CopyEvent.LEFT)
            self._drop_chosen(tier, dropped)
        if twins:
            self.drop_twins(tier, twins)
        if kept:
            self._put_back(tier, kept)
        return demoted

    def drop_twins(self, tier: Tier, twins: list[NodeId], *, is_told: bool = False) -> None:
        """Drop LEAVING copies that are below already; `is_told`: their policy has let them go."""
        self._cache.emit_removed(tier, twins, RemoveCause.DEMOTED)
        tier.copies.move(twins, CopyEvent.LEFT)
        tier.pool.give_dropped(tier.copies.blocks_of(twins))
        if not is_told:
            self._cache.tell_removed(tier, twins, RemoveReason.DEMOTED)
        if self._drops_strays:
            self._cache.forget(twins)  # what was below may have gone with an ancestor

    def _put_back(self, tier: Tier, kept: list[NodeId]) -> None:
        tier.copies.move(kept, CopyEvent.RESCUE)
        self._cache.tell_removed(tier, kept, RemoveReason.DEMOTED)
        tier.policy.on_insert(kept, 0, None)
        for node in kept:
            if not tier.copies.holds[node]:
                tier.policy.on_evictable(node)

    def _may_go(self, tier: Tier, node: NodeId) -> bool:
        """Whether nothing is out of reach without a copy that is not below."""
        if not self._has_children_elsewhere(tier, node):
            return True
        return any(high.copies.state[node] == READY for high in self._cache.tiers[: tier.index])

    def _has_children_elsewhere(self, tier: Tier, node: NodeId) -> bool:
        """Whether children have copies in another tier below the GPU (there they come first)."""
        return any(low.copies.holds[node] for low in self._cache.below if low is not tier)


class _Strays:
    """What hangs below victims in the tree, in any tier, and would be out of reach without them."""

    def __init__(self, cache: CacheState, tier: Tier) -> None:
        self._cache = cache
        self._tier = tier
        self._children: dict[NodeId, list[NodeId]] = {}

    def drop(self, top: NodeId, victims: Sequence[NodeId]) -> bool:
        """Drop all below a victim; False, and nothing is changed, if some of it is busy.

        Victims that came before `top`, and went, are in nobody's way.
        """
        strays = self._descendants(top)
        gone = set(victims[: victims.index(top)])
        if not all(self._is_idle(node, gone) for node in strays):
            return False
        for node in reversed(strays):
            for tier in self._cache.below:
                if tier.copies.state[node] == READY:
                    self._cache.emit_removed(tier, [node], RemoveCause.EVICTED)
                    tier.policy.on_remove([node], RemoveReason.DETACHED)
                    self._cache.drop(tier, [node], CopyEvent.DROP)
            if node not in gone:
                self._cache.forget([node])
            self._children.pop(node, None)
        self._children.pop(top, None)
        return True

    def _descendants(self, top: NodeId) -> list[NodeId]:
        """Return the attached nodes below `top`, parents before children."""
        if not self._children:
            # A scan of the whole tree, but only where a tier is full and its link too slow.
            tree = self._cache.tree
            for node in tree.index.values():
                if tree.parent[node] != ROOT:
                    self._children.setdefault(tree.parent[node], []).append(node)
        found = [top]
        for node in found:
            found += self._children.get(node, ())
        return found[1:]

    def _is_idle(self, node: NodeId, gone: set[NodeId]) -> bool:
        """Whether a node is not on the GPU, and nothing but children holds its READY copies."""
        children = self._children.get(node, ())
        for tier in self._cache.tiers:
            copies = tier.copies
            if copies.state[node] == ABSENT or (tier is self._tier and node in gone):
                continue
            if copies.state[node] != READY or tier is self._cache.gpu:
                return False
            if copies.holds[node] != sum(copies.state[child] == READY for child in children):
                return False
        return True
