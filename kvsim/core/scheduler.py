"""Continuous batching on one instance, first come first served: decisions only.

A step of the engine asks `step(now)`. Unless a Forward is running it builds the next one: blocks
for the decoding members first (preempting the last admitted if need be), then the prompts begun,
then, while the token budget lasts, admissions from the head of the queue. A running Forward of
many decode steps is cancelled at its next step boundary when the batch could change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.config import SwapIn
from kvsim.core.batch import DecodeBatch
from kvsim.core.draft import ForwardDraft
from kvsim.core.ends import Ends
from kvsim.core.growth import Growth
from kvsim.core.limits import Limits
from kvsim.core.manager import Admission, Blocked
from kvsim.core.ops import Cancel, Completion, Outcome
from kvsim.core.queue import RequestQueue
from kvsim.core.sequence import Status
from kvsim.events import EndReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.config import SchedulerConfig
    from kvsim.core.attempt import Attempt
    from kvsim.core.manager import CacheManager
    from kvsim.core.ops import Answer, Command, Forward, Transfer
    from kvsim.core.ports import EventSink
    from kvsim.core.sequence import Sequence
    from kvsim.types import OpId, Request, RequestId


class Scheduler:
    """Drives one CacheManager through a stream of arrivals.

    Parameters
    ----------
    manager
        The cache of the instance.
    arrivals
        Requests in order of arrival.
    config
        Budgets and limits.
    instance
        Number of the instance, named in ops.
    sink
        Where events go; None: nowhere.

    Attributes
    ----------
    limits
        What may be admitted.
    """

    def __init__(
        self,
        manager: CacheManager,
        arrivals: Iterable[Request],
        config: SchedulerConfig,
        *,
        instance: int = 0,
        sink: EventSink | None = None,
    ) -> None:
        self._manager = manager
        self._config = config
        self._instance = instance
        self.limits = Limits(manager, config)
        self._queue = RequestQueue(arrivals, manager.config.block_size)
        self._running: dict[RequestId, Sequence] = {}  # in order of admission
        self._prefilling: list[Sequence] = []
        self._received: dict[RequestId, Sequence] = {}  # join the batch with the next Forward
        self._num_loading = 0
        self._batch = DecodeBatch(manager.config.block_size)
        self._growth = Growth(self._batch, manager, config.grow_blocks, self._preempt_last)
        self._forward: Forward | None = None
        self._pieces: list[tuple[Sequence, int]] = []  # what the running Forward computes
        self._is_stopping = False
        self._fenced: OpId | None = None  # a timed-out Forward that has not settled
        self._stuck_version = -1  # the head of the queue was turned away at this version
        self._cancel_wanted: list[RequestId] = []  # by the clients of the running Forward
        self._by_id = self.limits.present
        self._ends = Ends(sink)
        self.num_preemptions = self.num_forwards = 0

    @property
    def ended(self) -> list[Sequence]:
        """Every request that has come to an end, in that order."""
        return self._ends.sequences

    def has_work(self) -> bool:
        """Whether a request is left or an op has not settled."""
        if self._running or self._queue.next_at is not None or self._queue.waiting:
            return True
        return self._forward is not None or self._manager.has_open_ops

    def next_wakeup_at(self) -> int | None:
        """Return the time of the next arrival or client's cancellation, if one is to come."""
        return self._queue.wakeup_at

    def step(self, now: int) -> list[Command]:
        """Take what has arrived by `now` and decide; return the commands to submit."""
        if (wakeup_at := self._queue.wakeup_at) is not None and wakeup_at <= now:
            self._wake_up(now)
        if self._forward is None:
            return self._build(now) if self._fenced is None else []
        commands: list[Command] = [*self._manager.write_through(now)]
        if self._forward.num_steps > 1 and not self._is_stopping and self._may_change_batch():
            self._is_stopping = True
            commands.append(Cancel(op_id=self._forward.op_id))
        return commands

    def settle(self, answer: Answer) -> None:
        """Take the answer to an op."""
        forward = self._forward
        if forward is not None and answer.op_id == forward.op_id and isinstance(answer, Completion):
            self._settle_forward(answer, forward)
            return
        if answer.op_id == self._fenced:
            self._fenced = None
        for attempt in self._manager.settle(answer):
            self._restart(attempt, answer.finished_at)
        if self._num_loading:
            self._finish_loading()

    def cancel(self, request_id: RequestId, now: int) -> None:
        """End a request at its client's wish; does nothing if it has ended or not arrived.

        Its blocks go back when no op reads or writes them any more.
        """
        sequence = self._by_id.get(request_id)
        if sequence is None:
            return
        if sequence.status is Status.WAITING:
            if sequence is self._queue.waiting[0]:
                self._stuck_version = -1  # another is the head now
            self._queue.waiting.remove(sequence)
            self._end(sequence, Status.CANCELLED, now)
        elif self._is_in_forward(sequence):
            sequence.is_cancel_wanted = True
            self._cancel_wanted.append(request_id)
        else:
            self._leave(sequence)
            self._release(sequence, EndReason.CANCELLED, now)
            self._end(sequence, Status.CANCELLED, now)

    def enqueue(self, sequence: Sequence) -> None:
        """Put a request at the end of the queue, as if it had arrived."""
        self._queue.enqueue(sequence)
        self._by_id[sequence.request.request_id] = sequence

    def reserve(self, sequence: Sequence, commands: list[Command], now: int) -> bool:
        """Take all blocks of a request whose prompt another instance computes; whether it could.

        Ops that this takes are added to `commands`.
        """
        if len(self._running) >= self.limits.max_running:
            return False
        if not self._take_blocks(sequence, commands, now):
            return False
        sequence.status = Status.RECEIVING
        self._by_id[sequence.request.request_id] = sequence
        return True

    def receive(self, sequence: Sequence) -> None:
        """Let a request join the batch whose KV is there now."""
        self._received[sequence.request.request_id] = sequence

    def take_preempted(self) -> list[Sequence]:
        """Return those that wait here, and forget them."""
        taken = list(self._queue.waiting)
        self._queue.waiting.clear()
        for sequence in taken:
            del self._by_id[sequence.request.request_id]
        return taken

    def _wake_up(self, now: int) -> None:
        for sequence in self._queue.take_arrivals(now):
            allowed = self.limits.allowed_blocks(sequence)
            if sequence.num_most_blocks <= allowed:
                self.enqueue(sequence)
            else:
                self._ends.refuse(sequence, allowed, sequence.request.arrived_at)
        for request_id in self._queue.take_cancels(now):
            self.cancel(request_id, now)

    def _may_change_batch(self) -> bool:
        return bool(
            self._prefilling
            or self._received
            or self._cancel_wanted
            or (
                self._queue.waiting
                and len(self._running) < self.limits.max_running
                and self._stuck_version != self._manager.version
            )
        )

    def _build(self, now: int) -> list[Command]:
        commands: list[Command] = [*self._manager.write_through(now)]
        batch = self._batch
        for sequence in self._received.values():
            batch.join(sequence)
        self._received.clear()
        num_preempted = self.num_preemptions
        if batch.must_grow(1) and not self._growth.grow(1, commands, now) and batch.num_members:
            commands += self._manager.keep_low_watermark(now)
            return commands
        draft = ForwardDraft(
            self._manager.new_op_id(), self._config.token_budget - batch.num_members
        )
        for sequence in self._prefilling:
            if draft.budget_tokens <= 0:
                break
            draft.add(sequence, self._manager)
        # Those just preempted wait at least until the others have used what that freed.
        if self._queue.waiting and self.num_preemptions == num_preempted:
            self._admit(draft, commands, now)
        num_steps = 1 if draft.pieces else batch.num_steps_to_due()
        if num_steps > 1 and batch.must_grow(num_steps):
            num_steps = self._growth.grow(num_steps, commands, now)
        if self._running or self._queue.waiting:
            commands += self._manager.keep_low_watermark(now)
        if draft.pieces or (num_steps > 0 and batch.num_members):
            timeout_ns = self._config.forward_timeout_ns
            late_at = None if timeout_ns is None else now + timeout_ns
            self._forward = draft.finish(batch, self._manager, self._instance, num_steps, late_at)
            self._pieces, self._is_stopping = draft.pieces, False
            self.num_forwards += 1
            commands.append(self._forward)
        return commands

    def _admit(self, draft: ForwardDraft, commands: list[Command], now: int) -> None:
        """Admit from the head of the queue while there is room and budget."""
        manager, waiting = self._manager, self._queue.waiting
        while (
            waiting
            and draft.budget_tokens > 0
            and len(self._running) < self.limits.max_running
            and self._stuck_version != manager.version
        ):
            sequence = waiting[0]
            if not self._take_blocks(sequence, commands, now):
                self._stuck_version = manager.version
                return
            waiting.popleft()
            if self._config.swap_in is SwapIn.WAIT and any(
                op != draft.op_id and manager.is_open(op) for op in sequence.admitted.after
            ):
                sequence.status = Status.LOADING
                self._num_loading += 1
                continue
            sequence.status = Status.PREFILLING
            self._prefilling.append(sequence)
            draft.add(sequence, manager)

    def _take_blocks(self, sequence: Sequence, commands: list[Command], now: int) -> bool:
        """Let the next attempt of a sequence take its blocks, all or none; whether it has."""
        attempt = sequence.new_attempt(self._config.decode_reserve_blocks)
        outcome = self._manager.admit(attempt, now)
        if not isinstance(outcome, Blocked):
            commands += outcome.ops
        if not isinstance(outcome, Admission):
            return False
        sequence.start(attempt, now)
        self._running[sequence.request.request_id] = sequence
        return True

    def _finish_loading(self) -> None:
        """Let those join the batch whose copies have all settled."""
        is_open = self._manager.is_open
        for sequence in self._running.values():
            if sequence.status is Status.LOADING and not any(map(is_open, sequence.admitted.after)):
                sequence.status = Status.PREFILLING
                self._num_loading -= 1
                self._prefilling.append(sequence)

    def _preempt_last(self, now: int) -> tuple[Transfer, ...]:
        """Take all blocks from the last admitted; it waits in its old order to go on.

        Not from one whose KV is on its way from another instance: its blocks would not come free.
        """
        running = reversed(self._running.values())
        sequence = next(each for each in running if each.status is not Status.RECEIVING)
        self._leave(sequence)
        if sequence.num_made > sequence.admitted.num_made:
            self._manager.publish(sequence.admitted, sequence.num_known_tokens - 1)
        swaps = self._manager.preempt(sequence.admitted, now, self._config.preempt)
        sequence.attempt = None
        sequence.interrupt(now)
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._queue.put_back(sequence)
        return swaps

    def _settle_forward(self, answer: Completion, forward: Forward) -> None:
        self._forward = None
        pieces, self._pieces = self._pieces, []
        now = answer.finished_at
        # A run that was cancelled before its first step has lost nothing.
        was_cancelled = answer.outcome is Outcome.CANCELLED and not forward.prefill
        if answer.outcome is not Outcome.DONE and not was_cancelled:
            self._fail_forward(answer, pieces)
            return
        if forward.prefill:
            for attempt in self._manager.settle(answer):
                self._restart(attempt, now)
        for sequence in self._batch.advance(answer.steps_done):
            self._finish(sequence, now)
        for sequence, num_tokens in pieces:
            sequence.num_computed += num_tokens
            if sequence.num_computed == sequence.num_target_tokens:
                self._finish_prefill(sequence, now)
        if self._cancel_wanted or self._num_loading:
            self._after_forward(now)

    def _after_forward(self, now: int) -> None:
        wanted, self._cancel_wanted = self._cancel_wanted, []
        for request_id in wanted:
            self.cancel(request_id, now)
        if self._num_loading:
            self._finish_loading()

    def _finish_prefill(self, sequence: Sequence, now: int) -> None:
        self._prefilling.remove(sequence)
        sequence.make_first_token(now)
        if sequence.num_made >= sequence.request.num_output_tokens:
            self._finish(sequence, now)
        else:
            self._batch.join(sequence)

    def _finish(self, sequence: Sequence, now: int) -> None:
        if self._manager.config.keep_outputs:
            num_tokens = sequence.request.num_input_tokens + sequence.num_made
            self._manager.publish(sequence.admitted, num_tokens - 1)
        self._release(sequence, EndReason.FINISHED, now)
        self._end(sequence, Status.FINISHED, now)

    def _fail_forward(self, answer: Completion, pieces: list[tuple[Sequence, int]]) -> None:
        """Let all members of a batch whose computation is lost try again."""
        now = answer.finished_at
        if not self._manager.is_open(answer.op_id):
            self._manager.issue_forward(answer.op_id, ())
        held_by = answer.op_id if answer.outcome is Outcome.TIMED_OUT else None
        self._fenced = held_by
        decoding = [s for s in self._running.values() if s.status is Status.DECODING]
        lost = [sequence.admitted for sequence in [*decoding, *(s for s, _ in pieces)]]
        for attempt in lost:
            self._manager.release(attempt, EndReason.RESTARTED, now, held_by=held_by)
        for attempt in [*lost, *self._manager.settle(answer)]:
            self._restart(attempt, now)
        self._after_forward(now)

    def _restart(self, attempt: Attempt, now: int) -> None:
        """Let the request of a released attempt wait for its next one, in its old order."""
        sequence = self._by_id[attempt.request.request_id]
        if sequence.attempt is not attempt:
            return
        self._leave(sequence)
        sequence.attempt = None
        sequence.no_reload = sequence.no_reload.union(attempt.no_reload)
        sequence.num_failures += 1
        sequence.interrupt(now)
        if sequence.is_cancel_wanted:
            self._end(sequence, Status.CANCELLED, now)
            return
        if sequence.num_failures >= self._config.max_attempts:
            self._end(sequence, Status.FAILED, now)
            return
        self._queue.put_back(sequence)

    def _is_in_forward(self, sequence: Sequence) -> bool:
        """Whether the running Forward reads or writes the sequence's blocks."""
        return self._forward is not None and (
            sequence.status is Status.DECODING or any(sequence is s for s, _ in self._pieces)
        )

    def _leave(self, sequence: Sequence) -> None:
        """Take a sequence out of whichever list it runs in."""
        if sequence.status is Status.DECODING:
            self._batch.leave(sequence)
        elif sequence.status is Status.PREFILLING:
            self._prefilling.remove(sequence)
        elif sequence.status is Status.LOADING:
            self._num_loading -= 1
        elif sequence.status is Status.RECEIVING:
            self._received.pop(sequence.request.request_id, None)
        self._running.pop(sequence.request.request_id, None)

    def _release(self, sequence: Sequence, reason: EndReason, now: int) -> None:
        self._manager.release(sequence.admitted, reason, now)
        sequence.attempt = None

    def _end(self, sequence: Sequence, status: Status, now: int) -> None:
        self._running.pop(sequence.request.request_id, None)
        self._by_id.pop(sequence.request.request_id, None)
        self._ends.end(sequence, status, now)
