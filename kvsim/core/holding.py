"""What an admission tells, and what an attempt that has ended leaves to the ops it had."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.residency import READY
from kvsim.events import AttemptEnded, EndReason, RequestAdmitted

if TYPE_CHECKING:
    from kvsim.core.attempt import Attempt
    from kvsim.core.cache import CacheState
    from kvsim.core.ports import AccessInfo
    from kvsim.types import NodeId, OpId, TierIndex


def emit_admitted(
    cache: CacheState, attempt: Attempt, tiers: tuple[TierIndex, ...], now: int
) -> None:
    """Report an admission; `tiers` are those that the blocks of its path come from."""
    sink = cache.sink
    if sink is None:
        return
    key_of, path = cache.tree.key_of, attempt.path
    hits = tuple(
        tuple(key_of[v] for v, found in zip(path, tiers, strict=True) if found == tier)
        for tier in range(len(cache.tiers))
    )
    sink.emit(
        RequestAdmitted(
            at=now,
            request_id=attempt.request.request_id,
            attempt=attempt.number,
            hit_keys=hits,
            private_block_ids=tuple(attempt.table[len(path) :]),
            after=attempt.after,
        )
    )


def emit_ended(cache: CacheState, attempt: Attempt, reason: EndReason, now: int) -> None:
    """Report the end of an attempt."""
    if cache.sink is not None:
        request_id, number = attempt.request.request_id, attempt.number
        ended = AttemptEnded(at=now, request_id=request_id, attempt=number, reason=reason)
        cache.sink.emit(ended)


def let_go(cache: CacheState, attempt: Attempt) -> None:
    """Take back the references of an attempt that ends; policies hear of it first."""
    path = attempt.path
    if attempt.info is not None and not attempt.is_cut_off:
        cache.gpu.policy.on_release(path, attempt.info)
        if cache.is_inclusive:
            _release_below(cache, path, attempt.info)
    if attempt.own_transfers:
        _leave_to_ops(cache, attempt)
    cache.unpin(path[-1])
    if attempt.is_cut_off:
        for node in path[-2::-1]:
            cache.unpin(node)


def _leave_to_ops(cache: CacheState, attempt: Attempt) -> None:
    """Let the attempt's own open copies keep a reference on what they write."""
    for op_id in attempt.own_transfers:
        transfer = cache.transfers.get(op_id)
        if transfer is not None:
            # The deepest block it writes: deeper ones may be another op's, and go with it.
            deepest = transfer.nodes[-1]
            cache.pin(deepest)
            transfer.pins.append(deepest)


def keep_reading(cache: CacheState, path: list[NodeId], op_id: OpId) -> None:
    """Let a timed-out Forward keep a reference on what it may still read.

    Copies that were still on their way to it are not kept: its result is lost anyhow.
    """
    state, detached = cache.gpu.copies.state, cache.tree.detached
    for node in reversed(path):
        if state[node] == READY:
            cache.pin(node)
            cache.forwards[op_id].pins.append(node)
            if node not in detached:  # else no child protects what is above it
                return


def _release_below(cache: CacheState, path: list[NodeId], info: AccessInfo) -> None:
    """Tell the policies of inclusive tiers below what an attempt lets go of."""
    for tier in cache.below:
        state = tier.copies.state
        if known := [node for node in path if state[node] == READY]:
            with cache.unlisted(tier, known) as nodes:
                tier.policy.on_release(nodes, info)


def tiers_of(cache: CacheState, path: list[NodeId]) -> tuple[TierIndex, ...]:
    """Return for each node the tier that its block would come from."""
    gpu, source_of = cache.gpu.copies.state, cache.source_of
    return tuple(0 if gpu[node] else source_of(node).index for node in path)
