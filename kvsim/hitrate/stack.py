"""Leaf-only LRU at every capacity in one pass.

Sort all blocks by the last request that touched them, the latest first, and those of one request
by depth: the *stack*. A cache of C blocks that evicts only leaves, oldest first, holds its first C
blocks, for every C. So a block is a hit exactly if its position when the request begins is at most
C, and one histogram of positions is the curve of all capacities.

What one request shares with an earlier one is a piece of its path, and lies in one interval of the
stack: a step up and a step down in a list of differences. How much lies above it is a prefix sum
over *requests* (a Fenwick tree), not over blocks.

Source: R. L. Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal
9(2), 1970, for stacks; P. M. Fenwick, "A new data structure for cumulative frequency tables",
Software: Practice and Experience 24(3), 1994. That the stack holds for a prefix tree, request by
request, is ours; tests compare it with a replay at every capacity.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvsim.analysis.metrics import DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from kvsim.hitrate.paths import Pieces
    from kvsim.trace import Trace

_TOKENS: Final = ("prefix_token", "prefix_token_usable")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StackHistogram:
    """How many references find their block within the first C of the LRU stack, for every C.

    Parameters
    ----------
    block_size
        Tokens a block.
    within, lacking, unusable
        By C, from 0: references within the first C; tokens that the last blocks among them have
        less than a full block; last blocks among them that can never be used, because a prompt
        computes its last token at least.
    """

    block_size: int
    within: NDArray[np.int64]
    lacking: NDArray[np.int64]
    unusable: NDArray[np.int64]

    @property
    def depth(self) -> int:
        """The deepest position of the stack that was ever hit: more room changes nothing."""
        return len(self.within) - 1

    def hits(self, capacity: int) -> dict[str, int]:
        """Return the hits of an LRU cache of `capacity` blocks, by each definition."""
        at = min(capacity, self.depth)
        blocks, size = int(self.within[at]), self.block_size
        tokens = blocks * size - int(self.lacking[at])
        usable = (blocks - int(self.unusable[at])) * size
        return dict(zip(DEFINITIONS, (blocks, blocks, tokens, usable), strict=True))

    def by_capacity(self, definition: str) -> NDArray[np.int64]:
        """Return the hits by one definition for every capacity from 0 to `depth`."""
        if definition not in _TOKENS:
            return self.within
        if definition == "prefix_token":
            return self.within * self.block_size - self.lacking
        return (self.within - self.unusable) * self.block_size

    def references(self) -> NDArray[np.int64]:
        """Return how many references find their block at each position; index 0 is none."""
        import numpy as np

        return np.diff(self.within, prepend=0)


def stack_histogram(pieces: Pieces, trace: Trace, first: int = 0) -> StackHistogram:
    """Return where in the stack the references of requests from `first` on find their blocks.

    O(log requests) a piece: about as long as one replay of one capacity.
    """
    lengths = pieces.lengths
    num_blocks = sum(lengths) - sum(pieces.known())
    steps = array("q", bytes(8 * (num_blocks + 2)))
    ends: list[tuple[int, int]] = []  # of prompts known to their end: position, tokens beyond
    requests, block_size = trace.requests, trace.block_size
    num_requests = len(lengths)
    tree = [0] * (num_requests + 1)  # Fenwick tree: blocks by the request that touched them last
    num_seen = 0
    for request, (found, length) in enumerate(zip(pieces.previous, lengths, strict=True)):
        start = above = 0
        for end, owner in found:
            # Above it: what later requests touched last, and the part of this path before it.
            above = num_seen + start
            i = owner + 1
            while i:
                above -= tree[i]
                i &= i - 1
            num_here = end - start
            if request >= first:
                steps[above + 1] += 1
                steps[above + num_here + 1] -= 1
            i = owner + 1
            while i <= num_requests:
                tree[i] -= num_here
                i += i & -i
            num_seen -= num_here
            above += num_here
            start = end
        if start == length and request >= first and length:
            ends.append((above, requests[request].num_input_tokens - length * block_size))
        num_seen += length
        i = request + 1
        while i <= num_requests:
            tree[i] += length
            i += i & -i
    return _histogram(steps, ends, block_size)


def _histogram(
    steps: array[int], ends: Sequence[tuple[int, int]], block_size: int
) -> StackHistogram:
    """Add up the steps, and the ends of prompts: position, tokens beyond the last block."""
    import numpy as np

    within = np.frombuffer(steps, dtype=np.int64)[:-1].cumsum().cumsum()
    depth = int(np.searchsorted(within, within[-1]))
    return StackHistogram(
        block_size=block_size,
        within=_frozen(within[: depth + 1].copy()),
        lacking=_summed(((at, max(0, -beyond)) for at, beyond in ends), depth),
        # One token is always computed: it is in this block unless others follow that are in none.
        unusable=_summed(((at, int(beyond <= 0)) for at, beyond in ends), depth),
    )


def _summed(counts: Iterable[tuple[int, int]], depth: int) -> NDArray[np.int64]:
    import numpy as np

    each = np.zeros(depth + 1, dtype=np.int64)
    for position, count in counts:
        each[position] += count
    return _frozen(np.cumsum(each))


def _frozen(values: NDArray[np.int64]) -> NDArray[np.int64]:
    values.setflags(write=False)
    return values
