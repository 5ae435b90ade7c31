"""Policies that are broken on purpose, one way each, with what is to be found of them."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import TYPE_CHECKING, ClassVar

from kvsim.core.ports import RemoveReason
from kvsim.policies.fifo import FIFO
from kvsim.policies.lru import LRU
from kvsim.testing import Finding, PerBlockLRU

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import AccessInfo, Peel, PolicyContext
    from kvsim.policies.registry import PolicyMaker
    from kvsim.types import BlockKey, NodeId

# -- a victim that was pinned


class ForgetsPins(PerBlockLRU):
    """Chooses blocks that are in use."""

    def on_pinned(self, key: BlockKey) -> None:
        """Forget to take it off the list."""


class ForgetsPinsInBatches(FIFO):
    """Chooses blocks that are in use."""

    def on_pinned(self, node: NodeId) -> None:
        """Forget to take it off the list."""

    def on_remove(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        for node in nodes:
            super().on_pinned(node)


class ListsTooEarly(PerBlockLRU):
    """Thinks that a block may be chosen as soon as it is there, if it is a prompt's last."""

    def on_insert(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        super().on_insert(key, depth, info)
        if depth == info.num_tokens - 1:
            self.on_evictable(key)


# -- a child without its parent


class TakesParentsFirst(PerBlockLRU):
    """Chooses the block nearest to the root, children or not."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self.depth: dict[BlockKey, int] = {}
        self.in_use: set[BlockKey] = set()

    def on_insert(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        super().on_insert(key, depth, info)
        self.depth[key] = depth

    def on_remove(self, key: BlockKey, reason: RemoveReason) -> None:
        super().on_remove(key, reason)
        del self.depth[key]

    def choose_victim(self, now: int) -> BlockKey | None:
        if not self._evictable:
            return None
        return min(self.depth, key=lambda key: (self.depth[key], self._used_at[key]))


class TakesParentsInBatches(LRU):
    """Peels off the root of the first path that it knows."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self.roots: OrderedDict[NodeId, None] = OrderedDict()

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        super().on_insert(nodes, depth, info)
        if depth == 0 and info is not None:
            self.roots[nodes[0]] = None

    def on_remove(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        super().on_remove(nodes, reason)
        for node in nodes:
            self.roots.pop(node, None)

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        victims: list[NodeId] = []
        for node in list(self.roots)[:n]:
            peel(node, 1, self.rank, -1, victims)
        return victims or super().choose_victims(n, peel, now)


# -- a forgotten removal


class ForgetsRemovals(PerBlockLRU):
    """Keeps blocks on its list that were taken out."""

    def on_remove(self, key: BlockKey, reason: RemoveReason) -> None:
        if reason in {RemoveReason.EVICTED, RemoveReason.DEMOTED}:
            super().on_remove(key, reason)


class ForgetsRemovalsInBatches(LRU):
    """Keeps blocks on its list that were taken out."""

    def on_remove(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        """Forget all of it: what it chose itself is off the list anyhow."""


# -- no victim where there are some


class GivesUp(PerBlockLRU):
    """Finds no victim where there are some."""

    def choose_victim(self, now: int) -> BlockKey | None:
        return None


class TooFew(LRU):
    """Takes one victim however many are asked for."""

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        return super().choose_victims(min(n, 1), peel, now)


class LosesBaredParents(LRU):
    """Does not list a parent that its child has left bare."""

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        def deaf(
            leaf: NodeId, n: int, rank: Sequence[int], limit: int, out: list[NodeId], /
        ) -> NodeId:
            peel(leaf, n, rank, limit, out)
            return -1

        return super().choose_victims(n, deaf, now)


# -- other victims than were taken


class TakesWithoutPeel(LRU):
    """Names a victim that it has not taken off the tree."""

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        return [*super().choose_victims(n - 1, peel, now), 1]


# -- a hit that moves no state


class ForgetsHits(PerBlockLRU):
    """Says that it evicts the least recently used, and stamps blocks as they enter only."""

    def on_insert(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        super().on_hit(key, depth, info)

    def on_hit(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        """Forget to stamp."""


class ForgetsHitsInBatches(LRU):
    """Ranks the blocks as they enter only."""

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        self._stamp_each(nodes)

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        """Forget to stamp."""


# -- another victim in another run


class DrawsOnItsOwn(PerBlockLRU):
    """Takes random numbers from Python's generator instead of the context's."""

    def choose_victim(self, now: int) -> BlockKey | None:
        if not self._evictable:
            return None
        return random.choice(sorted(self._evictable, key=self._used_at.__getitem__))


class FollowsHashes(PerBlockLRU):
    """Takes what a set gives first: with strings as keys that is another block in each process."""

    def choose_victim(self, now: int) -> BlockKey | None:
        return next(iter(self._evictable), None)


class RemembersInItsClass(PerBlockLRU):
    """Has one clock for all tiers and all runs, and looks at it."""

    ticks: ClassVar[list[int]] = []

    def choose_victim(self, now: int) -> BlockKey | None:
        self.ticks.append(now)
        if len(self.ticks) % 7 or not self._evictable:
            return super().choose_victim(now)
        return max(self._evictable, key=self._used_at.__getitem__)


# -- calls that cost more the more blocks there are


class SearchesAll(PerBlockLRU):
    """Looks at every evictable block for each victim."""

    def choose_victim(self, now: int) -> BlockKey | None:
        return min(self._evictable, key=self._used_at.__getitem__, default=None)


class WalksAlongItsQueue(PerBlockLRU):
    """Looks for the first evictable block from the head of a queue of all blocks."""

    def choose_victim(self, now: int) -> BlockKey | None:
        return next((key for key in self._used_at if key in self._evictable), None)

    def on_hit(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        self._used_at.pop(key, None)
        super().on_hit(key, depth, info)


class SortsEachTime(PerBlockLRU):
    """Sorts its stamps for each victim: numbers of its own, so no block is compared."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self.ages: list[int] = []
        self.key_at: dict[int, BlockKey] = {}

    def on_hit(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        super().on_hit(key, depth, info)
        self.key_at[-self._clock] = key

    def on_evictable(self, key: BlockKey) -> None:
        self._evictable.add(key)
        self.ages.append(-self._used_at[key])

    def choose_victim(self, now: int) -> BlockKey | None:
        self.ages.sort()
        while self.ages:
            age = self.ages[-1]
            key = self.key_at[age]
            if key in self._evictable and self._used_at[key] == -age:
                return key
            self.ages.pop()
        return None


class SearchesAllInBatches(LRU):
    """Looks at every listed block for each victim, in one call of a built-in function."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self.listed: set[NodeId] = set()

    def on_evictable(self, node: NodeId) -> None:
        self.listed.add(node)

    def on_pinned(self, node: NodeId) -> None:
        self.listed.discard(node)

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        victims: list[NodeId] = []
        while len(victims) < n and self.listed:
            node = min(self.listed, key=self.rank.__getitem__)
            self.listed.discard(node)
            bare = peel(node, 1, self.rank, -1, victims)
            if bare >= 0:
                self.listed.add(bare)
        return victims


class MovesInAList(PerBlockLRU):
    """Keeps its order in a list, from the middle of which it removes at each hit."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self.order: list[BlockKey] = []

    def on_hit(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        super().on_hit(key, depth, info)
        if key in self.order:
            self.order.remove(key)
        self.order.append(key)

    def on_remove(self, key: BlockKey, reason: RemoveReason) -> None:
        super().on_remove(key, reason)
        self.order.remove(key)


# -- methods that fail, or are not there


class RaisesNowAndThen(PerBlockLRU):
    """Does not expect to be told of a block that it has not chosen."""

    def on_remove(self, key: BlockKey, reason: RemoveReason) -> None:
        if reason is RemoveReason.DETACHED:
            raise KeyError(key)
        super().on_remove(key, reason)


class RaisesInBatches(LRU):
    """Cannot be told of a demoted batch, which has no access of its own."""

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        super().on_insert(nodes, info.now * 0 + depth, info)  # type: ignore[union-attr]


class RaisesWhenMade(PerBlockLRU):
    """Cannot be made."""

    def __init__(self, context: PolicyContext) -> None:
        raise RuntimeError(f"no tier {context.tier} for me")


class HasNoPins:
    """Has the method for victims, and not all others."""

    def __init__(self, context: PolicyContext) -> None:
        del context

    def on_insert(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        pass

    def on_hit(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        pass

    def on_evictable(self, key: BlockKey) -> None:
        pass

    def choose_victim(self, now: int) -> BlockKey | None:
        return None


class TakesNoDepth(PerBlockLRU):
    """Has a method with too few parameters."""

    def on_hit(self, key: BlockKey, info: AccessInfo) -> None:  # type: ignore[override]
        pass


BROKEN: list[tuple[PolicyMaker, Finding, str]] = [
    (ForgetsPins, Finding.PINNED_VICTIM, r"returned block \w+, which was pinned at call \d+"),
    (ForgetsPinsInBatches, Finding.PINNED_VICTIM, r"took block \S+ \(node \d+\), which was pinned"),
    (ListsTooEarly, Finding.PINNED_VICTIM, "which is in use: on_evictable has not named it yet"),
    (TakesParentsFirst, Finding.ORPHAN, r"returned block (\w), whose child \1\w is in the tier"),
    (
        TakesParentsInBatches,
        Finding.ORPHAN,
        r"block \w \(node \d+\), whose child \w\w \(node",
    ),
    (ForgetsRemovals, Finding.REMOVED_VICTIM, r"which left the tier \(detached\) at call \d+"),
    (ForgetsRemovalsInBatches, Finding.REMOVED_VICTIM, r"which left the tier \(detached\) at call"),
    (GivesUp, Finding.NO_VICTIM, r"returned None while \d+ are evictable"),
    (TooFew, Finding.NO_VICTIM, r"returned 1 of \d victims while \d+ more are evictable"),
    (LosesBaredParents, Finding.NO_VICTIM, r"returned \d of \d victims while \d+ more are"),
    (TakesWithoutPeel, Finding.UNPEELED, r"when asked for \d, and took .* with peel"),
    (ForgetsHits, Finding.IGNORES_HITS, r"the same \d+ victims in 1500 accesses, whether it was"),
    (ForgetsHitsInBatches, Finding.IGNORES_HITS, "told of the hits among them or not"),
    (DrawsOnItsOwn, Finding.NON_DETERMINISTIC, r"took another victim, number \d+, when the same"),
    (FollowsHashes, Finding.NON_DETERMINISTIC, "when the same calls were repeated, with keys"),
    (
        RemembersInItsClass,
        Finding.NON_DETERMINISTIC,
        "when the same calls were repeated, with keys",
    ),
    (SearchesAll, Finding.COST, r"choose_victim took \d+ steps a call with 1024 blocks"),
    (WalksAlongItsQueue, Finding.COST, r"choose_victim took \d+ steps a call with 1024 blocks"),
    (SortsEachTime, Finding.COST, r"choose_victim took \d+ steps a call with 1024 blocks"),
    (SearchesAllInBatches, Finding.COST, r"choose_victims took \d+ steps a call with 1024 blocks"),
    (MovesInAList, Finding.COST, r"on_\w+ took \d+ steps a call with 1024 blocks"),
    (RaisesNowAndThen, Finding.RAISES, r"RaisesNowAndThen.on_remove \(call \d+\) raised KeyError"),
    (RaisesInBatches, Finding.RAISES, r"RaisesInBatches.on_insert \(call \d+\) raised Attribute"),
    (RaisesWhenMade, Finding.RAISES, "when it was made, raised RuntimeError: no tier 0 for me"),
    (HasNoPins, Finding.METHODS, "HasNoPins has no method on_pinned"),  # type: ignore[list-item]
    (TakesNoDepth, Finding.METHODS, "TakesNoDepth.on_hit cannot be called with 3 arguments"),  # type: ignore[list-item]
]
"""Policy, what is found, and how the message tells it."""
