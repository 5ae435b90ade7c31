"""What an admission tells, and what an attempt that has ended leaves to the ops it had."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.residency import READY
from kvsim.events import RequestAdmitted

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


def leave_to_ops(cache: CacheState, attempt: Attempt) -> None:
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


def release_below(cache: CacheState, path: list[NodeId], info: AccessInfo) -> None:
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
