"""Writing back ahead of need: the low-water marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.residency import LEAVING

if TYPE_CHECKING:
    from kvsim.config import CacheConfig
    from kvsim.core.cache import CacheState
    from kvsim.core.eviction import Evictor
    from kvsim.core.ops import Transfer
    from kvsim.core.tier import Tier


class Ahead:
    """Keeps blocks free in the tiers that write back, so that few requests wait for that.

    Parameters
    ----------
    cache
        The tiers.
    evictor
        Frees blocks.
    config
        The marks, and how many blocks a write-back moves at least.
    """

    __slots__ = ("_evictor", "_marks", "_swap_batch")

    def __init__(self, cache: CacheState, evictor: Evictor, config: CacheConfig) -> None:
        self._evictor = evictor
        self._swap_batch = config.swap_batch
        self._marks = [
            (tier, config.low_watermark_of(tier.index))
            for tier in cache.tiers
            if tier.below is not None and cache.hits_to_write_through is None
        ]

    def keep_low_watermark(self, now: int) -> list[Transfer]:
        """Write back where fewer blocks than the mark are free or coming free."""
        ops: list[Transfer] = []
        for tier, mark in self._marks:
            missing = _num_missing(tier, mark)
            if missing > 0:
                n = max(self._swap_batch, missing) if tier.index else self._swap_batch
                ops += self._evictor.reclaim(n, now, tier=tier)
        return ops

    def make_room_below(self, num_blocks: int, now: int) -> list[Transfer]:
        """Write back from tiers between two others until `num_blocks` will be free in each."""
        ops: list[Transfer] = []
        for tier, _ in self._marks[1:]:
            missing = _num_missing(tier, num_blocks)
            if missing > 0:
                ops += self._evictor.reclaim(missing, now, tier=tier)
        return ops


def _num_missing(tier: Tier, num_wanted: int) -> int:
    return num_wanted - len(tier.pool.free) - tier.copies.num_in[LEAVING]
