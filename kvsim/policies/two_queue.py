"""2Q: a queue for blocks seen once, a list of those seen again, and ghosts of the first.

Source: T. Johnson and D. Shasha, "2Q: a low overhead high performance buffer management
replacement algorithm", VLDB 1994, figure 2 (the full version).
https://www.vldb.org/conf/1994/P439.PDF
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

_ONCE: Final = 0
"""The paper's A1in, first in, first out; its ghosts are A1out."""
_AGAIN: Final = 1
"""Am, least recently used."""


class TwoQueue:
    """Keep blocks that come back soon after they left; hits while they are new count for nothing.

    Under the prefix rule the head of a queue often has children; then the first evictable block
    of the queue goes, and if it has none, of the other queue: its second choice.

    Parameters
    ----------
    context
        The tier.
    in_fraction, out_fraction
        Size of the first queue and number of ghosts, as shares of the tier. Source: section 3 of
        the paper, 25 % and 50 %.
    """

    __slots__ = ("_fractions", "_ghost_size", "_ghosts", "_key_of", "_once_size", "_queues")

    def __init__(
        self, context: PolicyContext, *, in_fraction: float = 0.25, out_fraction: float = 0.5
    ) -> None:
        if not 0 < in_fraction < 1:
            raise ConfigError(f"in_fraction must be between 0 and 1, not {in_fraction!r}")
        if out_fraction < 0:
            raise ConfigError(f"out_fraction must be at least 0, not {out_fraction!r}")
        self._fractions = (in_fraction, out_fraction)
        self._once_size, self._ghost_size = self._sizes(context.capacity_blocks)
        self._key_of = context.key_of
        self._queues = Queues(2, context.num_nodes)
        self._ghosts: OrderedDict[BlockKey, None] = OrderedDict()
        context.on_resize.append(self.resize)

    def resize(self, capacity_blocks: int, num_nodes: int) -> None:
        """Go by the same shares of the new capacity; the oldest ghosts too many are forgotten."""
        self._queues.add_nodes(num_nodes)
        self._once_size, self._ghost_size = self._sizes(capacity_blocks)
        while len(self._ghosts) > self._ghost_size:
            self._ghosts.popitem(last=False)

    def _sizes(self, capacity_blocks: int) -> tuple[int, int]:
        in_fraction, out_fraction = self._fractions
        return int(capacity_blocks * in_fraction), int(capacity_blocks * out_fraction)

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Queue ghosts as seen again, others as seen once."""
        del depth
        for node in leaf_first(nodes, info):
            key = self._key_of[node]
            is_back = key in self._ghosts
            if is_back:
                del self._ghosts[key]
            # One that is back without a request behind it has not been seen again.
            queue = _AGAIN if is_back and info is not None else _ONCE
            self._queues.insert(node, queue, is_new=info is not None)

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        """Move blocks that were seen again before to the end of their queue."""
        del depth
        for node in leaf_first(nodes, info):
            if self._queues.queue_of[node] == _AGAIN:
                self._queues.move(node, _AGAIN)

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
        """Forget the blocks; keep ghosts of those that were chosen when seen once."""
        for node in nodes:
            if self._queues.forget(node, reason) == _ONCE:
                self._ghosts[self._key_of[node]] = None
                if len(self._ghosts) > self._ghost_size:
                    self._ghosts.popitem(last=False)

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        """Take from the first queue while it is over its size, else from the other."""
        del now
        queues, victims = self._queues, list[int]()
        while len(victims) < n:
            wanted = _ONCE if queues.num_settled(_ONCE) > self._once_size else _AGAIN
            node = queues.first_of(wanted, 1 - wanted)
            if node is None:
                break
            queues.take(node, peel, victims)
        return victims
