"""What is kept of a run: one record a request, one a transfer, and the events if asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.core.ops import Completion, Transfer
from kvsim.core.sequence import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.core.instant import InstantHit
    from kvsim.core.ops import Answer, Command
    from kvsim.core.sequence import Sequence as ScheduledRequest
    from kvsim.events import Event
    from kvsim.types import OpId, Request, RequestId, TierIndex


class RequestRecord(NamedTuple):
    """How a request fared. Times are nanoseconds, None where it never came to that.

    Hits are leading blocks of the prompt, as the first admission found them;
    `num_in_flight_hit_blocks` of the GPU's were still being written then. What later attempts
    found again is in `num_rematched_blocks` only. `interrupted_ns` is the time from losing its
    blocks (to others, or by a failure) to having computed them again, all times together; what of
    it was before the first token is in `interrupted_before_token_ns`.
    """

    request: Request
    status: Status
    num_gpu_hit_blocks: int
    num_cpu_hit_blocks: int
    num_in_flight_hit_blocks: int = 0
    admitted_at: int | None = None
    first_token_at: int | None = None
    ended_at: int | None = None
    num_made_tokens: int = 0
    num_attempts: int = 0
    num_preemptions: int = 0
    num_rematched_blocks: int = 0
    interrupted_ns: int = 0
    interrupted_before_token_ns: int = 0
    num_disk_hit_blocks: int = 0

    @property
    def num_hit_blocks_by_tier(self) -> tuple[int, ...]:
        """Blocks hit at the first admission, in each tier that can be hit, the GPU first."""
        return self.num_gpu_hit_blocks, self.num_cpu_hit_blocks, self.num_disk_hit_blocks


class TransferRecord(NamedTuple):
    """A batch of blocks that went, or should have gone, from one tier to another.

    `outcome` is a `kvsim.core.ops.Outcome` value; `settled_at` is there if it was "timed_out".
    `request_id` is None for a write-back. `copy_ns` is how long the slowest rank copied, without
    what it waited for; None where that is not measured.
    """

    op_id: OpId
    source: TierIndex
    target: TierIndex
    num_blocks: int
    issued_at: int
    started_at: int
    finished_at: int
    outcome: str
    settled_at: int | None
    request_id: RequestId | None
    copy_ns: int | None = None


def record_of(sequence: ScheduledRequest) -> RequestRecord:
    """Return the record of a request that has come to its end in a scheduler."""
    return RequestRecord(
        sequence.request,
        sequence.status,
        sequence.num_gpu_hit_blocks,
        sequence.num_cpu_hit_blocks,
        sequence.num_joined_blocks,
        sequence.admitted_at,
        sequence.first_token_at,
        sequence.ended_at,
        sequence.num_made,
        sequence.num_attempts,
        sequence.num_preemptions,
        sequence.num_rematched_blocks,
        sequence.interrupted_ns,
        sequence.interrupted_before_token_ns,
        sequence.num_disk_hit_blocks,
    )


def record_of_instant(hit: InstantHit) -> RequestRecord:
    """Return the record of a request of an instant replay: it has no times."""
    status = Status.REFUSED if hit.is_refused else Status.FINISHED
    return RequestRecord(
        hit.request,
        status,
        hit.num_gpu_blocks,
        hit.num_cpu_blocks,
        num_disk_hit_blocks=hit.num_disk_blocks,
    )


class TransferLog:
    """A `TurnObserver` that keeps the transfers, in the order in which they were answered.

    It looks at each command and answer once and keeps a tuple a transfer: about 1.5 % of a replay.
    """

    __slots__ = ("_open", "_timed_out", "records")

    def __init__(self) -> None:
        self.records: list[TransferRecord] = []
        self._open: dict[OpId, tuple[int, Transfer]] = {}
        self._timed_out: dict[OpId, int] = {}

    def turn(self, now: int, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
        """Take note of the transfers of one turn."""
        issued = self._open
        for command in commands:
            if type(command) is Transfer:
                issued[command.op_id] = (now, command)
        if not issued and not self._timed_out:
            return
        for answer in answers:
            if answer.op_id in issued:
                self._finish(*issued.pop(answer.op_id), answer)
            elif answer.op_id in self._timed_out:
                index = self._timed_out.pop(answer.op_id)
                settled = self.records[index]._replace(settled_at=answer.finished_at)
                self.records[index] = settled

    def _finish(self, issued_at: int, transfer: Transfer, answer: Answer) -> None:
        if not isinstance(answer, Completion):
            return
        if answer.outcome == "timed_out":
            self._timed_out[answer.op_id] = len(self.records)
        self.records.append(
            TransferRecord(
                transfer.op_id,
                transfer.source.tier,
                transfer.target.tier,
                len(transfer.source_ids),
                issued_at,
                answer.started_at,
                answer.finished_at,
                answer.outcome.value,
                None,
                transfer.attempts[0][0] if transfer.attempts else None,
            )
        )


class ProgressLog:
    """A `TurnObserver` that also says how many requests have ended, now and then."""

    __slots__ = ("_ended", "_inner", "_num_told", "_tell")

    def __init__(
        self, inner: TransferLog, ended: Sequence[object], tell: Callable[[int], None]
    ) -> None:
        self._inner = inner
        self._ended = ended
        self._tell = tell
        self._num_told = 0

    def turn(self, now: int, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
        """Pass on; tell after every 64 requests."""
        self._inner.turn(now, commands, answers)
        if len(self._ended) - self._num_told >= 64:
            self._num_told = len(self._ended)
            self._tell(self._num_told)


class EventLog:
    """An `EventSink` that keeps every event, in order."""

    __slots__ = ("emit", "events")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.emit: Callable[[Event], None] = self.events.append
