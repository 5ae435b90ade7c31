"""The leading runs of a trace under one way to evict, with no requests in flight."""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum
from typing import TYPE_CHECKING

from kvsim.engines.radix import radix_runs
from kvsim.hitrate import replay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.trace import Trace
    from kvsim.types import BlockKey


class Evicts(StrEnum):
    """What leaves a cache that is full."""

    BLOCK = "block"
    """The deepest block of the path used longest ago: never a block that another depends on."""
    NODE = "node"
    """The leaf node of a compressed tree used longest ago, with all of its blocks."""
    LIST = "list"
    """The block at the end of a plain list, each of which was touched in turn, root first: a block
    goes before those that depend on it, which then stay behind for nothing."""


class Tail(StrEnum):
    """What a request that ends or parts from the others inside a node does to the rest of it."""

    OLD = "old"
    """Nothing: the rest was used when it was used."""
    RENEWED = "renewed"
    """It uses the rest too. Without compressed nodes there is no rest."""


def runs_of(trace: Trace, evicts: Evicts, tail: Tail, capacity: int) -> Sequence[int]:
    """Return how many leading blocks each request finds in `capacity` blocks.

    Keys must name their whole prefix; only `Evicts.BLOCK` looks, since the others need it too.

    Raises
    ------
    UserError
        If they do not, for `Evicts.BLOCK`.
    """
    paths = [request.block_keys for request in trace.requests]
    if not any(paths):
        return [0] * len(paths)
    if evicts is Evicts.BLOCK:
        return replay(trace, "lru", capacity).runs
    if evicts is Evicts.LIST:
        return list_runs(paths, capacity)
    return radix_runs(paths, capacity, renews_tail=tail is Tail.RENEWED)


def list_runs(paths: Sequence[Sequence[BlockKey]], capacity: int) -> list[int]:
    """Return the leading runs in a plain LRU list whose blocks are touched in turn, root first.

    Parameters
    ----------
    paths
        The block keys of each request, root first.
    capacity
        In blocks.
    """
    order: OrderedDict[BlockKey, None] = OrderedDict()
    runs: list[int] = []
    for path in paths:
        runs.append(next((i for i, key in enumerate(path) if key not in order), len(path)))
        for key in path:
            order[key] = None
            order.move_to_end(key)
            if len(order) > capacity:
                order.popitem(last=False)
    return runs
