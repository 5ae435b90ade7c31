"""Settling copies that go down, and what both directions have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.ports import RemoveReason
from kvsim.core.residency import READY, CopyEvent
from kvsim.events import RemoveCause

if TYPE_CHECKING:
    from kvsim.core.cache import CacheState, OpenTransfer
    from kvsim.core.ops import Completion
    from kvsim.core.tier import Tier
    from kvsim.types import NodeId, OpId


def arrived_below(cache: CacheState, transfer: OpenTransfer) -> None:
    """Take note that a copy down is DONE: what was to leave has left."""
    source, target = cache.tiers[transfer.source], cache.tiers[transfer.target]
    nodes = transfer.nodes
    moved, source_ids = nodes, transfer.source_ids
    rescued: list[NodeId] = []
    if cache.num_rescued:
        state = source.copies.state
        rescued = [node for node in nodes if state[node] == READY]
        moved = [node for node in nodes if state[node] != READY]
        source_ids = source.copies.blocks_of(moved)
    source.copies.move_down(target.copies, moved)
    attached = attached_of(cache, moved)
    if cache.sink is not None:
        cache.emit_stored(target, attached[::-1])
        cache.emit_removed(source, attached, RemoveCause.DEMOTED)
        _emit_detached_freed(cache, source, moved)
    source.pool.give_dropped(source_ids)
    target.policy.on_insert(attached, 0, None)
    if rescued:
        _keep_above(cache, source, target, rescued)
    holds = target.copies.holds
    bare = [node for node in moved if not holds[node]]
    for node in bare:
        if target.copies.state[node] == READY:
            cache.review(target, node)
    if source.forgets_reads:
        for node in attached:
            drop_superseded(cache, node)  # computed again above, meanwhile
    cache.note_due(target, attached[::-1])


def failed_below(
    cache: CacheState, answer: Completion, transfer: OpenTransfer, *, timed_out: bool
) -> None:
    """Take note that a copy down has failed, or missed its deadline: its sources stay."""
    source, target = cache.tiers[transfer.source], cache.tiers[transfer.target]
    nodes = transfer.nodes
    source.drop_next |= transfer.releases_source
    state = source.copies.state
    rescued = [node for node in nodes if state[node] == READY]
    leaving = [node for node in nodes if state[node] != READY]
    _lose_below(cache, target, nodes, answer.op_id, timed_out=timed_out)
    source.copies.move(leaving, CopyEvent.RESCUE)
    cache.emit_kept(source, attached_of(cache, leaving))
    # Ancestors first: a block may stay only under a parent that does.
    for node in reversed(leaving):
        parent = cache.tree.parent[node]
        cache.hold(source, parent)
        if node not in cache.tree.detached and not source.forgets_reads:
            source.policy.on_insert([node], 0, None)
        cache.start_read(source, node)
    if not timed_out:
        cache.num_rescued -= len(rescued)
        finish_reads(cache, source, nodes)
    else:
        cache.num_rescued += len(leaving)
    if source is not cache.gpu:
        return
    for node in reversed(leaving):
        parent = cache.tree.parent[node]
        if state[node] == READY and node not in cache.tree.detached and not cache.is_on_gpu(parent):
            cache.detach(node)


def finish_reads(cache: CacheState, source: Tier, nodes: list[NodeId]) -> None:
    """Settle the sources of an op, deepest first where they are below the GPU.

    Exclusive tiers: what is above now is not kept below. What did not get there is the lower
    policy's again.
    """
    if not source.forgets_reads:
        for node in nodes:
            cache.end_read(source, node)
        return
    above, reads = cache.gpu.copies.state, source.reads
    promoted = [node for node in nodes if reads[node] == 1 and above[node] == READY]
    if promoted:
        if cache.sink is not None:
            cache.emit_removed(source, attached_of(cache, promoted), RemoveCause.PROMOTED)
            _emit_detached_freed(cache, source, promoted)
        cache.drop(source, promoted, CopyEvent.DROP)
    for node in nodes:
        if (
            source.copies.state[node] == READY
            and reads[node] == 1
            and node not in cache.tree.detached
        ):
            source.policy.on_insert([node], 0, None)
        cache.end_read(source, node)


def drop_superseded(cache: CacheState, node: NodeId) -> None:
    """Drop what is below of a block that was computed again above, if that is too many."""
    if cache.gpu.copies.state[node] != READY or cache.is_inclusive:
        return
    for lower in cache.below:
        if lower.copies.state[node] == READY and node not in lower.reads:
            if node not in cache.tree.detached:
                lower.policy.on_remove([node], RemoveReason.PROMOTED)
                cache.emit_removed(lower, [node], RemoveCause.SUPERSEDED)
            _emit_detached_freed(cache, lower, [node])
            cache.drop(lower, [node], CopyEvent.DROP)


def attached_of(cache: CacheState, nodes: list[NodeId]) -> list[NodeId]:
    """Return those of the nodes that are in the tree."""
    if not cache.tree.detached:
        return nodes
    return [node for node in nodes if node not in cache.tree.detached]


def _keep_above(cache: CacheState, source: Tier, target: Tier, rescued: list[NodeId]) -> None:
    """Keep the old copies: hit again on their way down, or written through.

    The new ones go where tiers are exclusive.
    """
    cache.num_rescued -= len(rescued)
    target.copies.move(rescued, CopyEvent.WRITTEN)
    if cache.is_inclusive:
        _keep_both(cache, source, target, rescued)
        return
    for node in reversed(rescued):
        cache.emit_freed(target, target.copies.blocks_of([node]))
        cache.drop(target, [node], CopyEvent.DROP)
    finish_reads(cache, source, rescued if source.forgets_reads else rescued[::-1])


def _keep_both(cache: CacheState, source: Tier, target: Tier, nodes: list[NodeId]) -> None:
    """Let copies stay that were copied down."""
    attached = attached_of(cache, nodes)
    cache.emit_stored(target, attached[::-1])
    target.policy.on_insert(attached, 0, None)
    for node in nodes:
        if not target.copies.holds[node]:
            cache.review(target, node)
        cache.end_read(source, node)
    cache.note_due(target, attached[::-1])


def _lose_below(
    cache: CacheState, target: Tier, nodes: list[NodeId], op_id: OpId, *, timed_out: bool
) -> None:
    if not timed_out:
        cache.emit_freed(target, target.copies.blocks_of(nodes))
        cache.drop(target, nodes, CopyEvent.LOST)
        return
    block_ids = target.copies.blocks_of(nodes)
    target.copies.move(nodes, CopyEvent.TIMED_OUT)
    target.pool.quarantine(op_id, block_ids)
    cache.emit_quarantined(op_id, target, block_ids)
    for node in nodes:
        cache.unhold(target, cache.tree.parent[node])


def _emit_detached_freed(cache: CacheState, tier: Tier, nodes: list[NodeId]) -> None:
    """Report those of the copies that go whose nodes are detached: nobody could read them."""
    if detached := [node for node in nodes if node in cache.tree.detached]:
        cache.emit_freed(tier, tier.copies.blocks_of(detached))
