"""Taking answers: what becomes of copies, blocks and references when an op ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.downward import (
    arrived_below,
    attached_of,
    drop_superseded,
    failed_below,
    finish_reads,
)
from kvsim.core.ops import Completion, Outcome
from kvsim.core.ports import RemoveReason
from kvsim.core.residency import ABSENT, READY, CopyEvent
from kvsim.errors import MisuseError
from kvsim.events import EndReason, OpAnswered

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.core.attempt import Attempt
    from kvsim.core.cache import CacheState, OpenForward, OpenTransfer
    from kvsim.core.ops import Answer, Settled
    from kvsim.core.tier import Tier
    from kvsim.types import NodeId, OpId


class Settler:
    """Applies answers to the cache.

    Parameters
    ----------
    cache
        The state to change.
    end_attempt
        Releases an attempt that cannot go on because an op it depends on did not end DONE.
    """

    def __init__(
        self, cache: CacheState, end_attempt: Callable[[Attempt, EndReason, int], None]
    ) -> None:
        self._cache = cache
        self._end_attempt = end_attempt

    def settle(self, answer: Answer) -> list[Attempt]:
        """Take one answer; return the attempts it ended.

        The attempts of a failed Forward must have been released by the caller before.

        Raises
        ------
        MisuseError
            If the op is not open, or answers a second time.
        """
        cache = self._cache
        cache.version += 1
        op_id = answer.op_id
        if cache.sink is not None:
            outcome = str(answer.outcome) if isinstance(answer, Completion) else "settled"
            cache.sink.emit(OpAnswered(at=answer.finished_at, op_id=op_id, outcome=outcome))
        ended = self._take(answer)
        if cache.postponed:
            # Whoever waited for a failed copy may have ended now.
            postponed, cache.postponed = cache.postponed, []
            for late in postponed:
                ended += self._take(late)
        return ended

    def _take(self, answer: Answer) -> list[Attempt]:
        cache = self._cache
        op_id = answer.op_id
        transfer = cache.transfers.get(op_id)
        forward = cache.forwards.get(op_id)
        if transfer is None and forward is None:
            raise MisuseError(f"op {op_id} is not open: answered twice, or never issued")
        if not isinstance(answer, Completion):
            if any(late.op_id == op_id for late in cache.postponed):
                cache.postponed.append(answer)
            else:
                self._come_to_rest(answer, transfer, forward)
            return []
        if any(late.op_id == op_id for late in cache.postponed):
            raise MisuseError(f"op {op_id} has had its Completion")
        if transfer is not None:
            return self._settle_transfer(answer, transfer)
        if forward is None or forward.is_timed_out:
            raise MisuseError(f"op {op_id} has had its Completion")
        if answer.outcome is Outcome.DONE:
            del cache.forwards[op_id]
            self.fill_done(forward)
            return []
        return self._fill_failed(answer, forward)

    # -- forwards

    def fill_done(self, forward: OpenForward) -> None:
        """Make the blocks that a Forward wrote readable."""
        cache = self._cache
        gpu = cache.gpu
        for _, nodes in forward.fills:
            gpu.copies.move(nodes, CopyEvent.WRITTEN)
            if cache.sink is not None:
                cache.emit_stored(gpu, attached_of(cache, nodes))
            if cache.tree.detached:
                self._reap_detached(nodes)
            if cache.hits_to_write_through is not None:
                cache.note_due(gpu, nodes)
        for attempt, position in forward.duplicates:
            block_id = attempt.duplicates.pop(position, None)
            if block_id is not None:  # else the attempt has ended
                attempt.table[position] = gpu.copies.block[attempt.path[position]]
                gpu.pool.give([block_id])
                cache.emit_freed(gpu, [block_id])
        for attempt, nodes in forward.fills:
            if not attempt.is_admitted:  # it ended before what was on its way from elsewhere came
                self._let_go(nodes)
        if forward.supersedes:
            for _, nodes in forward.fills:
                for node in nodes:
                    drop_superseded(cache, node)

    def _let_go(self, nodes: list[NodeId]) -> None:
        """Make evictable, deepest first, what nobody holds of blocks that have just come."""
        gpu = self._cache.gpu
        for node in reversed(nodes):
            if not gpu.copies.holds[node] and gpu.copies.state[node] == READY:
                self._cache.review(gpu, node)

    def _fill_failed(self, answer: Completion, forward: OpenForward) -> list[Attempt]:
        cache = self._cache
        gpu = cache.gpu
        timed_out = answer.outcome is Outcome.TIMED_OUT
        lost = [node for _, nodes in forward.fills for node in nodes]
        ended = self._end_dependants(lost, answer.finished_at)
        if timed_out:
            forward.is_timed_out = True
        else:
            del cache.forwards[answer.op_id]
        self._lose(gpu, lost, answer.op_id, timed_out=timed_out)
        return ended

    # -- transfers

    def _settle_transfer(self, answer: Completion, transfer: OpenTransfer) -> list[Attempt]:
        cache = self._cache
        op_id = answer.op_id
        if transfer.is_timed_out:
            raise MisuseError(f"op {op_id} has had its Completion")
        goes_up = transfer.target < transfer.source
        if answer.outcome is Outcome.DONE:
            del cache.transfers[op_id]
            if goes_up:
                self._arrived_above(transfer, op_id)
            else:
                arrived_below(cache, transfer)
            return []
        if goes_up and any(op_id in forward.after for forward in cache.forwards.values()):
            cache.postponed.append(answer)
            return []
        timed_out = answer.outcome is Outcome.TIMED_OUT
        if timed_out:
            transfer.is_timed_out = True
        else:
            del cache.transfers[op_id]
        if goes_up:
            return self._failed_above(answer, transfer, timed_out=timed_out)
        failed_below(cache, answer, transfer, timed_out=timed_out)
        return []

    def _arrived_above(self, transfer: OpenTransfer, op_id: OpId) -> None:
        cache = self._cache
        gpu, source = cache.gpu, cache.tiers[transfer.source]
        nodes = transfer.nodes
        gpu.copies.move(nodes, CopyEvent.WRITTEN)
        attached = attached_of(cache, nodes)
        if cache.sink is not None:
            cache.emit_stored(gpu, attached)
        for node in nodes:
            if cache.incoming_by.get(node) == op_id:
                del cache.incoming_by[node]
        # Deepest first: a policy sees a leaf become evictable before its parent.
        backwards = nodes[::-1]
        finish_reads(cache, source, backwards)
        if cache.hits_to_write_through is not None:
            cache.note_due(gpu, nodes)  # the tiers between had no copy
        holds = gpu.copies.holds
        for node in backwards:
            if not holds[node]:
                cache.review(gpu, node)
        for node in transfer.pins:
            cache.unpin(node)

    def _failed_above(
        self, answer: Completion, transfer: OpenTransfer, *, timed_out: bool
    ) -> list[Attempt]:
        cache = self._cache
        gpu, source = cache.gpu, cache.tiers[transfer.source]
        nodes = transfer.nodes
        ended = self._end_dependants(nodes, answer.finished_at)
        for node in nodes:
            del cache.incoming_by[node]
        pins, transfer.pins = transfer.pins, []
        for node in pins:
            cache.unpin(node)
        self._lose(gpu, nodes, answer.op_id, timed_out=timed_out)
        if not timed_out:
            finish_reads(cache, source, nodes[::-1])
        return ended

    # -- both

    def _come_to_rest(
        self, answer: Settled, transfer: OpenTransfer | None, forward: OpenForward | None
    ) -> None:
        """Give back what a timed-out op kept."""
        cache = self._cache
        op = transfer if transfer is not None else forward
        if op is None or not op.is_timed_out:
            raise MisuseError(f"op {answer.op_id} has not timed out, so it cannot settle")
        for tier in cache.tiers:
            cache.emit_freed(tier, tier.pool.unquarantine(answer.op_id))
        for node in op.pins:
            cache.unpin(node)
        if transfer is None:
            del cache.forwards[answer.op_id]
            return
        del cache.transfers[answer.op_id]
        source = cache.tiers[transfer.source]
        if transfer.target < transfer.source:
            finish_reads(cache, source, transfer.nodes[::-1])
        else:
            cache.num_rescued -= len(transfer.nodes)
            finish_reads(cache, source, transfer.nodes)

    def _end_dependants(self, lost: list[NodeId], now: int) -> list[Attempt]:
        """End every attempt whose path goes through a block that will not come."""
        nodes = set(lost)
        ended = [a for a in self._cache.live.values() if not nodes.isdisjoint(a.path)]
        for attempt in ended:
            self._end_attempt(attempt, EndReason.RESTARTED, now)
        return ended

    def _lose(self, gpu: Tier, nodes: list[NodeId], op_id: OpId, *, timed_out: bool) -> None:
        """GPU copies that will not be written: their nodes go unless they have another copy."""
        cache = self._cache
        attached = attached_of(cache, nodes)
        if attached:
            gpu.policy.on_remove(attached, RemoveReason.DETACHED)
        for node in reversed(nodes):
            parent = cache.tree.parent[node]
            event = CopyEvent.TIMED_OUT if timed_out else CopyEvent.LOST
            gpu.copies.move([node], event)
            block_ids = gpu.copies.blocks_of([node])
            if timed_out:
                gpu.pool.quarantine(op_id, block_ids)
                cache.emit_quarantined(op_id, gpu, block_ids)
            else:
                gpu.pool.give(block_ids)
                cache.emit_freed(gpu, block_ids)
            cache.unhold(gpu, parent)
            if node in cache.tree.detached:
                cache.reap(node)
            elif self._is_bare(node):
                cache.forget([node])
            elif gpu.copies.holds[node] > cache.tree.pins[node] or self._is_nowhere(node):
                # A block above would hang below a parent that is not there, or nothing is left
                # but the pin of a prefix.
                cache.detach(node)

    def _is_bare(self, node: NodeId) -> bool:
        """Whether the node has no copy and no child."""
        return all(
            tier.copies.state[node] == ABSENT and not tier.copies.holds[node]
            for tier in self._cache.tiers
        )

    def _is_nowhere(self, node: NodeId) -> bool:
        """Whether the node has no copy."""
        return all(tier.copies.state[node] == ABSENT for tier in self._cache.tiers)

    def _reap_detached(self, nodes: list[NodeId]) -> None:
        """Drop what has been written for nobody: it was taken out of the tree meanwhile."""
        for node in reversed(nodes):
            if node in self._cache.tree.detached:
                self._cache.reap(node)
