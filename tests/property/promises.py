"""What a cache manager promises, asserted on a driver: at any time, and at the end.

The numbered invariants of the design are named where they are checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.check import evictable_nodes
from kvsim.core.residency import ABSENT, INCOMING, LEAVING, READY
from kvsim.core.tree import ROOT
from kvsim.events import BlocksStored
from kvsim.testing import Prompt
from tests.property.memory import expected_content, num_full_slots

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.core.attempt import Attempt
    from kvsim.core.ops import Transfer
    from kvsim.core.tier import Tier
    from kvsim.types import BlockId, BlockKey, NodeId
    from tests.property.client import Client
    from tests.property.driver import Driver
    from tests.property.memory import Address

READABLE = (READY, LEAVING)


def check_promises(driver: Driver) -> None:
    """Assert what holds between any two steps."""
    driver.manager.check()
    for tier in driver.cache.tiers:
        _check_readable(driver, tier)
        policy = driver.policies[tier.index]
        assert not policy.pending, f"victims {policy.pending} were not taken"
        assert policy.listed == evictable_nodes(driver.cache, tier)
    driver.recount.check(driver.manager)
    _check_reach(driver)
    _check_stored_order(driver)
    coming = _coming(driver)
    for client in driver.running:
        _check_client(driver, client, coming)


def _check_readable(driver: Driver, tier: Tier) -> None:
    """Invariants 5, 6 and 20: key, content and events agree on what can be read."""
    readable: set[BlockKey] = set()
    for key, node in driver.cache.tree.index.items():
        if tier.copies.state[node] in READABLE:
            readable.add(key)
            seen = driver.memory.content.get((tier.index, tier.copies.block[node]))
            version = driver.cache.weight_version
            wanted = (key, num_full_slots(key, driver.config.block_size), version)
            assert seen == wanted, f"tier {tier.index}: a block of {key} holds {seen}"
    assert driver.mirror.readable[tier.index] == readable


def _check_reach(driver: Driver) -> None:
    """Invariant 9: a block that can be read has a parent that can be, in some tier."""
    tree, tiers = driver.cache.tree, driver.cache.tiers
    readable = {v for v in tree.index.values() if any(t.copies.state[v] in READABLE for t in tiers)}
    for node in readable:
        assert tree.parent[node] in {ROOT, *readable}, f"node {node} is out of reach"


def _check_stored_order(driver: Driver) -> None:
    """Invariant 20: in an event, parents come before children."""
    key_parents = {
        tree_key: driver.cache.tree.key_of[driver.cache.tree.parent[node]]
        for tree_key, node in driver.cache.tree.index.items()
    }
    events = driver.mirror.events
    for event in events[driver.num_checked_events :]:
        if isinstance(event, BlocksStored):
            place = {key: i for i, key in enumerate(event.keys)}
            for key, i in place.items():
                assert place.get(key_parents.get(key), -1) < i, f"child before parent: {event}"
    driver.num_checked_events = len(events)


def _coming(driver: Driver) -> set[Address]:
    """Return the blocks that hold nothing yet, and may."""
    coming = {address for op in driver.answerable for address in op.writes}
    # What a failed copy did not bring is not missed while a Forward that waits for it runs.
    postponed = [op for op in driver.postponed if driver.manager.is_open(op.op_id)]
    coming |= {address for op in postponed for address in op.writes}
    forwards = driver.cache.forwards
    if driver.building is not None and driver.building.op_id in forwards:
        block = driver.cache.gpu.copies.block
        for _, nodes in forwards[driver.building.op_id].fills:
            coming |= {(0, block[node]) for node in nodes}
    return coming


def _check_client(driver: Driver, client: Client, coming: set[Address]) -> None:
    """Every block that the client takes for computed holds what it should, or will."""
    wanted = expected_content(client.attempt, client.num_kv)
    for block_id, content in zip(client.attempt.table, wanted, strict=False):
        seen = driver.memory.content.get((0, block_id))
        is_there = seen is not None and seen[::2] == content[::2]
        assert is_there or (0, block_id) in coming, f"{content} is lost; there is {seen}"


def check_reloads(client: Client, ops: Iterable[Transfer]) -> None:
    """Assert that the copies up of an admission name their attempt and repeat no failed one."""
    attempt = client.attempt
    for op in ops:
        if op.target.tier == 0:
            assert op.attempts == ((client.request.request_id, attempt.number),)
            again = keys_in(attempt, {b for _, b in op.block_pairs}) & client.failed_reloads
            assert not again, f"{again} are copied up again after a failure"


def keys_in(attempt: Attempt, block_ids: set[BlockId]) -> frozenset[BlockKey]:
    """Return the keys of the attempt's blocks among these."""
    pairs = zip(attempt.keys, attempt.table, strict=False)
    return frozenset(key for key, block_id in pairs if block_id in block_ids)


def check_nothing_is_left(driver: Driver) -> None:
    """Invariant 15: assert that a driver in which everything has ended is idle in every respect."""
    cache = driver.cache
    assert not driver.manager.has_open_ops, "every op has settled, and yet one is open"
    assert not any(cache.tree.pins)
    assert not cache.tree.detached
    assert not cache.live
    for tier in cache.tiers:
        num_ready = tier.copies.num_in[READY]
        assert driver.manager.num_free_blocks(tier.index) + num_ready == tier.pool.capacity
        assert tier.pool.capacity == driver.manager.upkeep.num_blocks(tier.index)
        assert not tier.reads
    check_promises(driver)


def check_a_large_one_fits(driver: Driver) -> None:
    """Assert that nothing is in the way of a request of the size of the GPU tier."""
    gpu = driver.manager.upkeep.num_blocks()
    client = driver.submit(Prompt((9,) * gpu, driver.config.block_size))
    for _ in range(3 * gpu + 3):
        if driver.admit(client):
            break
        driver.drain()
    assert client in driver.running, "one of the size of the GPU tier is never admitted"
    driver.end(client)
    driver.check()


def missing_blocks(driver: Driver, attempt: Attempt) -> int:
    """Return the blocks an attempt lacks for good: its need less all that can come free.

    That is free blocks, blocks on their way down, and what eviction can free in the end; the
    attempt's own hits are none of these.
    """
    cache, tree = driver.cache, driver.cache.tree
    state = cache.gpu.copies.state
    path = tree.match(attempt.keys)
    for i, node in enumerate(path):
        is_computed = state[node] == INCOMING and node not in cache.incoming_by
        is_private = is_computed and not driver.config.share_in_flight
        if is_private or (state[node] == ABSENT and attempt.keys[i] in attempt.no_reload):
            del path[i:]
            break
    need = attempt.num_wanted_blocks - sum(state[v] != ABSENT for v in path)
    need -= driver.manager.num_free_blocks()
    if need <= 0:
        return need
    # A block beyond the size of a tier that was made smaller comes free for nobody.
    size, block = driver.manager.upkeep.num_blocks(), cache.gpu.copies.block
    others = set(tree.index.values()) - set(path) - _held_nodes(driver)
    evictable = sum(state[v] == READY and block[v] < size for v in others)
    nodes = {*tree.index.values(), *tree.detached}.difference(path)
    leaving = sum(state[v] == LEAVING and block[v] < size for v in nodes)
    return need - evictable - leaving


def _held_nodes(driver: Driver) -> set[NodeId]:
    """Return the nodes that a reference ends at or goes through."""
    cache = driver.cache
    ends = [attempt.path[-1] for attempt in cache.live.values() if attempt.path]
    for transfer in cache.transfers.values():
        ends += transfer.pins
    for forward in cache.forwards.values():
        ends += forward.pins
    for prefix in cache.prefix_pins.values():
        ends += tree_path[-1:] if (tree_path := cache.tree.match(prefix.keys)) else []
    return {node for end in ends for node in cache.tree.path_to(end)}
