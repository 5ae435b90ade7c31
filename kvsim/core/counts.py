"""How many GPU blocks eviction can free: a lower bound, and a count where that is not enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.residency import LEAVING, READY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.cache import CacheState
    from kvsim.types import NodeId


def has_evictable(cache: CacheState, n: int, path: Sequence[NodeId]) -> bool:
    """Whether eviction can free `n` GPU blocks in the end without touching `path`.

    Shared blocks make the lengths of the live paths add up to more than they hold, so the quick
    answer is a lower bound; only where that is not enough are they counted.
    """
    gpu, detached = cache.gpu, cache.tree.detached
    quick = gpu.copies.num_in[READY] - cache.num_path_blocks - len(path) - len(detached)
    quick -= len(gpu.pool.retiring)
    if quick >= n and not (cache.transfers or cache.forwards or cache.prefix_pins):
        return True
    return quick >= n + _num_op_pinned(cache) or num_evictable(cache, path) >= n


def num_evictable(cache: CacheState, path: Sequence[NodeId] = ()) -> int:
    """Count the GPU blocks that eviction can free in the end: READY, attached, held by nobody.

    `path` counts as held. A copy hit again on its way down keeps its ancestors too until that op
    settles; these few are counted as evictable. A retiring block is freed for nobody.
    """
    tree, copies = cache.tree, cache.gpu.copies
    held = set(path).union(tree.detached, *(a.path for a in cache.live.values()))
    for node in _op_pins(cache):
        held.update(tree.path_to(node))
    state, retiring = copies.state, cache.gpu.pool.retiring
    if retiring:
        block = copies.block
        held.update(v for v in tree.index.values() if state[v] and block[v] in retiring)
    num_held = bytes(map(state.__getitem__, held)).count(READY)
    return copies.num_in[READY] - num_held


def num_leaving_for_good(cache: CacheState, path: Sequence[NodeId]) -> int:
    """Count the GPU blocks, not of `path`, that come free for nobody as they are retiring."""
    retiring = cache.gpu.pool.retiring
    if not retiring:
        return 0
    state, block = cache.gpu.copies.state, cache.gpu.copies.block
    leaving = {v for each in cache.transfers.values() for v in each.nodes if state[v] == LEAVING}
    return sum(block[node] in retiring for node in leaving.difference(path))


def _num_op_pinned(cache: CacheState) -> int:
    """Bound how many nodes are held by what is no attempt: ops, and pins of prefixes."""
    return sum(len(cache.tree.path_to(node)) for node in _op_pins(cache))


def _op_pins(cache: CacheState) -> list[NodeId]:
    pins = [node for transfer in cache.transfers.values() for node in transfer.pins]
    pins += [node for forward in cache.forwards.values() for node in forward.pins]
    pins += [node for prefix in cache.prefix_pins.values() for node in prefix.held]
    return pins
