"""What a policy needs around it, in small: a context, an access, and a tree to peel victims off."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from kvsim.core.ports import AccessInfo, PolicyContext
from kvsim.core.residency import Copies, CopyEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import EvictionPolicy, Peel

NUM_NODES = 40
KEYS = [f"k{node}" for node in range(NUM_NODES)]


def new_context(
    *, tier: int = 0, capacity: int = NUM_NODES, shared: dict[str, object] | None = None
) -> PolicyContext:
    """Return the context of a tier; the key of node 3 is "k3"."""
    return PolicyContext(
        tier=tier,
        capacity_blocks=capacity,
        num_nodes=NUM_NODES,
        key_of=KEYS,
        rng=Random(0),
        recompute_ns=lambda depth: depth + 1,
        shared={} if shared is None else shared,
    )


def access(index: int = 0, *, next_use_at: Sequence[int] | None = None) -> AccessInfo:
    """Return the access of the request with this index."""
    return AccessInfo(
        now=index,
        request_index=index,
        session_id=None,
        num_tokens=1,
        priority=0,
        next_use_at=next_use_at,
    )


def peel_of(parent: dict[int, int], nodes: Sequence[int]) -> Peel:
    """Return the `peel` of a tier in which these nodes are READY; others hang below the root."""
    parents = [parent.get(node, 0) for node in range(NUM_NODES)]
    copies = Copies(NUM_NODES)
    copies.reserve(nodes, nodes, parents)
    copies.move(nodes, CopyEvent.WRITTEN)
    return partial(copies.peel, parents, CopyEvent.DROP)


def victims_of(
    policy: EvictionPolicy, n: int, nodes: Sequence[int], *, parent: dict[int, int] | None = None
) -> list[int]:
    """Return what a policy takes from a tier with these nodes, of which it knows the leaves."""
    return policy.choose_victims(n, peel_of(parent or {}, nodes), 0)
