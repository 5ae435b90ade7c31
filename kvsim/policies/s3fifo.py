"""S3-FIFO: a small queue that weeds out what is seen once, a main queue, and ghosts.

Source: J. Yang, Y. Zhang, Z. Qiu, Y. Yue and R. Vinayak, "FIFO queues are all you need for cache
eviction", SOSP 2023, algorithm 1 (https://doi.org/10.1145/3600006.3613147); thresholds and the
filling of the empty cache are those of its authors' simulator, libCacheSim 0.3.5.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from kvsim.errors import ConfigError
from kvsim.policies.queues import Queues, leaf_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import AccessInfo, Peel, PolicyContext, RemoveReason
    from kvsim.types import BlockKey, NodeId

_SMALL: Final = 0
_MAIN: Final = 1
_MOST_HITS: Final = 3
"""A counter of two bits."""


class S3FIFO:
    """Let new blocks prove themselves in a small queue; main gives those hit another round.

    Under the prefix rule the head of a queue often has children; then the first evictable block
    of the queue is looked at, and if it has none, of the other queue: its second choice (for 1,427
    of 99,526 victims on the synthetic Mooncake trace with 3,000 blocks, none on conversation). A
    block in the small queue is held by children that came back by their ghosts and are in main.

    Parameters
    ----------
    context
        The tier.
    small_fraction, ghost_fraction
        Sizes of the small queue and of the ghosts, as shares of the tier. Source: section 4.1 of
        the paper for 10 %; ghosts as many as main has blocks.
    promote_at
        Hits in the small queue that lead to main. Source: libCacheSim; the paper's text says more
        than one.
    """

    __slots__ = (
        "_capacity", "_fractions", "_ghost_size", "_ghosts", "_has_evicted", "_key_of",
        "_main_size", "_num_hits", "_promote_at", "_queues", "_small_size",
    )  # fmt: skip

    def __init__(
        self,
        context: PolicyContext,
        *,
        small_fraction: float = 0.1,
        ghost_fraction: float = 0.9,
        promote_at: int = 2,
    ) -> None:
        if not 0 < small_fraction < 1:
            raise ConfigError(f"small_fraction must be between 0 and 1, not {small_fraction!r}")
        if ghost_fraction < 0:
            raise ConfigError(f"ghost_fraction must be at least 0, not {ghost_fraction!r}")
        self._fractions = (small_fraction, ghost_fraction)
        self._set_sizes(context.capacity_blocks)
        self._promote_at = promote_at
        self._key_of = context.key_of
        self._queues = Queues(2, context.num_nodes)
        self._num_hits = bytearray(context.num_nodes)
        self._ghosts: OrderedDict[BlockKey, None] = OrderedDict()
        self._has_evicted = False
        context.on_resize.append(self.resize)

    def resize(self, capacity_blocks: int, num_nodes: int) -> None:
        """Go by the same shares of the new capacity; the oldest ghosts too many are forgotten."""
        num_new = num_nodes - len(self._num_hits)
        self._num_hits += bytes(num_new)
        self._queues.add_nodes(num_nodes)
        self._set_sizes(capacity_blocks)
        while len(self._ghosts) > self._ghost_size:
            self._ghosts.popitem(last=False)

    def _set_sizes(self, capacity_blocks: int) -> None:
        small_fraction, ghost_fraction = self._fractions
        self._capacity = capacity_blocks
        self._small_size = int(capacity_blocks * small_fraction)
        self._main_size = capacity_blocks - self._small_size
        self._ghost_size = int(capacity_blocks * ghost_fraction)

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Queue ghosts in main, others in the small queue, or in main while the tier fills."""
        del depth
        num_in, ghosts = self._queues.num_in, self._ghosts
        for node in leaf_first(nodes, info):
            self._num_hits[node] = 0
            key = self._key_of[node]
            queue = _SMALL
            if key in ghosts:
                del ghosts[key]
                # One that is back without a request behind it has not been seen again.
                queue = _MAIN if info is not None else _SMALL
            elif not self._has_evicted and sum(num_in) < self._capacity:
                queue = _MAIN if num_in[_SMALL] >= self._small_size else _SMALL
            self._queues.insert(node, queue, is_new=info is not None)

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        """Count the hit."""
        del depth, info
        num_hits = self._num_hits
        for node in nodes:
            num_hits[node] = min(num_hits[node] + 1, _MOST_HITS)

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        """Count the blocks in."""
        del info
        self._queues.settle(path)

    def on_evictable(self, node: NodeId) -> None:
        """List the block."""
        self._queues.enlist(node)

    def on_pinned(self, node: NodeId) -> None:
        """Take the block off the list."""
        self._queues.unlist(node)

    def on_remove(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        """Forget the blocks; keep ghosts of those chosen in the small queue."""
        for node in nodes:
            if self._queues.forget(node, reason) == _SMALL:
                self._ghosts[self._key_of[node]] = None
                if len(self._ghosts) > self._ghost_size:
                    self._ghosts.popitem(last=False)

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        """Take from main while it is over its size, else from the small queue."""
        del now
        victims: list[NodeId] = []
        while len(victims) < n:
            node = self._next()
            if node is None:
                break
            self._has_evicted = True
            self._queues.take(node, peel, victims)
        return victims

    def _next(self) -> NodeId | None:
        """Find the next victim; queue again what is spared on the way."""
        queues = self._queues
        is_main = queues.num_settled(_MAIN) > self._main_size or not queues.num_settled(_SMALL)
        # The queue that is due is gone through, even if promotions overfill main meanwhile.
        for queue in (_MAIN, _SMALL) if is_main else (_SMALL, _MAIN):
            while (node := queues.first(queue)) is not None:
                if not self._spare(node):
                    return node
        return queues.first(_MAIN)

    def _spare(self, node: NodeId) -> bool:
        """Move a block that was hit often enough to the end of main; return whether it was."""
        num_hits = self._num_hits
        if self._queues.queue_of[node] == _SMALL:
            if num_hits[node] < self._promote_at:
                return False
            num_hits[node] = 0
        else:
            if not num_hits[node]:
                return False
            num_hits[node] -= 1
        self._queues.move(node, _MAIN)
        return True
