"""A request that one instance computes and another decodes, and the record it leaves."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from kvsim.core.attempt import BlockLayout
from kvsim.core.ops import Completion, Outcome
from kvsim.core.sequence import Sequence
from kvsim.errors import MisuseError

if TYPE_CHECKING:
    from kvsim.config import Role
    from kvsim.core.manager import CacheManager
    from kvsim.core.ops import Answer
    from kvsim.core.scheduler import Scheduler
    from kvsim.core.sequence import Status
    from kvsim.types import BlockKey, OpId, Request, RequestId


class SendError(StrEnum):
    """Why an attempt failed to bring its KV to the decode instance, or to decode with it."""

    CONNECT = "connect"
    """No connection to the peer could be made."""
    WRITE = "write"
    """The transport refused or lost a write."""
    TIMEOUT = "timeout"
    """It was not there by its deadline."""
    PEER_LOST = "peer lost"
    """The other side is gone."""
    CANCELLED = "cancelled"
    """It was called off."""
    COMPUTE = "compute"
    """A Forward failed, of the prompt or of the decoding batch."""
    CACHE = "cache"
    """A block that was counted on as cached did not come."""


def send_error(answer: Completion) -> SendError:
    """Return why a send failed.

    A backend begins `reason` with the name of the error and a colon where it knows it; what is
    not named is a failed write.
    """
    if answer.outcome is Outcome.TIMED_OUT:
        return SendError.TIMEOUT
    if answer.outcome is Outcome.CANCELLED:
        return SendError.CANCELLED
    named = (error for error in SendError if answer.reason.startswith(f"{error}:"))
    return next(named, SendError.WRITE)


class AttemptFailure(NamedTuple):
    """One attempt of a request failed: once for each that did, for its first cause."""

    at: int
    request_id: RequestId
    attempt: int
    error: SendError
    reason: str


class Phase(StrEnum):
    """Where a request is between its two instances."""

    WAITING = "waiting"
    """For blocks on its decode instance."""
    COMPUTING = "computing"
    """Decode keeps blocks for it; its prompt waits on the prefill instance or is computed."""
    SENDING = "sending"
    """The next token is made; KV is on its way."""
    DECODING = "decoding"
    ALONE = "alone"
    """On one instance, from its queue there to its end."""
    LEAVING = "leaving"
    """The attempt is over, but a running Forward still computes for it."""
    ENDED = "ended"


UNDER_WAY: Final = frozenset({Phase.COMPUTING, Phase.SENDING})
"""Phases in which decode keeps blocks for KV that is still to come."""


class Instance:
    """One instance: its cache, its scheduler, and what the scheduler above knows of it.

    Parameters
    ----------
    number
        Named in ops.
    role
        What it does for a request.
    manager, scheduler
        Of the instance.
    data_parallel_id
        Which replica of an engine it is; each has a cache of its own, and is routed to by itself.

    Attributes
    ----------
    waiting
        Requests that wait for blocks to decode here, in order of arrival.
    unread
        Requests whose sends have all ended, but that share a block with one on its way.
    num_tokens
        Of all requests that are routed here.
    num_receiving
        Requests whose blocks are kept here before their KV is there.
    stuck_version
        The head of `waiting` was turned away at this version of the manager.
    """

    __slots__ = (
        "data_parallel_id",
        "manager",
        "num_receiving",
        "num_tokens",
        "number",
        "role",
        "scheduler",
        "stuck_version",
        "unread",
        "waiting",
    )

    def __init__(
        self,
        number: int,
        role: Role,
        manager: CacheManager,
        scheduler: Scheduler,
        *,
        data_parallel_id: int = 0,
    ) -> None:
        self.number = number
        self.role = role
        self.manager = manager
        self.scheduler = scheduler
        self.data_parallel_id = data_parallel_id
        self.waiting: list[Handoff] = []
        self.unread: dict[RequestId, Handoff] = {}
        self.num_tokens = 0
        self.num_receiving = 0
        self.stuck_version = -1


class Send(NamedTuple):
    """A Transfer between instances that has not settled, and the attempt it serves."""

    handoff: Handoff
    attempt: int
    source: Instance
    target: Instance


class Handoff:
    """One request: its progress now, and its times for the record.

    Times are nanoseconds on the backend's clock, None where it never came to that; they are those
    of the attempt that reached the decoding batch first, or of the last one.

    Attributes
    ----------
    status
        How it ended; None before.
    num_most_blocks
        Blocks that the whole request needs.
    num_routed_tokens
        What it counts for among the tokens of its instances.
    attempt
        Number of the present attempt, on both instances.
    num_made
        Output tokens so far.
    num_sent
        Leading blocks of the present attempt that are on the decode instance or on their way.
    open_sends
        Ops of the present attempt that have not settled.
    prefill_sequence, decode_sequence
        What the schedulers of the instances know of it, while they do.
    reserved_at
        When decode took its blocks.
    prefill_started_at
        When the first Forward with a piece of its prompt was issued.
    first_token_at
        When its first token was made, by whichever attempt.
    prompt_done_at, arrived_at
        When the token after the prompt was made, and when all KV was on the decode instance.
    decode_started_at
        When it was first in a decoding batch.
    """

    __slots__ = (
        "_block_size",
        "_blocked_reloads",
        "arrived_at",
        "attempt",
        "decode",
        "decode_sequence",
        "decode_started_at",
        "ended_at",
        "first_token_at",
        "is_cancel_wanted",
        "is_given_up",
        "num_decode_hit_blocks",
        "num_failures",
        "num_made",
        "num_most_blocks",
        "num_preemptions",
        "num_routed_tokens",
        "num_sends",
        "num_sent",
        "num_sent_blocks",
        "open_sends",
        "phase",
        "prefill",
        "prefill_sequence",
        "prefill_started_at",
        "prompt_done_at",
        "request",
        "reserved_at",
        "send_times",
        "status",
    )

    def __init__(self, request: Request, block_size: int) -> None:
        self.request = request
        self.num_most_blocks = BlockLayout(request, block_size).num_most_blocks
        self.num_routed_tokens = 0
        self._block_size = block_size
        self.phase = Phase.WAITING
        self.status: Status | None = None
        self.attempt = 0
        self.num_made = self.num_failures = self.num_preemptions = 0
        self.num_sent = self.num_sends = self.num_sent_blocks = self.num_decode_hit_blocks = 0
        self.is_cancel_wanted = False
        self.is_given_up = False
        self.prefill: Instance | None = None
        self.decode: Instance | None = None
        self.prefill_sequence: Sequence | None = None
        self.decode_sequence: Sequence | None = None
        self.open_sends: set[OpId] = set()
        self.send_times: list[tuple[int, int]] = []
        self.reserved_at: int | None = None
        self.prefill_started_at: int | None = None
        self.first_token_at: int | None = None
        self.prompt_done_at: int | None = None
        self.arrived_at: int | None = None
        self.decode_started_at: int | None = None
        self.ended_at: int | None = None
        # By instance: a block that could not be copied up on one may be there on another.
        self._blocked_reloads: dict[int, frozenset[BlockKey]] = {}

    @property
    def num_known_tokens(self) -> int:
        """Prompt and output tokens so far: what the next attempt must have the KV of."""
        return self.request.num_input_tokens + self.num_made

    @property
    def num_left(self) -> int:
        """Output tokens that are still to be made."""
        return self.request.num_output_tokens - self.num_made

    @property
    def prefill_instance(self) -> Instance:
        """Where its prompt is computed.

        Raises
        ------
        MisuseError
            If it has not been routed.
        """
        if self.prefill is None:
            raise MisuseError(f"request {self.request.request_id} has not been routed")
        return self.prefill

    @property
    def decode_instance(self) -> Instance:
        """Where it decodes.

        Raises
        ------
        MisuseError
            If it has not been routed, or stays on one instance.
        """
        if self.decode is None:
            raise MisuseError(f"request {self.request.request_id} has no decode instance")
        return self.decode

    def for_prefill(self, num_tokens: int) -> Sequence:
        """Return what the prefill instance is told: compute what is known, make `num_tokens`."""
        return self._sequence(self.num_made + num_tokens, self.prefill_instance)

    def for_decode(self) -> Sequence:
        """Return what the decode instance is told."""
        return self._sequence(self.request.num_output_tokens, self.decode_instance)

    def route_again(self) -> None:
        """Start with the next attempt; forget the times of one that did not come to decode."""
        self.attempt += 1
        if self.decode_started_at is None:
            self.reserved_at = self.prefill_started_at = None
            self.prompt_done_at = self.arrived_at = None
            self.send_times = []

    def reserved(self, sequence: Sequence, now: int) -> None:
        """Take note that decode keeps blocks for it: what is hit there is not sent."""
        self.decode_sequence = sequence
        self.phase = Phase.COMPUTING
        self.num_sent = sequence.admitted.num_hit_blocks
        if self.reserved_at is None:
            self.reserved_at = now
            self.num_decode_hit_blocks = self.num_sent

    def sent(self, op_id: OpId, answer: Completion) -> None:
        """Take note that a send of the present attempt is DONE."""
        self.open_sends.discard(op_id)
        if self.decode_started_at is None:
            self.send_times.append((answer.started_at, answer.finished_at))

    def prompt_done(self, now: int) -> None:
        """Take note that the token after the prompt is made."""
        self.phase = Phase.SENDING
        if self.prompt_done_at is None:
            self.prompt_done_at = now

    def arrived(self, now: int) -> None:
        """Take note that all KV is where it decodes."""
        self.phase = Phase.DECODING
        if self.arrived_at is None:
            self.arrived_at = now

    def left(self, instance: Instance, sequence: Sequence) -> None:
        """Take note that an instance is through with it, one way or the other."""
        if sequence is self.prefill_sequence:
            self.prefill_sequence = None
        else:
            self.decode_sequence = None
        self.num_made = max(self.num_made, sequence.num_made)
        if self.first_token_at is None:
            self.first_token_at = sequence.first_token_at
        if sequence.no_reload:
            self._blocked_reloads[instance.number] = sequence.no_reload

    @property
    def queue_ns(self) -> int | None:
        """Time from its arrival to the first Forward of its prompt."""
        if self.prefill_started_at is None:
            return None
        return self.prefill_started_at - self.request.arrived_at

    @property
    def prefill_ns(self) -> int | None:
        """Time from there to the token after its prompt."""
        if self.prefill_started_at is None or self.prompt_done_at is None:
            return None
        return self.prompt_done_at - self.prefill_started_at

    @property
    def exposed_ns(self) -> int | None:
        """Time from there to the arrival of all KV: what sending adds to the wait."""
        if self.prompt_done_at is None or self.arrived_at is None:
            return None
        return max(0, self.arrived_at - self.prompt_done_at)

    @property
    def hidden_ns(self) -> int | None:
        """Time during which its KV was being sent while its prompt was still computed."""
        if self.prompt_done_at is None or self.arrived_at is None:
            return None
        total = last = 0
        for start, end in sorted(self.send_times):
            until = min(end, self.prompt_done_at)
            total += max(0, until - max(start, last))
            last = max(last, until)
        return total

    def _sequence(self, num_output_tokens: int, instance: Instance) -> Sequence:
        # Clients speak to the scheduler above, which knows both instances.
        request = replace(self.request, num_output_tokens=num_output_tokens, cancelled_at=None)
        sequence = Sequence(request, self._block_size)
        sequence.num_attempts = self.attempt
        sequence.num_made = self.num_made
        sequence.no_reload = self._blocked_reloads.get(instance.number, frozenset())
        return sequence


def is_over(answer: Answer) -> bool:
    """Whether an op has come to rest with this answer."""
    return not (isinstance(answer, Completion) and answer.outcome is Outcome.TIMED_OUT)
