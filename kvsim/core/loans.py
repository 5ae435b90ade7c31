"""Blocks that an op between two instances reads or writes: they are its own until it has settled.

A Forward and a copy between tiers end before their attempt does, or the manager ends it with them.
An op between instances is different: the attempt may end here while the other side still reads or
writes. So each such op is known on both sides as an open Forward, and when the attempt ends first,
the op keeps what it uses of it: a reference on the nodes it reads, and, in quarantine, the private
blocks. Whatever becomes of requests, no block comes free under an op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.cache import OpenForward
from kvsim.core.ops import Completion, Outcome
from kvsim.core.residency import INCOMING, READY
from kvsim.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.core.attempt import Attempt
    from kvsim.core.cache import CacheState
    from kvsim.core.filling import Filler
    from kvsim.core.ops import Answer
    from kvsim.types import BlockId, NodeId, OpId


class Loans:
    """The ops between this instance and others that have not settled.

    Parameters
    ----------
    cache
        The state to change.
    filler
        Makes nodes of what is received.

    Attributes
    ----------
    open_ops
        Those that have had neither a Completion other than TIMED_OUT, nor their Settled.
    """

    __slots__ = ("_cache", "_filler", "open_ops")

    def __init__(self, cache: CacheState, filler: Filler) -> None:
        self._cache = cache
        self._filler = filler
        self.open_ops: set[OpId] = set()

    def lend(
        self, attempt: Attempt, start: int, end: int, op_id: OpId
    ) -> tuple[tuple[BlockId, ...], tuple[OpId, ...]]:
        """Let an op read blocks `start` to `end` of the attempt's table on their way elsewhere.

        Returns the block ids, and the open ops that still write nodes among them. A private block
        is written by whichever Forward the caller has given it to.

        Raises
        ------
        MisuseError
            If the table is shorter, or the range empty.
        """
        if not 0 <= start < end <= len(attempt.table):
            raise MisuseError(
                f"blocks {start} to {end} are not in a table of {len(attempt.table)} blocks"
            )
        nodes = attempt.path[start:end]
        private = attempt.table[start + len(nodes) : end]
        # A twin that is being computed goes when it is done: the node's own block is what stays.
        block_ids = (*self._cache.gpu.copies.blocks_of(nodes), *private)
        loan = self._open(op_id)
        # Whichever copy above it fails, its answer waits until this op has ended.
        loan.after = frozenset(self._writers(attempt.path[:end]))
        attempt.loans[op_id] = (end, private)
        return block_ids, tuple(sorted(self._writers(nodes)))

    def receive(self, attempt: Attempt, start: int, end: int, op_id: OpId) -> tuple[BlockId, ...]:
        """Let an op write blocks `start` to `end` of the attempt's table; return their ids.

        Those that will be full become nodes, as with a Forward. Ranges come in order, from the
        end of what was hit on.

        Raises
        ------
        MisuseError
            If the range does not follow what is there or on its way.
        """
        full = min(end, len(attempt.keys))
        known = len(attempt.path)
        if not min(start, len(attempt.keys)) == known or not start < end <= len(attempt.table):
            raise MisuseError(
                f"blocks {start} to {end} do not follow the {known} that are there or on their way"
            )
        loan = self._open(op_id)
        block_ids = tuple(attempt.table[start:end])
        twins: list[BlockId] = []
        if full > known:
            self._filler.fill(attempt, known, full, loan, op_id)
            twins = [attempt.duplicates[i] for i in range(known, full) if i in attempt.duplicates]
        attempt.loans[op_id] = (0, [*twins, *attempt.table[max(start, full) : end]])
        return block_ids

    def is_readable(self, attempt: Attempt) -> bool:
        """Whether every node of the attempt's path has its KV on the GPU."""
        state = self._cache.gpu.copies.state
        return all(state[node] == READY for node in attempt.path)

    def leave(self, attempt: Attempt, private: list[BlockId]) -> list[BlockId]:
        """Let the open ops keep what they use of an attempt that ends.

        Returns those of its `private` blocks that no op uses.
        """
        pool = self._cache.gpu.pool
        kept: set[BlockId] = set()
        for op_id, (end, block_ids) in attempt.loans.items():
            if op_id not in self.open_ops:
                continue
            used = [block_id for block_id in block_ids if block_id not in kept]
            used = [block_id for block_id in used if block_id in private]
            kept.update(used)
            pool.quarantine(op_id, used)
            self._cache.emit_quarantined(op_id, self._cache.gpu, used)
            self._pin(attempt.path[:end], op_id)
        attempt.loans.clear()
        return [block_id for block_id in private if block_id not in kept] if kept else private

    def close(self, answer: Answer) -> None:
        """Take note that an op is about to settle, unless its deadline has only passed."""
        if isinstance(answer, Completion) and answer.outcome is Outcome.TIMED_OUT:
            return
        op_id = answer.op_id
        self.open_ops.remove(op_id)
        loan = self._cache.forwards[op_id]
        if loan.is_timed_out:
            return  # the Settled gives everything back
        gpu = self._cache.gpu
        self._cache.emit_freed(gpu, gpu.pool.unquarantine(op_id))
        pins, loan.pins = loan.pins, []
        for node in pins:
            self._cache.unpin(node)

    def _open(self, op_id: OpId) -> OpenForward:
        if op_id in self._cache.forwards:
            raise MisuseError(f"op {op_id} is open already")
        self.open_ops.add(op_id)
        loan = self._cache.forwards[op_id] = OpenForward()
        return loan

    def _writers(self, nodes: Iterable[NodeId]) -> set[OpId]:
        """Return the open ops that write GPU copies of `nodes`."""
        cache = self._cache
        state, incoming_by = cache.gpu.copies.state, cache.incoming_by
        coming = [node for node in nodes if state[node] == INCOMING]
        writers = {incoming_by[node] for node in coming if node in incoming_by}
        computed = {node for node in coming if node not in incoming_by}
        if computed:
            for op_id, forward in cache.forwards.items():
                if forward.is_timed_out:
                    continue
                if any(not computed.isdisjoint(filled) for _, filled in forward.fills):
                    writers.add(op_id)
        return writers

    def _pin(self, path: Sequence[NodeId], op_id: OpId) -> None:
        """Let an op hold the deepest node that no Forward is still to write.

        One that is still to be computed need not be held: if that fails, so does the op.
        """
        cache = self._cache
        for node in reversed(path):
            if cache.gpu.copies.state[node] == READY or node in cache.incoming_by:
                cache.pin(node)
                cache.forwards[op_id].pins.append(node)
                return
