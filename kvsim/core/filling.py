"""Making nodes of the blocks that an op writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.residency import ABSENT, INCOMING, LEAVING
from kvsim.core.tree import ROOT
from kvsim.errors import MisuseError
from kvsim.events import BlocksDuplicated, FillIssued

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.attempt import Attempt
    from kvsim.core.cache import CacheState, OpenForward
    from kvsim.types import BlockKey, NodeId, OpId


class Filler:
    """Puts the blocks of an attempt into the tree as they are about to be full.

    Attributes
    ----------
    num_duplicate_blocks
        Blocks computed although their key was in the tree by then.
    """

    def __init__(self, cache: CacheState) -> None:
        self._cache = cache
        self.num_duplicate_blocks = 0

    def fill(
        self, attempt: Attempt, start: int, end: int, forward: OpenForward, op_id: OpId | None
    ) -> None:
        """Make nodes of blocks `start` to `end` of the attempt's table, which `forward` writes.

        `op_id` is for the event; None emits none.
        """
        cache = self._cache
        gpu = cache.gpu
        keys = attempt.keys[start:end]
        cache.num_path_blocks += len(keys)
        if not cache.tree.index.keys().isdisjoint(keys):
            nodes = self._fill_known(attempt, start, keys, forward)
        else:
            last = attempt.path[-1] if attempt.path else ROOT
            nodes = self._insert(last, keys, attempt.table[start:end])
            attempt.path += nodes
            gpu.policy.on_insert(nodes, start, attempt.info)
        forward.fills.append((attempt, nodes))
        if cache.sink is not None and nodes and op_id is not None:
            cache.sink.emit(
                FillIssued(
                    op_id=op_id,
                    request_id=attempt.request.request_id,
                    attempt=attempt.number,
                    keys=tuple(map(cache.tree.key_of.__getitem__, nodes)),
                    block_ids=tuple(gpu.copies.blocks_of(nodes)),
                )
            )

    def fill_at_once(self, attempt: Attempt, start: int, end: int) -> bool:
        """Make nodes of blocks that are written already.

        Returns False, with nothing changed, if a key is in the tree: then it takes a `fill` and
        the end of its op.
        """
        cache = self._cache
        keys = attempt.keys[start:end]
        if not cache.tree.index.keys().isdisjoint(keys):
            return False
        last = attempt.path[-1] if attempt.path else ROOT
        nodes = self._insert(last, keys, attempt.table[start:end], is_written=True)
        cache.num_path_blocks += len(keys)
        attempt.path += nodes
        cache.gpu.policy.on_insert(nodes, start, attempt.info)
        if cache.sink is not None:
            cache.emit_stored(cache.gpu, nodes)
        if cache.hits_to_write_through is not None:
            cache.note_due(cache.gpu, nodes)
        return True

    def _insert(
        self,
        last: NodeId,
        keys: Sequence[BlockKey],
        block_ids: Sequence[int],
        *,
        is_written: bool = False,
    ) -> list[NodeId]:
        """Add a chain of nodes with GPU copies; the attempt's reference moves to its end."""
        cache = self._cache
        nodes = cache.tree.insert(last, keys)
        cache.gpu.copies.reserve_chain(nodes, block_ids, is_written=is_written)
        if last == ROOT:
            cache.gpu.copies.holds[ROOT] += 1
        # On the GPU the parent's hold passes from the reference to its new child.
        for lower in cache.below:
            lower.copies.holds[nodes[-1]] += 1
            if last != ROOT:
                cache.unhold(lower, last)
        if cache.num_hits_of:
            for node in nodes:
                cache.num_hits_of[node] = 0
        return nodes

    def _fill_known(
        self, attempt: Attempt, start: int, keys: Sequence[BlockKey], forward: OpenForward
    ) -> list[NodeId]:
        """As `_insert`, where some keys are in the tree by now, block by block."""
        cache = self._cache
        gpu, index = cache.gpu, cache.tree.index
        info = attempt.info
        if info is None:
            raise MisuseError(f"request {attempt.request.request_id} was never admitted")
        filled: list[NodeId] = []
        for depth, key in enumerate(keys, start):
            last = attempt.path[-1] if attempt.path else ROOT
            block_id = attempt.table[depth]
            if key not in index:
                nodes = self._insert(last, [key], [block_id])
                attempt.path += nodes
                filled += nodes
                gpu.policy.on_insert(nodes, depth, info)
                continue
            node = index[key]
            state = gpu.copies.state[node]
            if state == ABSENT:
                gpu.copies.reserve([node], [block_id], cache.tree.parent)
                gpu.policy.on_insert([node], depth, info)
                filled.append(node)
                forward.supersedes = True
            else:
                if state == LEAVING:
                    gpu.policy.on_insert([node], depth, info)
                    cache.rescue(gpu, node)
                attempt.duplicates[depth] = block_id
                self.num_duplicate_blocks += 1
                forward.duplicates.append((attempt, depth))
                if cache.sink is not None:
                    request_id = attempt.request.request_id
                    cache.sink.emit(
                        BlocksDuplicated(request_id, attempt.number, (key,), (block_id,))
                    )
                writer = cache.incoming_by.get(node) if state == INCOMING else None
                if writer is not None and writer not in attempt.after:
                    # The table will name the node's block, so it must be there by then.
                    attempt.after = (*attempt.after, writer)
            cache.pin(node)
            if last != ROOT:
                cache.unpin(last)
            attempt.path.append(node)
        return filled
