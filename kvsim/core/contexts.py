"""What the policies of one instance are made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.ports import PolicyContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.core.tree import PrefixTree
    from kvsim.types import Rng, TierIndex


class PolicyContexts:
    """Makes the contexts of an instance's policies, which share one dictionary.

    Parameters
    ----------
    rng, recompute_ns, is_inclusive
        As in `PolicyContext`.

    Attributes
    ----------
    listeners
        By tier: what its policy wants to have called at a resize.
    """

    __slots__ = ("_is_inclusive", "_recompute_ns", "_rng", "_shared", "listeners")

    def __init__(self, *, rng: Rng, recompute_ns: Callable[[int], int], is_inclusive: bool) -> None:
        self._rng = rng
        self._recompute_ns = recompute_ns
        self._is_inclusive = is_inclusive
        self._shared: dict[str, object] = {}
        self.listeners: list[list[Callable[[int, int], None]]] = []

    def new(self, tier: TierIndex, capacity_blocks: int, tree: PrefixTree) -> PolicyContext:
        """Return the context of the next tier's policy."""
        context = PolicyContext(
            tier=tier,
            capacity_blocks=capacity_blocks,
            num_nodes=tree.num_nodes,
            key_of=tree.key_of,
            rng=self._rng,
            recompute_ns=self._recompute_ns,
            shared=self._shared,
            is_inclusive=self._is_inclusive,
        )
        self.listeners.append(context.on_resize)
        return context
