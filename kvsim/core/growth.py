"""Blocks for the output tokens of a batch: who gets more, and who must give way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.admission import Admission, Blocked

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.core.batch import DecodeBatch
    from kvsim.core.manager import CacheManager
    from kvsim.core.ops import Command, Transfer


class Growth:
    """Gives the members of a batch their next blocks.

    Parameters
    ----------
    batch
        Whose members they are.
    manager
        Where the blocks come from.
    grow_blocks
        Blocks a member gets at a time.
    preempt_last
        Takes all blocks from the last admitted sequence, and returns the copies that it takes; the
        argument is the time.
    """

    __slots__ = ("_batch", "_grow_blocks", "_manager", "_preempt_last")

    def __init__(
        self,
        batch: DecodeBatch,
        manager: CacheManager,
        grow_blocks: int,
        preempt_last: Callable[[int], tuple[Transfer, ...]],
    ) -> None:
        self._batch = batch
        self._manager = manager
        self._grow_blocks = grow_blocks
        self._preempt_last = preempt_last

    def grow(self, num_steps: int, commands: list[Command], now: int) -> int:
        """Give every member that needs it within `num_steps` steps its next blocks.

        Returns how many steps can be run: fewer where blocks are missing, 0 if the members must
        wait for a write-back. Preempts the last admitted sequence when nothing can be evicted
        and no step is possible.
        """
        batch, manager = self._batch, self._manager
        while (sequence := batch.next_to_grow(num_steps)) is not None:
            attempt = sequence.admitted
            num_tokens = sequence.request.num_input_tokens + batch.num_made(sequence)
            missing = sequence.num_most_blocks - len(attempt.table)
            num_blocks = min(self._grow_blocks, missing)
            outcome = manager.grow(attempt, num_blocks, now)
            if isinstance(outcome, Admission):
                commands += outcome.ops
                batch.grew(sequence, attempt.table[-num_blocks:])
                if manager.config.keep_outputs:
                    # The token made last has no KV yet.
                    manager.publish(attempt, num_tokens - 1)
                continue
            if not isinstance(outcome, Blocked):
                commands += outcome.ops
            if batch.num_steps_to_grow() > 0 or not isinstance(outcome, Blocked):
                return batch.num_steps_to_grow()
            commands += self._preempt_last(now)
            if not batch.num_members:
                return 0
        return num_steps
