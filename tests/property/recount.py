"""The events' account of every block and every key, held against the manager's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.analysis.kv_events import BlockRemoved, BlockStored, KvEventStream
from kvsim.analysis.occupancy import BlockUse, Occupancy
from kvsim.core.residency import CopyState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.analysis.kv_events import KvEvent
    from kvsim.core.cache import CacheState
    from kvsim.core.manager import CacheManager
    from kvsim.events import Event
    from kvsim.types import BlockKey


class Recount:
    """Follows a list of events as it grows: what blocks are used for, and what a router is told.

    Parameters
    ----------
    tier_blocks
        Of the cache; a tier of 0 blocks is none.
    events
        The list.
    """

    def __init__(self, tier_blocks: Sequence[int], events: Sequence[Event]) -> None:
        self.occupancy = Occupancy([n for i, n in enumerate(tier_blocks) if n or not i])
        self._events = events
        self._num_taken = 0
        self._num_told = 0
        mediums = [f"TIER{tier}" for tier in range(len(tier_blocks))]
        self._stream = KvEventStream(mediums, {}, block_size=1)
        # All tiers are one place to this reader.
        self._one_place = KvEventStream(["ANY"] * len(tier_blocks), {}, block_size=1)
        self.told: dict[str, set[BlockKey]] = {medium: set() for medium in (*mediums, "ANY")}

    def check(self, manager: CacheManager) -> None:
        """Take the events that are new, and assert that they say what the manager has."""
        for event in self._events[self._num_taken :]:
            self.occupancy.emit(event)
            for told in self._stream.take(event):
                assert told.sequence == self._num_told
                self._num_told += 1
                self._tell(told)
            for told in self._one_place.take(event):
                self._tell(told)
        self._num_taken = len(self._events)
        check_occupancy(self.occupancy, manager)
        everywhere: set[BlockKey] = set()
        for tier, seen in enumerate(self.occupancy.tiers):
            assert self.told[f"TIER{tier}"] == seen.block_of.keys()
            everywhere |= seen.block_of.keys()
        assert self.told["ANY"] == everywhere

    def _tell(self, told: KvEvent) -> None:
        match told:
            case BlockStored():
                keys = self.told[told.medium]
                assert keys.isdisjoint(told.block_hashes), f"stored twice: {told}"
                keys.update(told.block_hashes)
            case BlockRemoved():
                keys = self.told[told.medium]
                assert keys.issuperset(told.block_hashes), f"removed, and not there: {told}"
                keys.difference_update(told.block_hashes)
            case _:
                for keys in self.told.values():
                    keys.clear()


def check_occupancy(occupancy: Occupancy, manager: CacheManager) -> None:
    """Assert that what follows from the events is what the manager has, block by block."""
    cache: CacheState = manager._cache  # noqa: SLF001
    private = [block for attempt in cache.live.values() for block in attempt.private_block_ids]
    for tier, seen in zip(cache.tiers, occupancy.tiers, strict=True):
        counts = seen.counts
        assert sum(counts.values()) == tier.pool.capacity
        assert counts[BlockUse.FREE] == len(tier.pool.free)
        assert counts[BlockUse.QUARANTINED] == tier.pool.num_quarantined
        assert counts[BlockUse.PRIVATE] == (0 if tier.index else len(private))
        in_tree = {
            CopyState(state): {
                key: tier.copies.block[node]
                for key, node in cache.tree.index.items()
                if tier.copies.state[node] == state
            }
            for state in CopyState
        }
        ready, leaving = in_tree[CopyState.READY], in_tree[CopyState.LEAVING]
        assert seen.block_of == ready | leaving
        assert counts[BlockUse.READY] == len(ready)
        assert counts[BlockUse.LEAVING] == len(leaving)
        # A copy on its way to a detached node is told of when it is given up, not before.
        num_out = sum(tier.copies.state[node] != CopyState.ABSENT for node in cache.tree.detached)
        num_coming = counts[BlockUse.INCOMING] + counts[BlockUse.DETACHED]
        assert num_coming == len(in_tree[CopyState.INCOMING]) + num_out
