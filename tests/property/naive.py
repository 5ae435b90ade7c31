"""A cache under the prefix rule in the plainest way: dicts, children recounted at each eviction.

The specification that the manager is compared with: requests one after another, every op done at
once. Shares no code with `kvsim.core`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.types import BlockKey, Request


class NaiveCache:
    """One tier.

    Parameters
    ----------
    capacity
        In blocks.
    rank_of
        `rank_of(request, i, clock, old)`: new rank of block i of a request's path, which had the
        rank `old` before (None if it was not there). The leaf with the least rank goes first.
    """

    def __init__(
        self, capacity: int, rank_of: Callable[[Request, int, int, int | None], int]
    ) -> None:
        self.capacity = capacity
        self.rank: dict[BlockKey, int] = {}
        self.parent: dict[BlockKey, BlockKey | None] = {}
        self._rank_of = rank_of
        self._clock = 0

    def access(self, request: Request) -> int | None:
        """Put one request through; return its hits, None if it can never fit."""
        keys = request.block_keys
        if len(keys) > self.capacity:
            return None
        num_hits = 0
        while num_hits < len(keys) and keys[num_hits] in self.rank:
            num_hits += 1
        while len(self.rank) + len(keys) - num_hits > self.capacity:
            self._evict(keys[:num_hits])
        above = None
        for i, key in enumerate(keys):
            self._clock += 1
            self.rank[key] = self._rank_of(request, i, self._clock, self.rank.get(key))
            self.parent[key] = above
            above = key
        return num_hits

    def _evict(self, protected: Sequence[BlockKey]) -> None:
        parents = {self.parent[key] for key in self.rank}
        leaves = [key for key in self.rank if key not in parents and key not in protected]
        del self.rank[min(leaves, key=self.rank.__getitem__)]


def lru(request: Request, i: int, clock: int, old: int | None) -> int:
    """Rank by last use; a request uses its whole path at once."""
    del i, clock, old
    return request.request_id


def fifo(request: Request, i: int, clock: int, old: int | None) -> int:
    """Rank by entry."""
    del request, i
    return clock if old is None else old


def belady(request: Request, i: int, clock: int, old: int | None) -> int:
    """Rank by next use, the latest first."""
    del clock, old
    assert request.next_use_at is not None
    return -request.next_use_at[i]
