"""The events' account of every block, held against the manager's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.analysis.occupancy import BlockUse, Occupancy
from kvsim.core.residency import CopyState

if TYPE_CHECKING:
    from kvsim.core.cache import CacheState
    from kvsim.core.manager import CacheManager


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
