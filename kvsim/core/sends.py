"""Which blocks go from the prefill to the decode instance, with which op, behind which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.config import SendMode
from kvsim.core.ops import Gate, Place, Transfer
from kvsim.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.config import SplitConfig
    from kvsim.core.handoff import Handoff
    from kvsim.core.ops import Forward, Slice
    from kvsim.types import OpId


class SendPlanner:
    """Plans the sends of a prompt as its chunks are issued.

    Blocks are aligned by their position in the block table, which is that of their tokens, on
    both sides: what decode has of the prefix is not sent, whatever prefill had to compute. What
    prefill finds cached and decode lacks goes at once, behind the ops that still write it. After
    that each chunk sends the blocks it completes, layer by layer behind its own Forward, and the
    last one also the block that is not full.

    Parameters
    ----------
    config
        When to send, and the deadline.
    new_op_id
        Gives op ids.
    """

    __slots__ = ("_config", "_new_op_id")

    def __init__(self, config: SplitConfig, new_op_id: Callable[[], OpId]) -> None:
        self._config = config
        self._new_op_id = new_op_id

    def plan(self, handoff: Handoff, piece: Slice, forward: Forward, now: int) -> list[Transfer]:
        """Return the sends that a piece of a prompt brings with it, possibly none.

        The blocks are lent by the prefill instance's manager and received by the decode
        instance's from now on, so each Transfer must be submitted, behind `forward`.
        """
        sequence = handoff.prefill_sequence
        if sequence is None:
            raise MisuseError(f"request {piece.request_id} is not on its prefill instance")
        layout = sequence.layout
        end_token = piece.first_token + piece.num_tokens
        num_blocks = layout.num_blocks(sequence.num_target_tokens)
        is_last = end_token == sequence.num_target_tokens
        if self._config.send is SendMode.AT_END:
            return self._send(handoff, num_blocks, forward, now) if is_last else []
        cached = min(sequence.admitted.num_hit_blocks, num_blocks)
        sends = self._send(handoff, cached, None, now)
        complete = num_blocks if is_last else layout.num_full_blocks(end_token)
        return sends + self._send(handoff, complete, forward, now)

    def _send(
        self, handoff: Handoff, end: int, forward: Forward | None, now: int
    ) -> list[Transfer]:
        """Send everything up to block `end` that has not been; `forward` writes some of it."""
        start = handoff.num_sent
        if end <= start:
            return []
        source, target = handoff.prefill_instance, handoff.decode_instance
        lender, receiver = handoff.prefill_sequence, handoff.decode_sequence
        if lender is None or receiver is None:
            raise MisuseError(f"request {handoff.request.request_id} is not on both instances")
        op_id = self._new_op_id()
        source_ids, writers = source.manager.loans.lend(lender.admitted, start, end, op_id)
        target_ids = target.manager.loans.receive(receiver.admitted, start, end, op_id)
        after = set(writers)
        if forward is not None:
            after.add(forward.op_id)
        handoff.num_sent = end
        handoff.num_sends += 1
        handoff.num_sent_blocks += end - start
        handoff.open_sends.add(op_id)
        timeout_ns = self._config.send_timeout_ns
        return [
            Transfer(
                op_id,
                Place(instance=source.number, tier=0),
                Place(instance=target.number, tier=0),
                source_ids,
                target_ids,
                attempts=((handoff.request.request_id, handoff.attempt),),
                after=tuple(sorted(after)),
                gate=Gate.OP if self._config.send is SendMode.AT_END else Gate.LAYER,
                deadline_at=None if timeout_ns is None else now + timeout_ns,
            )
        ]
