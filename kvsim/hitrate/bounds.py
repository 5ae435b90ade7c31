"""LRU and the clairvoyant optimum at one capacity, piece by piece instead of block by block.

Both keep, for each request, the part of its path that is cached on its account: for LRU what it
touched last, for the optimum what it will touch next. Such a part is one run of the path, and loses
its blocks from below. So a cache is two numbers a request, and evicting is lowering one of them.

Source: R. L. Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal
9(2), 1970, for the stack; L. A. Belady (see `kvsim.policies.belady`) for the optimum. That both
come in pieces under the prefix rule is ours; tests compare them with searches.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.hitrate.paths import Piece, Pieces
    from kvsim.types import RequestId


def lru_runs(pieces: Pieces, capacity: int) -> list[int]:
    """Return how many leading blocks each request finds in an LRU cache of `capacity` blocks.

    O(pieces), about 1.4 a request on a real trace.
    """
    num_requests = len(pieces.lengths)
    # Request r keeps blocks low[r] to high[r] of its path: what nobody has touched since.
    low, high = [0] * num_requests, [0] * num_requests
    oldest = num_cached = 0
    runs: list[int] = []
    for request, (found, length) in enumerate(zip(pieces.previous, pieces.lengths, strict=True)):
        run = 0
        for end, owner in found:
            cached_to = high[owner]
            low[owner] = end
            if cached_to < end:
                run = max(run, cached_to)
                break  # what is below is gone too
            run = end
        runs.append(run)
        high[request] = length
        num_cached += length - run
        while num_cached > capacity:
            num_here = high[oldest] - low[oldest]
            if num_here > num_cached - capacity:
                high[oldest] -= num_cached - capacity
                num_cached = capacity
                break
            if num_here > 0:
                high[oldest] = 0
                num_cached -= num_here
            oldest += 1
    return runs


def opt_runs(
    following: Sequence[Sequence[Piece]],
    lengths: Sequence[int],
    capacity: int,
    *,
    may_bypass: bool = False,
) -> list[int]:
    """Return how many leading blocks each request finds if what is needed last goes first.

    Parameters
    ----------
    following
        `Pieces.following()`.
    lengths
        Blocks of each request.
    capacity
        In blocks.
    may_bypass
        Whether blocks may be computed without ever being cached. If not, a request's whole path
        (its first `capacity` blocks) is in the cache when it ends.
    """
    num_requests = len(lengths)
    # Blocks low[r] to high[r] of request r's path are cached, and it is the next to want them.
    low, high = [0] * num_requests, [0] * num_requests
    latest, runs = list[int](), list[int]()  # a heap of -r: entries of the past stay at the bottom
    num_wanted = num_dead = 0  # dead blocks are wanted by nobody: the first to go
    for request, (wanted, length) in enumerate(zip(following, lengths, strict=True)):
        run = high[request]  # all of its blocks that are cached, since it is the next
        runs.append(run)
        num_wanted -= run
        end = length
        if not may_bypass:
            end = min(length, capacity)
            num_dead = max(0, min(num_dead, capacity - end - num_wanted))
            num_wanted -= _evict_latest(num_wanted - (capacity - end), low, high, latest)
        start = 0
        for piece_end, again in wanted:
            if start >= end:
                break
            if not high[again]:
                heappush(latest, -again)
            low[again] = start
            start = min(piece_end, end)
            high[again] = max(high[again], start)
        num_wanted += start
        if may_bypass:
            num_wanted -= _evict_latest(num_wanted - capacity, low, high, latest)
        else:
            num_dead += end - start
    return runs


def _evict_latest(n: int, low: list[int], high: list[int], latest: list[RequestId]) -> int:
    """Take `n` blocks, those wanted latest first and of one path the deepest first; return `n`."""
    left = n = max(0, n)
    while left:
        request = -latest[0]
        num_here = high[request] - low[request]
        if num_here > left:
            high[request] -= left
            break
        high[request] = 0
        heappop(latest)
        left -= num_here
    return n
