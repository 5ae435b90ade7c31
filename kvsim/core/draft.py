"""A Forward while it is put together, and what the scheduler must know of it afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.ops import Forward, Gate, Slice

if TYPE_CHECKING:
    from kvsim.core.batch import DecodeBatch
    from kvsim.core.manager import CacheManager
    from kvsim.core.sequence import Sequence
    from kvsim.types import OpId


class ForwardDraft:
    """Collects the pieces of prompts that one Forward computes.

    Parameters
    ----------
    op_id
        Of the Forward.
    budget_tokens
        Most prompt tokens it may compute.

    Attributes
    ----------
    budget_tokens
        What is left of it.
    pieces
        (sequence, tokens) of each slice.
    """

    __slots__ = ("_after", "_slices", "budget_tokens", "op_id", "pieces")

    def __init__(self, op_id: OpId, budget_tokens: int) -> None:
        self.op_id = op_id
        self.budget_tokens = budget_tokens
        self.pieces: list[tuple[Sequence, int]] = []
        self._slices: list[Slice] = []
        self._after: set[OpId] = set()

    def add(self, sequence: Sequence, manager: CacheManager) -> None:
        """Add as much of the sequence's prompt as the budget allows; its blocks become nodes."""
        attempt = sequence.admitted
        first = sequence.num_computed
        num_tokens = min(sequence.num_target_tokens - first, self.budget_tokens)
        end = first + num_tokens
        num_blocks = sequence.layout.num_blocks(end)
        # A fully matched prompt computes its last token again, whose KV is there.
        writes = num_blocks > len(attempt.path)
        manager.fill(attempt, sequence.layout.num_full_blocks(end), self.op_id)
        if attempt.after:
            self._after.update(filter(manager.is_open, attempt.after))
        # By position, here and below: naming the fields takes twice as long.
        self._slices.append(
            Slice(
                sequence.request.request_id,
                attempt.number,
                first,
                num_tokens,
                tuple(attempt.table[:num_blocks]),
                writes,
            )
        )
        self.pieces.append((sequence, num_tokens))
        self.budget_tokens -= num_tokens

    def finish(
        self,
        batch: DecodeBatch,
        manager: CacheManager,
        instance: int,
        num_steps: int,
        deadline_at: int | None,
    ) -> Forward:
        """Return the Forward: the pieces, and what changed among the decoding members."""
        self._after.discard(self.op_id)
        if self._slices:
            manager.issue_forward(self.op_id, self._after)
        joined, left, grown = batch.take_difference()
        return Forward(
            self.op_id,
            instance,
            num_steps,
            tuple(self._slices),
            joined,
            left,
            grown,
            batch.num_members,
            batch.num_context_tokens,
            tuple(sorted(self._after)),
            Gate.LAYER,
            deadline_at,
        )
