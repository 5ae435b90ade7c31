"""What an operator does to a cache: pin and evict prefixes, flush, change weights, resize tiers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from kvsim.core.ports import RemoveReason
from kvsim.core.residency import ABSENT, INCOMING, READY, CopyEvent
from kvsim.errors import InvariantError, MisuseError, PolicyError
from kvsim.events import CacheCleared, RemoveCause, TierResized

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.core.cache import CacheState
    from kvsim.core.eviction import Evictor
    from kvsim.core.ops import Transfer
    from kvsim.core.tier import Tier
    from kvsim.types import BlockKey, NodeId, TierIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """What came of an order to evict a prefix: blocks that went, and blocks that stay.

    Counted are the blocks of the prefix that were cached, and all below it. A block stays while
    somebody holds it, an op is at it, or another block that stays hangs below it.
    """

    num_gone: int = 0
    num_kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """What came of a resize: the ops it takes, and blocks that go when nobody holds them."""

    ops: tuple[Transfer, ...] = ()
    num_retiring: int = 0


class PinnedPrefix:
    """A prefix that is to stay: its keys, how often it was pinned, and the nodes it holds.

    A pin holds each block of the prefix that is cached where it is. One reference a stretch of
    the path within one tier does it: there a child protects its parent.
    """

    __slots__ = ("count", "held", "keys")

    def __init__(self, keys: tuple[BlockKey, ...]) -> None:
        self.keys = keys
        self.count = 0
        self.held: list[NodeId] = []


class Upkeep:
    """Applies an operator's orders to the cache.

    Parameters
    ----------
    cache
        The state to change.
    evictor
        Moves blocks out of a tier that is made smaller.
    listeners
        By tier: what its policy wants to have called at a resize (`PolicyContext.on_resize`).
    """

    def __init__(
        self,
        cache: CacheState,
        evictor: Evictor,
        listeners: Sequence[Sequence[Callable[[int, int], None]]],
    ) -> None:
        self._cache = cache
        self._evictor = evictor
        self._listeners = listeners
        self._seen_version = -1

    # -- pinned prefixes

    @property
    def pinned_keys(self) -> set[BlockKey]:
        """Keys of all pinned prefixes, cached or not."""
        return {key for pin in self._cache.prefix_pins.values() for key in pin.keys}

    def is_pinned(self, keys: Sequence[BlockKey]) -> bool:
        """Whether this very prefix is pinned."""
        return bool(keys) and keys[-1] in self._cache.prefix_pins

    def pin_prefix(self, keys: Sequence[BlockKey]) -> int:
        """Let the prefix stay once it is there; return how many of its blocks are there now.

        Raises
        ------
        MisuseError
            If there are no keys.
        """
        if not keys:
            raise MisuseError("a prefix to pin must have a block at least")
        pin = self._cache.prefix_pins.setdefault(keys[-1], PinnedPrefix(tuple(keys)))
        pin.count += 1
        self._renew(pin)
        return len(self._cache.tree.match(keys))

    def unpin_prefix(self, keys: Sequence[BlockKey]) -> None:
        """Take back one pin of the prefix; with the last, its blocks are like any other.

        Raises
        ------
        MisuseError
            If it is not pinned.
        """
        cache = self._cache
        pin = cache.prefix_pins.get(keys[-1]) if keys else None
        if pin is None:
            raise MisuseError("a prefix that is not pinned cannot be unpinned")
        pin.count -= 1
        if not pin.count:
            del cache.prefix_pins[keys[-1]]
            self._let_go(pin)
            cache.version += 1

    def renew_pins(self) -> None:
        """Let each pin hold what there is of its prefix now, where it is now."""
        for pin in self._cache.prefix_pins.values():
            self._renew(pin)

    def _renew(self, pin: PinnedPrefix) -> None:
        cache = self._cache
        path = cache.tree.match(pin.keys)
        wanted = [
            node
            for node, child in zip_longest(path, path[1:])
            if child is None or self._is_parted(node, child)
        ]
        if wanted == pin.held:
            return
        for node in wanted:
            cache.pin(node)
        self._let_go(pin)
        pin.held = wanted

    def _let_go(self, pin: PinnedPrefix) -> None:
        """Unpin what the pin holds, deepest first: a policy hears of a leaf before its parent."""
        held, pin.held = pin.held, []
        for node in reversed(held):
            self._cache.unpin(node)

    def _is_parted(self, node: NodeId, child: NodeId) -> bool:
        """Whether the node has a copy in a tier where the child does not protect it."""
        is_there = {INCOMING, READY}
        return any(
            tier.copies.state[node] in is_there and tier.copies.state[child] not in is_there
            for tier in self._cache.tiers
        )

    # -- eviction of a prefix, flush, new weights

    def evict(self, keys: Sequence[BlockKey]) -> Evicted:
        """Drop the prefix and all below it from every tier, as far as nobody holds it."""
        cache = self._cache
        path = cache.tree.match(keys)
        if not path:
            return Evicted()
        is_whole = len(path) == len(keys)
        below = cache.tree.subtree(path[-1])[1:] if is_whole else []
        nodes = [*path, *below]
        num_gone = 0
        for node in reversed(nodes):
            if self._is_idle(node):
                self._drop_everywhere(node)
                num_gone += 1
        cache.version += 1
        return Evicted(num_gone=num_gone, num_kept=len(nodes) - num_gone)

    def flush(self) -> bool:
        """Clear every tier if nothing is running; else return False, with nothing changed.

        Pinned prefixes lose their blocks and stay pinned: their next blocks are held.
        """
        cache = self._cache
        if cache.live or cache.transfers or cache.forwards:
            return False
        self._take_out_all("flush")
        if cache.tree.detached or any(tier.copies.num_in[READY] for tier in cache.tiers):
            raise InvariantError("a flush has left something behind")
        return True

    def bump_weight_version(self) -> int:
        """Let nothing that is cached, or on its way, be matched again; return the new version.

        Live attempts keep the blocks they have, each for itself, until they end; what they fill
        from now on stays private.
        """
        cache = self._cache
        cache.weight_version += 1
        for attempt in cache.live.values():
            if not attempt.is_cut_off:
                attempt.is_cut_off = True
                for node in attempt.path[:-1]:
                    cache.pin(node)
                attempt.keys = attempt.keys[: len(attempt.path)]
        for forward in cache.forwards.values():
            # A timed-out one may still read whole paths.
            above = [v for node in forward.pins for v in cache.tree.path_to(node)[:-1]]
            for node in above:
                cache.pin(node)
            forward.pins += above
        self._take_out_all("weights")
        return cache.weight_version

    def _take_out_all(self, reason: str) -> None:
        cache = self._cache
        for pin in cache.prefix_pins.values():
            self._let_go(pin)
        cache.detach_all(cache.tree.in_order())
        cache.version += 1
        if cache.sink is not None:
            cache.sink.emit(CacheCleared(reason=reason, version=cache.weight_version))

    def _is_idle(self, node: NodeId) -> bool:
        """Whether nothing holds the node in any tier, and no op is at it."""
        return all(
            tier.copies.state[node] in {ABSENT, READY} and not tier.copies.holds[node]
            for tier in self._cache.tiers
        )

    def _drop_everywhere(self, node: NodeId) -> None:
        cache = self._cache
        for tier in cache.tiers:
            if tier.copies.state[node] == READY:
                tier.policy.on_remove([node], RemoveReason.DETACHED)
                cache.emit_removed(tier, [node], RemoveCause.EVICTED)
                cache.drop(tier, [node], CopyEvent.DROP)
        cache.forget([node])

    # -- size

    def num_blocks(self, tier_index: TierIndex = 0) -> int:
        """Capacity of a tier, in blocks, as it was last asked for."""
        return self._cache.tiers[tier_index].pool.limit

    def num_retiring_blocks(self, tier_index: TierIndex = 0) -> int:
        """Blocks beyond the size of a tier that are still held."""
        return len(self._cache.tiers[tier_index].pool.retiring)

    @property
    def is_retiring(self) -> bool:
        """Whether a tier that was made smaller still has blocks beyond its size."""
        return any(tier.pool.retiring for tier in self._cache.tiers)

    def resize(self, tier_index: TierIndex, num_blocks: int, now: int) -> Resized:
        """Give a tier another capacity.

        New blocks are free at once. Blocks beyond a smaller size go at once if they are free, and
        else when nobody holds them: what is cached in them moves to the tier below or is dropped,
        and what is in use goes after its release. No block moves within the tier.

        Raises
        ------
        MisuseError
            If there is no such tier, or the size is less than 1.
        PolicyError
            If a policy has not declared that it can take more nodes (`PolicyContext.on_resize`);
            nothing has changed then.
        """
        cache = self._cache
        if not 0 <= tier_index < len(cache.tiers):
            last = len(cache.tiers) - 1
            raise MisuseError(f"there is no tier {tier_index}: the tiers are 0 to {last}")
        if num_blocks < 1:
            raise MisuseError(f"a tier must have 1 block at least, not {num_blocks}")
        tier = cache.tiers[tier_index]
        grown = max(num_blocks, tier.pool.capacity) - tier.pool.capacity
        num_missing = sum(each.pool.capacity for each in cache.tiers) + grown + 1
        num_missing -= cache.tree.num_nodes
        if num_missing > 0:
            self._add_nodes(num_missing)
        tier.pool.resize(num_blocks)
        if cache.sink is not None:
            cache.sink.emit(TierResized(tier=tier_index, num_blocks=num_blocks))
        for each, listeners in zip(cache.tiers, self._listeners, strict=True):
            for listener in listeners:
                listener(each.pool.limit, cache.tree.num_nodes)
        cache.version += 1
        ops = self.retire(now) if tier.pool.retiring else []
        return Resized(ops=tuple(ops), num_retiring=len(tier.pool.retiring))

    def _add_nodes(self, n: int) -> None:
        cache = self._cache
        for tier, listeners in zip(cache.tiers, self._listeners, strict=True):
            if not listeners:
                raise PolicyError(
                    f"policy {type(tier.policy).__name__} of tier {tier.index} cannot take more"
                    f" than {cache.tree.num_nodes - 1} blocks in all tiers: it has not put a"
                    " function into PolicyContext.on_resize"
                )
        cache.tree.add_nodes(n)
        if cache.hits_to_write_through:
            cache.num_hits_of += [0] * n
        for tier in cache.tiers:
            tier.copies.add_nodes(n)

    def retire(self, now: int) -> list[Transfer]:
        """Empty the blocks beyond the size of their tiers, as far as nobody holds them.

        Looks only when something may have changed. O(nodes).
        """
        cache = self._cache
        if self._seen_version == cache.version:
            return []
        ops: list[Transfer] = []
        for tier in reversed(cache.tiers):
            if tier.pool.retiring:
                ops += self._evictor.move_out(tier, partial(self._take_retiring, tier), now)
        self._seen_version = cache.version
        return ops

    def _take_retiring(self, tier: Tier) -> list[NodeId]:
        """Take the retiring copies, with all that hangs below them in the tier, leaves first."""
        cache = self._cache
        state, block, holds = tier.copies.state, tier.copies.block, tier.copies.holds
        rank = [1] * cache.tree.num_nodes
        wanted: list[NodeId] = []
        for node in cache.tree.in_order():
            is_retiring = block[node] in tier.pool.retiring
            if state[node] == READY and (is_retiring or not rank[cache.tree.parent[node]]):
                rank[node] = 0
                wanted.append(node)
        victims: list[NodeId] = []
        peel = cache.peels[tier.index]
        bare = [
            peel(node, len(wanted), rank, 0, victims)
            for node in reversed(wanted)
            if state[node] == READY and not holds[node]
        ]
        if victims:
            tier.policy.on_remove(victims, RemoveReason.RETIRED)
        for node in bare:
            if node >= 0:
                cache.review(tier, node)
        return victims
