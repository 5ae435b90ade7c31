"""What is known of a block's uses, in whichever tier it is, and policies that rank by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from kvsim.core.ports import RemoveReason
from kvsim.policies.rank import RankPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.core.ports import AccessInfo, PolicyContext
    from kvsim.types import BlockKey, NodeId


# What is retired goes down like other victims. Where it is dropped instead, which is not told, its
# record stays: one for each block that a tier was made smaller by, at most.
_MOVES: Final = frozenset(
    {RemoveReason.DEMOTED, RemoveReason.PROMOTED, RemoveReason.SWAPPED, RemoveReason.RETIRED}
)


class Uses:
    """Counts the requests that used each block, and remembers its depth, by key.

    One table for all tiers: a block that moves keeps its record.

    Parameters
    ----------
    context
        The tier.
    is_kept
        Whether the record of a block that has left the cache is kept. Then the table grows with
        every block that was ever there.

    Attributes
    ----------
    num_uses, depth
        By key.
    """

    __slots__ = ("_is_kept", "_key_of", "_num_tiers", "_tier", "depth", "num_uses")

    def __init__(self, context: PolicyContext, *, is_kept: bool = False) -> None:
        self._tier = context.tier
        self._is_kept = is_kept
        # In how many tiers a block is, where that may be several: it is forgotten with the last.
        self._num_tiers = None
        if context.is_inclusive:
            self._num_tiers = _shared_table(context, "uses.num_tiers")
        self._key_of = context.key_of
        self.num_uses = _shared_table(context, "uses.num_uses")
        self.depth = _shared_table(context, "uses.depth")

    def enter(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Count the request that the blocks come with, if there is one."""
        if self._num_tiers is not None:
            for key in map(self._key_of.__getitem__, nodes):
                self._num_tiers[key] = self._num_tiers.get(key, 0) + 1
        if info is None:
            return
        num_uses, depths, key_of = self.num_uses, self.depth, self._key_of
        for at, node in enumerate(nodes, depth):
            key = key_of[node]
            num_uses[key] = num_uses.get(key, 0) + 1
            depths[key] = at

    def hit(self, nodes: Sequence[NodeId]) -> None:
        """Count a hit. One below the first tier brings the blocks up, and is counted there."""
        if self._tier:
            return
        num_uses, key_of = self.num_uses, self._key_of
        for node in nodes:
            key = key_of[node]
            num_uses[key] = num_uses.get(key, 0) + 1

    def leave(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        """Forget blocks that are in no tier any more, unless all is kept."""
        gone: Iterable[BlockKey] = map(self._key_of.__getitem__, nodes)
        if self._num_tiers is not None:
            gone = self._last_gone(gone, self._num_tiers)
        if self._is_kept or reason in _MOVES:
            return
        for key in gone:
            self.num_uses.pop(key, None)
            self.depth.pop(key, None)

    @staticmethod
    def _last_gone(keys: Iterable[BlockKey], num_tiers: dict[BlockKey, int]) -> list[BlockKey]:
        """Count blocks out of a tier; return those that are in none now."""
        gone: list[BlockKey] = []
        for key in keys:
            num_tiers[key] -= 1
            if not num_tiers[key]:
                del num_tiers[key]
                gone.append(key)
        return gone


class UsesPolicy(RankPolicy):
    """What policies that rank blocks by their uses have in common: a path is used as a whole.

    A subclass says in `rank_all` what the blocks are worth now.
    """

    keeps_uses = False
    """Whether uses are remembered of blocks that are in no tier any more."""

    __slots__ = ("_key_of", "_uses")

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._key_of = context.key_of
        self._uses = Uses(context, is_kept=self.keeps_uses)

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Count a use, or rank blocks that come from the tier above."""
        self._uses.enter(nodes, depth, info)
        if info is None:
            for node in nodes:
                self.rank_all([node])

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        """Count a use."""
        del depth, info
        self._uses.hit(nodes)

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        """Rank the path, used as a whole."""
        del info
        self.rank_all(path)

    def on_remove(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        """Forget what is known of blocks that are in no tier any more."""
        super().on_remove(nodes, reason)
        self._uses.leave(nodes, reason)

    def rank_all(self, nodes: Sequence[NodeId]) -> None:
        """Rank blocks that are used together, now."""
        raise NotImplementedError


def _shared_table(context: PolicyContext, name: str) -> dict[BlockKey, int]:
    return cast("dict[BlockKey, int]", context.shared.setdefault(name, dict[object, int]()))
