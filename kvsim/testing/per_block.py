"""A policy in the per-block form, to begin from and to compare with."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.core.ports import AccessInfo, PolicyContext, RemoveReason
    from kvsim.types import BlockKey


class PerBlockLRU:
    """Least recently used, in the per-block form: a short policy that is right.

    Follows `kvsim.core.ports.BlockPolicy`. Evictable blocks lie in a heap by their stamps, which
    are all different; an entry that is out of date is thrown away when it comes up.
    """

    def __init__(self, context: PolicyContext) -> None:
        del context
        self._clock = 0
        self._used_at: dict[BlockKey, int] = {}
        self._evictable: set[BlockKey] = set()
        self._heap: list[tuple[int, BlockKey]] = []

    def on_insert(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        """Stamp the block."""
        self.on_hit(key, depth, info)

    def on_hit(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        """Stamp the block."""
        del depth, info
        self._clock += 1
        self._used_at[key] = self._clock

    def on_evictable(self, key: BlockKey) -> None:
        """List the block."""
        self._evictable.add(key)
        heappush(self._heap, (self._used_at[key], key))

    def on_pinned(self, key: BlockKey) -> None:
        """Take the block off the list."""
        self._evictable.discard(key)

    def on_remove(self, key: BlockKey, reason: RemoveReason) -> None:
        """Forget the block."""
        del reason
        self._evictable.discard(key)
        del self._used_at[key]

    def choose_victim(self, now: int) -> BlockKey | None:
        """Return the block with the oldest stamp."""
        del now
        heap = self._heap
        while heap:
            used_at, key = heap[0]
            if key in self._evictable and self._used_at[key] == used_at:
                return key
            heappop(heap)
        return None
