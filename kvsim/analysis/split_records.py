"""What is kept of a request that was computed on one instance and decoded on another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvsim.core.handoff import Handoff
    from kvsim.core.sequence import Status
    from kvsim.types import Request


class SplitRecord(NamedTuple):
    """How a request fared. Times are nanoseconds, None where it never came to that.

    `queue_ns` runs from the arrival to the first Forward of the prompt, `prefill_ns` from there to
    the token after the prompt, `exposed_ns` from there to the arrival of all KV. During
    `hidden_ns` KV was being sent while the prompt was still computed. Decode starts at
    `decode_started_at`, with the first Forward after that. Hits are leading blocks of the prompt,
    on the decode instance; `num_sent_blocks` counts all attempts.
    """

    request: Request
    status: Status | None
    prefill_instance: int | None
    decode_instance: int | None
    num_attempts: int
    num_failures: int
    num_preemptions: int
    num_made_tokens: int
    num_decode_hit_blocks: int
    num_sends: int
    num_sent_blocks: int
    reserved_at: int | None
    prefill_started_at: int | None
    first_token_at: int | None
    arrived_at: int | None
    decode_started_at: int | None
    ended_at: int | None
    queue_ns: int | None
    prefill_ns: int | None
    exposed_ns: int | None
    hidden_ns: int | None


def split_record_of(handoff: Handoff) -> SplitRecord:
    """Return the record of a request that has come to its end."""
    return SplitRecord(
        handoff.request,
        handoff.status,
        None if handoff.prefill is None else handoff.prefill.number,
        None if handoff.decode is None else handoff.decode.number,
        handoff.attempt + 1,
        handoff.num_failures,
        handoff.num_preemptions,
        handoff.num_made,
        handoff.num_decode_hit_blocks,
        handoff.num_sends,
        handoff.num_sent_blocks,
        handoff.reserved_at,
        handoff.prefill_started_at,
        handoff.first_token_at,
        handoff.arrived_at,
        handoff.decode_started_at,
        handoff.ended_at,
        handoff.queue_ns,
        handoff.prefill_ns,
        handoff.exposed_ns,
        handoff.hidden_ns,
    )
