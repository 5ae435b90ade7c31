"""Prefill on some instances, decode on others: one scheduler above those of the instances.

A request is routed to a prefill and a decode instance. Decode admits it *first*: what it has
cached of the prompt is matched, and all other blocks, with the reserve for output, are taken at
once. Then it waits in the queue of its prefill instance, where it is a request for one token. Each
chunk of its prompt brings sends with it (`kvsim.core.sends`). When that token is made and all sends
of the attempt have ended DONE, it joins the decoding batch.

Why this does not deadlock. A request takes blocks in one order only: all it needs on decode, then
all it needs on prefill, each all or nothing. Who holds blocks on prefill waits for no blocks: it
computes, its sends read what they need, and both have an end (DONE, failed, or the deadline), after
which its blocks are free or evictable. So the queue of a prefill instance moves on, and whoever
holds blocks on decode gets its turn there. On decode a member that needs one more block preempts
the last admitted that decodes, at worst itself; it never waits for a request that is still to
arrive. A preempted request holds nothing. And where an answer does not come at all,
`reserve_timeout_ns` takes the blocks on decode back.

Requests that need one more token only, and all of those routed to a mixed instance, stay where
their prompt is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.config import OnSendFailure, Role
from kvsim.core.handoff import (
    UNDER_WAY,
    AttemptFailure,
    Handoff,
    Phase,
    Send,
    SendError,
    is_over,
    send_error,
)
from kvsim.core.ops import Completion, Forward, Outcome, Transfer
from kvsim.core.queue import RequestQueue
from kvsim.core.reservations import Reservations, is_awaited
from kvsim.core.routing import Dispatcher
from kvsim.core.sends import SendPlanner
from kvsim.core.sequence import Status
from kvsim.events import RequestEnded, RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvsim.config import SplitConfig
    from kvsim.core.handoff import Instance
    from kvsim.core.ops import Answer, Command
    from kvsim.core.ports import EventSink
    from kvsim.core.sequence import Sequence as Record
    from kvsim.types import OpId, Request, RequestId


class SplitScheduler:
    """Drives several instances through one stream of arrivals; a `kvsim.core.engine.Decider`.

    Parameters
    ----------
    instances
        With managers that share `new_op_id`, and schedulers without arrivals of their own. Those of
        prefill and decode instances must leave failures to this one (`max_attempts=1`).
    arrivals
        Requests in order of arrival.
    config
        How sends go, and what becomes of failures.
    new_op_id
        Gives the ids of ops.
    sink
        Where refusals and ends go; None: nowhere.

    Attributes
    ----------
    instances
        By number.
    ended
        Every request that has come to an end, in that order.
    failures
        Every attempt that failed, once, in that order.

    Raises
    ------
    ConfigError
        If no instance computes prompts, or none decodes, or their blocks do not fit each other.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        arrivals: Iterable[Request],
        config: SplitConfig,
        *,
        new_op_id: Callable[[], OpId],
        sink: EventSink | None = None,
    ) -> None:
        self._dispatcher = Dispatcher(instances, config.routing)
        self.instances = {each.number: each for each in instances}
        self._computing = [each for each in instances if each.role is not Role.DECODE]
        self._decoding = [each for each in instances if each.role is Role.DECODE]
        self._config = config
        self._planner = SendPlanner(config, new_op_id)
        self._sink = sink
        self._queue = RequestQueue(arrivals, self._dispatcher.block_size)
        self._live: dict[RequestId, Handoff] = {}
        self._owners: dict[OpId, Instance] = {}
        self._sends: dict[OpId, Send] = {}
        self._reservations = Reservations(config)
        self.ended: list[Handoff] = []
        self.failures: list[AttemptFailure] = []

    def has_work(self) -> bool:
        """Whether a request is left or an op has not settled."""
        if self._live or self._queue.next_at is not None:
            return True
        return any(each.scheduler.has_work() for each in self.instances.values())

    def next_wakeup_at(self) -> int | None:
        """Return the time of the next arrival, cancellation or deadline, if one is to come."""
        times = [self._queue.wakeup_at, self._reservations.next_deadline_at]
        return min((time for time in times if time is not None), default=None)

    def step(self, now: int) -> list[Command]:
        """Take what has arrived by `now` and decide; return the commands to submit."""
        self._wake_up(now)
        commands: list[Command] = []
        for each in self._decoding:
            for handoff in self._reservations.take(each, commands, now):
                self._enqueue(handoff, 1)
        for each in (*self._computing, *self._decoding):
            self._step_instance(each, commands, now)
        for command in commands:
            if isinstance(command, Forward):
                self._owners[command.op_id] = self.instances[command.instance]
            elif isinstance(command, Transfer) and command.op_id not in self._sends:
                self._owners[command.op_id] = self.instances[command.source.instance]
        self._reservations.forget_kept()
        return commands

    def settle(self, answer: Answer) -> None:
        """Take the answer to an op."""
        send = self._sends.get(answer.op_id)
        if send is not None:
            self._settle_send(send, answer)
            return
        instance = self._owners[answer.op_id]
        if is_over(answer):
            del self._owners[answer.op_id]
        instance.scheduler.settle(answer)
        self._collect()
        self._look_for_arrived(instance, answer.finished_at)

    def cancel(self, request_id: RequestId, now: int) -> None:
        """End a request at its client's wish; does nothing if it has ended or not arrived.

        Sends that were not issued never are. Those that were go on: another request may count on
        what they bring, and their blocks are theirs until they have settled.
        """
        handoff = self._live.get(request_id)
        if handoff is None:
            return
        handoff.is_cancel_wanted = True
        if handoff.phase is Phase.WAITING:
            self._reservations.withdraw(handoff)
            self._end(handoff, Status.CANCELLED, now)
        elif handoff.phase in UNDER_WAY:
            self._leave(handoff, now)
        else:
            self._cancel_parts(handoff, now)
        self._collect()

    # -- arrivals

    def _wake_up(self, now: int) -> None:
        wakeup_at = self._queue.wakeup_at
        if wakeup_at is not None and wakeup_at <= now:
            for sequence in self._queue.take_arrivals(now):
                self._arrive(sequence.request)
            for request_id in self._queue.take_cancels(now):
                self.cancel(request_id, now)
        for handoff in self._reservations.expired(now):
            self._fail(handoff, SendError.TIMEOUT, "its KV did not arrive in time", now)

    def _arrive(self, request: Request) -> None:
        handoff = Handoff(request, self._dispatcher.block_size)
        allowed = self._dispatcher.allowed_blocks(request)
        if handoff.num_most_blocks <= allowed:
            self._live[request.request_id] = handoff
            self._queue.watch(request)
            self._place(handoff)
            return
        if self._sink is not None:
            self._sink.emit(
                RequestRefused(
                    at=request.arrived_at,
                    request_id=request.request_id,
                    needed_blocks=handoff.num_most_blocks,
                    allowed_blocks=allowed,
                )
            )
        self._end(handoff, Status.REFUSED, request.arrived_at)

    def _place(self, handoff: Handoff) -> None:
        """Let a request wait for its next attempt, in its old order."""
        self._dispatcher.place(handoff)
        if handoff.decode is None:
            self._enqueue(handoff, handoff.num_left)
        else:
            self._reservations.wait(handoff)

    def _enqueue(self, handoff: Handoff, num_tokens: int) -> None:
        sequence = handoff.prefill_sequence = handoff.for_prefill(num_tokens)
        handoff.prefill_instance.scheduler.enqueue(sequence)

    # -- steps

    def _step_instance(self, side: Instance, commands: list[Command], now: int) -> None:
        """Let an instance decide; issue the sends that its Forward brings with it."""
        new = side.scheduler.step(now)
        commands += new
        for command in new:
            if not isinstance(command, Forward):
                continue
            for piece in command.prefill:
                handoff = self._live[piece.request_id]
                if handoff.prefill_started_at is None:
                    handoff.prefill_started_at = now
                if handoff.phase is Phase.COMPUTING:
                    for send in self._planner.plan(handoff, piece, command, now):
                        target = handoff.decode_instance
                        self._sends[send.op_id] = Send(handoff, handoff.attempt, side, target)
                        commands.append(send)
            for member in command.joined:
                handoff = self._live[member.request_id]
                if handoff.decode_started_at is None:
                    handoff.decode_started_at = now
        if side.role is Role.DECODE:
            for sequence in side.scheduler.take_preempted():
                self._take_preempted(self._live[sequence.request.request_id], sequence)

    def _take_preempted(self, handoff: Handoff, sequence: Record) -> None:
        """Let a request whose blocks on decode were taken go through prefill again."""
        handoff.left(handoff.decode_instance, sequence)
        handoff.num_preemptions += 1
        self._next_attempt(handoff)

    # -- answers

    def _settle_send(self, send: Send, answer: Answer) -> None:
        """Take the answer to a send. For an attempt that is over it changes nothing."""
        handoff = send.handoff
        if is_over(answer):
            del self._sends[answer.op_id]
        is_present = is_awaited(handoff, send.attempt)
        if isinstance(answer, Completion) and is_present and answer.outcome is not Outcome.DONE:
            # First, so that both managers know that the op outlives the attempt.
            self._fail(handoff, send_error(answer), answer.reason, answer.finished_at)
        send.source.scheduler.settle(answer)
        send.target.scheduler.settle(answer)
        if isinstance(answer, Completion) and answer.outcome is Outcome.DONE and is_present:
            handoff.sent(answer.op_id, answer)
        self._collect()
        if is_present:
            self._look_whether_arrived(handoff, answer.finished_at)
        self._look_for_arrived(send.target, answer.finished_at)

    def _look_for_arrived(self, side: Instance, now: int) -> None:
        """Let those join whose last shared block has come."""
        for handoff in list(side.unread.values()):
            self._look_whether_arrived(handoff, now)

    def _look_whether_arrived(self, handoff: Handoff, now: int) -> None:
        """Let a request join the decoding batch if all of its KV is there."""
        sequence = handoff.decode_sequence
        if handoff.phase is not Phase.SENDING or handoff.open_sends or sequence is None:
            return
        side = handoff.decode_instance
        if not side.manager.loans.is_readable(sequence.admitted):
            side.unread[handoff.request.request_id] = handoff
            return
        self._reservations.release(handoff)
        handoff.arrived(now)
        sequence.num_made = handoff.num_made
        side.scheduler.receive(sequence)

    # -- ends

    def _collect(self) -> None:
        """Take note of all that has ended on the instances, which may make more end."""
        is_quiet = False
        while not is_quiet:
            is_quiet = True
            for side in self.instances.values():
                ended = side.scheduler.ended
                if ended:
                    is_quiet = False
                    taken = ended[:]
                    ended.clear()
                    for sequence in taken:
                        self._take_end(side, sequence)

    def _take_end(self, side: Instance, sequence: Record) -> None:
        handoff = self._live[sequence.request.request_id]
        now = sequence.ended_at or 0
        handoff.left(side, sequence)
        if handoff.phase is Phase.LEAVING:
            self._conclude(handoff, now)
        elif sequence.status is Status.FAILED:
            error = SendError.CACHE if self._waits_on(side, handoff) else SendError.COMPUTE
            if side.role is Role.MIXED:
                handoff.is_given_up = True
            self._fail(handoff, error, f"instance {side.number} could not go on", now)
        elif handoff.phase is Phase.COMPUTING and sequence.status is Status.FINISHED:
            handoff.prompt_done(now)
            self._look_whether_arrived(handoff, now)
        else:
            self._end(handoff, sequence.status, now)

    def _waits_on(self, side: Instance, handoff: Handoff) -> bool:
        return side is handoff.decode and handoff.phase in UNDER_WAY

    def _fail(self, handoff: Handoff, error: SendError, reason: str, now: int) -> None:
        """Let the present attempt end for a reason, which is told once."""
        self.failures.append(
            AttemptFailure(now, handoff.request.request_id, handoff.attempt, error, reason)
        )
        handoff.num_failures += 1
        if self._config.on_send_failure is OnSendFailure.FAIL and error is not SendError.COMPUTE:
            handoff.is_given_up = True
        self._leave(handoff, now)

    def _leave(self, handoff: Handoff, now: int) -> None:
        """Take the present attempt off its instances; what a Forward computes must end first."""
        if handoff.phase in UNDER_WAY:
            self._reservations.release(handoff)
        handoff.open_sends.clear()
        handoff.phase = Phase.LEAVING
        self._cancel_parts(handoff, now)
        self._collect()
        if handoff.phase is Phase.LEAVING:
            self._conclude(handoff, now)

    def _cancel_parts(self, handoff: Handoff, now: int) -> None:
        request_id = handoff.request.request_id
        if handoff.prefill_sequence is not None:
            handoff.prefill_instance.scheduler.cancel(request_id, now)
        if handoff.decode_sequence is not None:
            handoff.decode_instance.scheduler.cancel(request_id, now)

    def _conclude(self, handoff: Handoff, now: int) -> None:
        """Go on after an attempt once nothing on its instances computes for it any more."""
        if handoff.prefill_sequence is not None or handoff.decode_sequence is not None:
            return
        if handoff.is_cancel_wanted:
            self._end(handoff, Status.CANCELLED, now)
        elif handoff.is_given_up or handoff.num_failures >= self._config.max_attempts:
            self._end(handoff, Status.FAILED, now)
        else:
            self._next_attempt(handoff)

    def _next_attempt(self, handoff: Handoff) -> None:
        self._dispatcher.leave(handoff)
        handoff.route_again()
        self._place(handoff)

    def _end(self, handoff: Handoff, status: Status, now: int) -> None:
        self._dispatcher.leave(handoff)
        request_id = handoff.request.request_id
        self._live.pop(request_id, None)
        handoff.phase = Phase.ENDED
        handoff.status = status
        handoff.ended_at = now
        self.ended.append(handoff)
        if self._sink is not None:
            self._sink.emit(RequestEnded(at=now, request_id=request_id, status=str(status)))
