"""Virtual time, the open ops, who waits for whom, and the answers."""

from __future__ import annotations

from functools import partial
from heapq import heappush
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from kvsim.core.ops import Completion, Outcome, Settled
from kvsim.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.faults import Fault
    from kvsim.backends.sim.layers import LayerCurve
    from kvsim.core.ops import Answer, Forward, Transfer
    from kvsim.types import OpId

AT_REST: Final = -1
"""The ticket of an op that has come to rest: whatever was planned for it is void."""

NOT_STARTED: Final = -1

_AFTER_ALL_ELSE: Final = 1 << 60
_DONE: Final = Outcome.DONE


class Ticketed(Protocol):
    """A thing for which something is planned; a changed ticket voids what was planned before."""

    ticket: int


Plan: TypeAlias = "tuple[int, int, Callable[[], None], Ticketed, int]"
"""(time, order within the instant, what happens, whose plan it is, its ticket then)."""


class Clock:
    """Virtual time and the heap of what is planned. Only `SimBackend.wait` moves `now`."""

    __slots__ = ("_order", "now", "plans")

    def __init__(self) -> None:
        self.now = 0
        self.plans: list[Plan] = []
        self._order = 0

    def at(self, when: int, fire: Callable[[], None], subject: Ticketed) -> None:
        """Plan a call; calls planned for one instant run in the order they were planned."""
        self._order = order = self._order + 1
        heappush(self.plans, (when, order, fire, subject, subject.ticket))

    def at_end_of(self, when: int, fire: Callable[[], None], subject: Ticketed) -> None:
        """Plan a call for the end of an instant, after all that happens in it."""
        self._order = order = self._order + 1
        heappush(self.plans, (when, order + _AFTER_ALL_ELSE, fire, subject, subject.ticket))


class SimOp(Ticketed, Protocol):
    """An op under simulation. `started_at` may be in the future, or `NOT_STARTED`."""

    op_id: OpId
    started_at: int
    is_timed_out: bool
    waiters: list[SimOp] | None
    """The ops that wait for this one."""
    fault: Fault | None

    @property
    def command(self) -> Forward | Transfer:
        """What was submitted."""

    def wait_for(self, predecessor: SimOp | None) -> None:
        """Count one more op in `after` that has not ended; None if it never will end DONE."""

    def predecessor_started(self, predecessor: SimOp) -> None:
        """Take note that an op in `after` knows when its layers finish, if it does."""

    def predecessor_done(self, predecessor: SimOp) -> None:
        """Take note that an op in `after` ended DONE, now."""

    def first_layer_at(self) -> int | None:
        """Return when the first layer is finished, if that is known before the op's end."""

    def curve(self) -> LayerCurve:
        """Return when the layers finished; only asked for at the instant the op ends DONE."""

    def cancel(self) -> None:
        """End early, if it still can."""

    def end(self) -> None:
        """Come to rest as planned, now."""

    def abort(self, outcome: Outcome, reason: str) -> None:
        """Come to rest in another way, now."""


class Ledger:
    """Opens ops, links them to their predecessors, watches deadlines, and writes the answers."""

    __slots__ = ("_clock", "_last_op_id", "_not_done", "answers", "open_ops")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.open_ops: dict[OpId, SimOp] = {}
        self.answers: list[Answer] = []
        self._not_done: dict[OpId, Outcome] = {}
        self._last_op_id = -1

    def enroll(self, op: SimOp) -> None:
        """Open an op.

        Raises
        ------
        MisuseError
            If its id is open already, or it waits for an op that was not submitted before it.
        """
        op_id, command = op.op_id, op.command
        if op_id in self.open_ops:
            raise MisuseError(f"op {op_id} was submitted twice")
        for predecessor_id in command.after:
            if predecessor_id > self._last_op_id and predecessor_id not in self.open_ops:
                raise MisuseError(f"op {op_id} waits for op {predecessor_id}, not submitted before")
        self.open_ops[op_id] = op
        for predecessor_id in command.after:
            self._await(op, predecessor_id)
        if op_id > self._last_op_id:
            self._last_op_id = op_id
        if command.deadline_at is not None:
            self.watch(op)

    def watch(self, op: SimOp) -> None:
        """Plan the deadline of an op; again whenever its ticket changed."""
        deadline_at = op.command.deadline_at
        if deadline_at is not None and not op.is_timed_out:
            when = max(deadline_at, self._clock.now)
            self._clock.at_end_of(when, partial(self._time_out, op), op)

    def finish(
        self,
        op: SimOp,
        outcome: Outcome,
        reason: str = "",
        *,
        steps_done: int = 0,
        layers_finished_at: tuple[int, ...] = (),
    ) -> None:
        """Close an op that has come to rest: answer, and tell those that wait for it."""
        now = self._clock.now
        op.ticket = AT_REST
        del self.open_ops[op.op_id]
        if op.is_timed_out:
            self.answers.append(Settled(op_id=op.op_id, finished_at=now))
            return
        self.answers.append(
            Completion(
                op.op_id,
                outcome,
                op.started_at if NOT_STARTED < op.started_at <= now else now,
                now,
                steps_done,
                layers_finished_at,
                reason,
            )
        )
        if outcome is not _DONE:
            self._fail_waiters(op, outcome)
        elif op.waiters is not None:
            for waiter in op.waiters:
                if waiter.ticket != AT_REST:
                    waiter.predecessor_done(op)

    def _await(self, op: SimOp, predecessor_id: OpId) -> None:
        predecessor = self.open_ops.get(predecessor_id)
        if predecessor is not None and not predecessor.is_timed_out:
            op.wait_for(predecessor)
            if predecessor.waiters is None:
                predecessor.waiters = []
            predecessor.waiters.append(op)
        elif predecessor_id in self._not_done:
            op.wait_for(None)
            self._plan_failure(op, predecessor_id, self._not_done[predecessor_id])

    def _time_out(self, op: SimOp) -> None:
        now = self._clock.now
        has_started = NOT_STARTED < op.started_at <= now
        op.is_timed_out = True
        self.answers.append(
            Completion(
                op_id=op.op_id,
                outcome=Outcome.TIMED_OUT,
                started_at=op.started_at if has_started else now,
                finished_at=now,
                reason=f"not finished by its deadline, {op.command.deadline_at} ns",
            )
        )
        self._fail_waiters(op, Outcome.TIMED_OUT)
        if not has_started:
            op.abort(Outcome.CANCELLED, "")
        elif op.fault is not None and op.fault.settle_ns is not None:
            self._clock.at(now + op.fault.settle_ns, op.end, op)

    def _fail_waiters(self, op: SimOp, outcome: Outcome) -> None:
        self._not_done[op.op_id] = outcome
        for waiter in op.waiters or ():
            if waiter.ticket != AT_REST:
                self._plan_failure(waiter, op.op_id, outcome)

    def _plan_failure(self, op: SimOp, predecessor_id: OpId, outcome: Outcome) -> None:
        """Fail `op` in this instant, by a plan: a chain of ops must not become a deep recursion."""
        reason = f"op {predecessor_id}, which it waits for, ended {outcome}"
        self._clock.at(self._clock.now, partial(op.abort, Outcome.FAILED, reason), op)
