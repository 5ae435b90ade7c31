"""The invariants: everything that can be computed again is, and compared with what is kept."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvsim.core.residency import ABSENT, INCOMING, LEAVING, READY
from kvsim.core.tree import ROOT
from kvsim.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.core.cache import CacheState
    from kvsim.core.tier import Tier
    from kvsim.types import NodeId


def check_cache(cache: CacheState) -> None:
    """Raise `InvariantError` unless the whole state is consistent. Changes nothing."""
    used = [*cache.tree.index.values(), *cache.tree.detached]
    _check_nodes(cache, used)
    _check_references(cache, used)
    _check_attempts(cache)
    _check_ops(cache)
    for tier in cache.tiers:
        _check_tier(cache, tier, used)


def evictable_nodes(cache: CacheState, tier: Tier) -> set[NodeId]:
    """Return the nodes whose copy in `tier` a policy may choose now, found by walking."""
    holds = _count_holds(cache, tier)
    state = tier.copies.state
    return {v for v in cache.tree.index.values() if state[v] == READY and not holds[v]}


def _require(condition: object, message: str) -> None:
    if not condition:
        raise InvariantError(message)


def _check_nodes(cache: CacheState, used: list[NodeId]) -> None:
    tree = cache.tree
    _require(len(used) == len(set(used)), "a node is in use twice")
    in_use = {ROOT, *used}
    for node in range(1, tree.num_nodes):
        has_copy = any(tier.copies.state[node] != ABSENT for tier in cache.tiers)
        _require(has_copy == (node in in_use), f"node {node}: in use without a copy, or unused")
    for key, node in tree.index.items():
        _require(tree.key_of[node] == key, f"index and key of node {node} differ")
        parent = tree.parent[node]
        _require(parent in in_use and parent not in tree.detached, f"node {node} has no parent")
        if cache.is_on_gpu(node):
            _require(cache.is_on_gpu(parent), f"node {node} is on the GPU below one that is not")
    for node in tree.detached:
        _require(node != ROOT, "the root is detached")
    if not cache.is_inclusive:
        for node in tree.index.values():
            where = [tier for tier in cache.tiers if tier.copies.state[node] == READY]
            is_read = all(node in tier.reads for tier in where[1:])
            _require(len(where) < 2 or is_read, f"node {node} is READY twice")


def _check_references(cache: CacheState, used: list[NodeId]) -> None:
    tree = cache.tree
    pins: Counter[NodeId] = Counter()
    for attempt in cache.live.values():
        pins.update(attempt.path if attempt.is_cut_off else attempt.path[-1:])
    for transfer in cache.transfers.values():
        pins.update(transfer.pins)
    for forward in cache.forwards.values():
        pins.update(forward.pins)
    refs: Counter[NodeId] = Counter()
    for node, count in pins.items():
        above = node
        while above != ROOT:
            refs[above] += count
            above = tree.parent[above]
    for prefix in cache.prefix_pins.values():
        # Held where it is: on the GPU only from the time when it comes there.
        pins.update(prefix.held)
        _require(tree.is_path(tree.match(prefix.keys)), "a pinned prefix is no path")
        last = tree.match(prefix.keys)[-1:]
        _require(last == prefix.held[-1:], "a pin does not hold the end of its prefix")
    for node in used:
        _require(tree.pins[node] == pins[node], f"node {node}: {tree.pins[node]} pins kept")
        if refs[node] and node not in tree.detached:
            _require(cache.is_on_gpu(node), f"node {node} is referenced and not on the GPU")
    num_path_blocks = sum(len(attempt.path) for attempt in cache.live.values())
    _require(num_path_blocks == cache.num_path_blocks, "the paths' lengths differ")


def _check_attempts(cache: CacheState) -> None:
    tree, gpu = cache.tree, cache.gpu.copies
    for attempt in cache.live.values():
        path, table = attempt.path, attempt.table
        if attempt.is_cut_off:
            _require(tree.detached.issuperset(path), "a path was cut off and is in the tree")
            _require(attempt.weight_version < cache.weight_version, "a path of today is cut off")
        else:
            _require(tree.is_path(path), "an attempt's path is not a path of the tree")
            _require(tree.detached.isdisjoint(path), "a live path is detached")
            is_today = attempt.weight_version == cache.weight_version
            _require(is_today or not path, "a path of old weights is in the tree")
        _require(len(table) >= len(path), "an attempt's table is shorter than its path")
        for i, node in enumerate(path):
            _require(tree.key_of[node] == attempt.keys[i], f"block {i} has another key")
            seen = attempt.duplicates.get(i, gpu.block[node])
            _require(table[i] == seen, f"block {i} of the table is not its node's")
    owned = [b for a in cache.live.values() for b in a.private_block_ids]
    _require(len(owned) == len(set(owned)), "a private block has two owners")


def _check_ops(cache: CacheState) -> None:
    writers: Counter[tuple[int, NodeId]] = Counter()
    reads: dict[int, Counter[NodeId]] = {tier.index: Counter() for tier in cache.tiers}
    leaving: Counter[tuple[int, NodeId]] = Counter()
    num_rescued = 0
    for op_id, transfer in cache.transfers.items():
        source = cache.tiers[transfer.source]
        goes_up = transfer.target < transfer.source
        for node in transfer.nodes:
            if not transfer.is_timed_out:
                writers[transfer.target, node] += 1
                if goes_up:
                    _require(cache.incoming_by.get(node) == op_id, f"node {node}: writer unknown")
            is_leaving = source.copies.state[node] == LEAVING
            if is_leaving and not goes_up and not transfer.is_timed_out:
                leaving[source.index, node] += 1
                continue
            reads[source.index][node] += 1
            num_rescued += not goes_up
    for forward in cache.forwards.values():
        if not forward.is_timed_out:
            writers.update((0, node) for _, nodes in forward.fills for node in nodes)
    for tier in cache.tiers:
        _require(tier.reads == dict(reads[tier.index]), f"tier {tier.index}: reads differ")
        state = tier.copies.state
        for node in range(1, cache.tree.num_nodes):
            expected = int(state[node] == INCOMING)
            _require(writers[tier.index, node] == expected, f"node {node}: writers differ")
    found = Counter(
        (tier.index, node)
        for tier in cache.tiers
        for node in range(1, cache.tree.num_nodes)
        if tier.copies.state[node] == LEAVING
    )
    _require(leaving == found, "leaving copies and open write-backs differ")
    _require(num_rescued == cache.num_rescued, "rescued copies differ")
    ups = {v for t in cache.transfers.values() if t.target == 0 for v in t.nodes}
    _require(set(cache.incoming_by) <= ups, "a copy up is recorded that no op makes")


def _check_tier(cache: CacheState, tier: Tier, used: Iterable[NodeId]) -> None:
    copies = tier.copies
    owned = [copies.block[v] for v in used if copies.state[v] != ABSENT]
    if tier is cache.gpu:
        owned += [b for a in cache.live.values() for b in a.private_block_ids]
    tier.pool.check(owned)
    for state in (ABSENT, INCOMING, READY, LEAVING):
        found = copies.state[1:].count(state)
        _require(copies.num_in[state] == found, f"tier {tier.index}: {found} copies in {state}")
    holds = _count_holds(cache, tier)
    for node in used:
        _require(
            copies.holds[node] == holds[node],
            f"tier {tier.index}, node {node}: {copies.holds[node]} holds kept, {holds[node]} found",
        )
        parent = cache.tree.parent[node]
        if copies.state[node] in {INCOMING, READY} and parent != ROOT:
            has_copy = any(t.copies.state[parent] != ABSENT for t in cache.tiers)
            _require(has_copy or node in cache.tree.detached, f"node {node} is out of reach")


def _count_holds(cache: CacheState, tier: Tier) -> Counter[NodeId]:
    """Recount what keeps each copy: references that end there, children, and reading ops."""
    holds: Counter[NodeId] = Counter(dict(tier.reads))
    tree, state = cache.tree, tier.copies.state
    for node in [*tree.index.values(), *tree.detached]:
        holds[node] += tree.pins[node]
        if state[node] in {INCOMING, READY}:
            holds[tree.parent[node]] += 1
    return holds
