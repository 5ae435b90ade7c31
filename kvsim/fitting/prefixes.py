"""Find the beginnings that many sessions share: system prompts, most often."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.hitrate.paths import Pieces
    from kvsim.trace import Trace
    from kvsim.types import BlockKey

_MOST: Final = 8
_LEAST_BRANCHES: Final = 8
_LEAST_SHARE: Final = 0.004


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """The shared prefixes of a trace.

    Parameters
    ----------
    found
        Blocks of each beyond the one that it extends, and that one's position; the shorter first.
    last
        Key of the last block -> position in `found`, and length from the first block.
    """

    found: list[tuple[int, int | None]]
    last: dict[BlockKey, tuple[int, int]]

    def longest_of(self, keys: Sequence[BlockKey]) -> tuple[int | None, int]:
        """Return which one a prompt begins with, the longest, and its length; else (None, 0)."""
        return _longest(keys, self.last)


def find_prefixes(trace: Trace, pieces: Pieces) -> Prefixes:
    """Return the prefixes after which most prompts part: at most 8.

    One counts if at least 8 prompts, and 4 in a thousand, were the first to continue it as they do.
    """
    branches: Counter[BlockKey] = Counter()
    where: dict[BlockKey, tuple[int, int]] = {}  # blocks from the first, a request that has it
    for request, found in zip(trace.requests, pieces.previous, strict=True):
        match = found[-1][0] if found else 0
        if 0 < match < len(request.block_keys):
            key = request.block_keys[match - 1]
            branches[key] += 1
            where[key] = (match, request.request_id)
    least = max(_LEAST_BRANCHES, _LEAST_SHARE * trace.num_requests)
    chosen = [key for key, num in branches.most_common(_MOST) if num >= least]
    found_prefixes: list[tuple[int, int | None]] = []
    last: dict[BlockKey, tuple[int, int]] = {}
    for key in sorted(chosen, key=where.__getitem__):
        depth, request_id = where[key]
        extends, above = _longest(trace.requests[request_id].block_keys, last)
        last[key] = (len(found_prefixes), depth)
        found_prefixes.append((depth - above, extends))
    return Prefixes(found=found_prefixes, last=last)


def _longest(
    keys: Sequence[BlockKey], last: dict[BlockKey, tuple[int, int]]
) -> tuple[int | None, int]:
    best: tuple[int | None, int] = (None, 0)
    reach = max((depth for _, depth in last.values()), default=0)
    for key in keys[:reach]:
        best = last.get(key, best)
    return best
