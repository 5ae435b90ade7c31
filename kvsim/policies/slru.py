"""Segmented LRU: a block must be hit once before it is protected.

Source: R. Karedla, J. S. Love and B. G. Wherry, "Caching strategies to improve disk system
performance", IEEE Computer 27(3), 1994. https://doi.org/10.1109/2.268884
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from kvsim.errors import ConfigError
from kvsim.policies.queues import Queues, leaf_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import AccessInfo, Peel, PolicyContext, RemoveReason
    from kvsim.types import NodeId

_PROBATION: Final = 0
_PROTECTED: Final = 1


class SLRU:
    """Evict the least recently used block on probation; a hit protects it.

    When more are protected than there is room for, the least recently used of them goes back on
    probation, as its newest.

    Under the prefix rule the head of a segment often has children; then the first evictable block
    of the segment goes, and if it has none, of the protected one: SLRU's second choice.

    Parameters
    ----------
    context
        The tier.
    protected_fraction
        Room for protected blocks, as a share of the tier. Source: 80 % as in G. Einziger,
        R. Friedman and B. Manes, "TinyLFU: a highly efficient cache admission policy", ACM
        Transactions on Storage 13(4), 2017, section 4; the paper above leaves it open.
    """

    __slots__ = ("_protected", "_protected_fraction", "_protected_size", "_queues")

    def __init__(self, context: PolicyContext, *, protected_fraction: float = 0.8) -> None:
        if not 0 <= protected_fraction <= 1:
            raise ConfigError(
                f"protected_fraction must be between 0 and 1, not {protected_fraction!r}"
            )
        self._protected_fraction = protected_fraction
        self._protected_size = int(context.capacity_blocks * protected_fraction)
        self._queues = Queues(2, context.num_nodes)
        # All protected blocks by last use, whether they may be chosen or not.
        self._protected: OrderedDict[NodeId, None] = OrderedDict()
        context.on_resize.append(self.resize)

    def resize(self, capacity_blocks: int, num_nodes: int) -> None:
        """Protect the same share of the new capacity; the oldest too many go on probation."""
        self._queues.add_nodes(num_nodes)
        self._protected_size = int(capacity_blocks * self._protected_fraction)
        self._put_excess_on_probation()

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Put the blocks on probation."""
        del depth
        for node in leaf_first(nodes, info):
            self._queues.insert(node, _PROBATION, is_new=False)

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        """Protect the blocks."""
        del depth
        queues, protected = self._queues, self._protected
        for node in leaf_first(nodes, info):
            queues.move(node, _PROTECTED)
            protected[node] = None
            protected.move_to_end(node)
            if len(protected) > self._protected_size:
                self._put_excess_on_probation()

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        """Change nothing."""

    def on_evictable(self, node: NodeId) -> None:
        """List the block."""
        self._queues.enlist(node)

    def on_pinned(self, node: NodeId) -> None:
        """Take the block off the list."""
        self._queues.unlist(node)

    def on_remove(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        """Forget the blocks."""
        for node in nodes:
            self._queues.forget(node, reason)
            self._protected.pop(node, None)

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        """Take from the head of probation, then from the head of the protected ones."""
        del now
        queues, victims = self._queues, list[int]()
        while len(victims) < n:
            node = queues.first_of(_PROBATION, _PROTECTED)
            if node is None:
                break
            queues.take(node, peel, victims)
        return victims

    def _put_excess_on_probation(self) -> None:
        while len(self._protected) > self._protected_size:
            oldest, _ = self._protected.popitem(last=False)
            self._queues.move(oldest, _PROBATION)
