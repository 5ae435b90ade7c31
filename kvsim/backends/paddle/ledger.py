"""The open ops as the controller sees them: many acknowledgements in, one answer out."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from kvsim.backends.paddle.orders import Stop
from kvsim.core.ops import Completion, Forward, Outcome, Settled
from kvsim.errors import MisuseError, TransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.backends.paddle.orders import RankDone
    from kvsim.core.ops import Answer, Transfer
    from kvsim.types import OpId

_BADNESS: Final = {Outcome.DONE: 0, Outcome.CANCELLED: 1, Outcome.FAILED: 2}


class OpenOp:
    """An op that has not come to rest, and what the ranks have said of it.

    `num_open_before` of the ops it waits for have not ended.
    """

    __slots__ = (
        "command",
        "copy_ns",
        "first_wrong",
        "is_on_ranks",
        "is_timed_out",
        "layer_times",
        "num_checked_blocks",
        "num_open_before",
        "num_wrong_bytes",
        "outcome",
        "ranks_left",
        "reason",
        "rest_at",
        "started_at",
        "steps_done",
        "waiters",
    )

    def __init__(self, command: Forward | Transfer) -> None:
        self.command = command
        self.num_open_before = 0
        self.ranks_left: set[int] = set()
        self.is_on_ranks = False
        self.is_timed_out = False
        self.outcome = Outcome.DONE
        self.reason = ""
        self.started_at: int | None = None
        self.rest_at = 0
        self.steps_done: int | None = None
        self.layer_times: list[int] = []
        self.waiters: list[OpenOp] = []
        self.num_checked_blocks = 0
        self.num_wrong_bytes = 0
        self.first_wrong = ""
        self.copy_ns = 0

    def take(self, done: RankDone) -> None:
        """Take the end of the op on one rank: the worst outcome counts, and the fewest steps."""
        self.ranks_left.remove(done.rank)
        times = zip_longest(self.layer_times, done.layers_finished_at, fillvalue=0)
        self.layer_times = list(map(max, times))
        if self.started_at is None or done.started_at < self.started_at:
            self.started_at = done.started_at
        self.rest_at = max(self.rest_at, done.finished_at)
        if self.steps_done is None or done.steps_done < self.steps_done:
            self.steps_done = done.steps_done
        self.worsen(done.outcome, done.reason)
        self.num_wrong_bytes += done.num_wrong_bytes
        self.first_wrong = self.first_wrong or done.first_wrong
        self.copy_ns = max(self.copy_ns, done.copy_ns)

    def worsen(self, outcome: Outcome, reason: str) -> None:
        """Note an end that is worse than what is known, with its reason."""
        if _BADNESS[outcome] > _BADNESS[self.outcome]:
            self.outcome, self.reason = outcome, reason


class Ledger:
    """Opens ops, watches their deadlines, closes them, and writes the answers.

    Parameters
    ----------
    tell
        Tells all ranks to end an op early.
    at_rest
        Called with an op that has come to rest: nothing will touch its blocks again.
    ready
        Called with an op when the last of those it waits for has ended well.
    records_layers
        Whether answers carry `layers_finished_at`.

    Attributes
    ----------
    open_ops
        Every op that has not come to rest.
    answers
        What `wait` has to return next.
    """

    def __init__(
        self,
        *,
        tell: Callable[[Stop], None],
        at_rest: Callable[[OpenOp], None],
        ready: Callable[[OpenOp], None],
        records_layers: bool,
    ) -> None:
        self._tell = tell
        self._at_rest = at_rest
        self._ready = ready
        self._records_layers = records_layers
        self.open_ops: dict[OpId, OpenOp] = {}
        self.answers: list[Answer] = []
        self._deadlines: list[tuple[int, OpId]] = []
        self._not_done: dict[OpId, Outcome] = {}
        self._losses: list[tuple[OpId, Outcome, list[OpenOp]]] = []
        self._last_op_id = -1
        self.earliest_at = 0
        """No answer may be earlier: the engine has seen this time, or an answer of it."""

    @property
    def next_deadline_at(self) -> int | None:
        """When the next op times out that has not ended."""
        deadlines = self._deadlines
        while deadlines:
            op = self.open_ops.get(deadlines[0][1])
            if op is not None and not op.is_timed_out:
                return deadlines[0][0]
            heappop(deadlines)
        return None

    def check(self, command: Forward | Transfer) -> None:
        """Raise `MisuseError` if an op cannot be taken; changes nothing."""
        op_id = command.op_id
        if op_id in self.open_ops:
            raise MisuseError(f"op {op_id} was submitted twice")
        for before in command.after:
            if before > self._last_op_id and before not in self.open_ops:
                raise MisuseError(f"op {op_id} waits for op {before}, not submitted before")

    def enroll(self, command: Forward | Transfer, now: int) -> OpenOp:
        """Open an op; it fails at once if one it waits for has ended badly."""
        op = OpenOp(command)
        self.open_ops[command.op_id] = op
        self._last_op_id = max(self._last_op_id, command.op_id)
        if command.deadline_at is not None:
            heappush(self._deadlines, (command.deadline_at, command.op_id))
        for before in command.after:
            predecessor = self.open_ops.get(before)
            if before in self._not_done:
                self._lose(before, self._not_done[before], [op], now)
                break
            if predecessor is not None:
                predecessor.waiters.append(op)
                op.num_open_before += 1
        return op

    def is_open(self, op_id: OpId) -> bool:
        """Whether an op has not come to rest."""
        return op_id in self.open_ops

    def take(self, done: RankDone, now: int) -> None:
        """Take the end of an op on one rank, and answer if it was the last.

        Raises
        ------
        TransferError
            If it makes no sense; nothing has changed. What else that rank says is worth nothing.
        """
        op = self.open_ops.get(done.op_id)
        if op is None or done.rank not in op.ranks_left:
            raise TransferError(
                f"rank {done.rank} says that op {done.op_id} has ended, which it was not asked for,"
                " or has said already"
            )
        if not 0 <= done.started_at <= done.finished_at <= now:
            raise TransferError(
                f"rank {done.rank} says that op {done.op_id} went from {done.started_at} to"
                f" {done.finished_at} ns, and it is {now} ns now"
            )
        if isinstance(op.command, Forward) and not 0 <= done.steps_done <= op.command.num_steps:
            raise TransferError(
                f"rank {done.rank} says that it has done {done.steps_done} steps of op"
                f" {done.op_id}, which has {op.command.num_steps}"
            )
        op.take(done)
        if not op.ranks_left:
            self._finish(op)

    def give_up(self, reason: str, now: int) -> None:
        """End every open op, when no rank will touch a block again."""
        for op in list(self.open_ops.values()):
            if self.open_ops.get(op.command.op_id) is op:  # not failed with another meanwhile
                self._end_here(op, Outcome.FAILED, reason, now)

    def cancel(self, op_id: OpId, now: int) -> None:
        """End an op early, if it still can."""
        op = self.open_ops.get(op_id)
        if op is None or op.is_timed_out:
            return
        if op.is_on_ranks:
            self._tell(Stop(op_id, at_once=False))
        else:
            self._end_here(op, Outcome.CANCELLED, "", now)

    def expire(self, now: int) -> None:
        """Give up the ops whose deadline has passed."""
        while (deadline_at := self.next_deadline_at) is not None and deadline_at <= now:
            _, op_id = heappop(self._deadlines)
            op = self.open_ops[op_id]
            self._time_out(op, now)
            if op.is_on_ranks:
                self._tell(Stop(op_id, at_once=True))
            else:
                self._end_here(op, Outcome.CANCELLED, "", now)

    def take_answers(self) -> Sequence[Answer]:
        """Return and forget the answers, in order; none is earlier than the engine has seen."""
        earliest_at = self.earliest_at
        answers = [
            each if each.finished_at >= earliest_at else each._replace(finished_at=earliest_at)
            for each in self.answers
        ]
        self.answers = []
        # Stable, so of one op its Completion comes before its Settled.
        answers.sort(key=lambda answer: (answer.finished_at, answer.op_id))
        if answers:
            self.earliest_at = max(self.earliest_at, answers[-1].finished_at)
        return answers

    def _end_here(self, op: OpenOp, outcome: Outcome, reason: str, now: int) -> None:
        op.rest_at = now
        op.worsen(outcome, reason)
        self._finish(op)

    def _finish(self, op: OpenOp) -> None:
        """Close an op that has come to rest."""
        op_id, deadline_at = op.command.op_id, op.command.deadline_at
        at = op.rest_at
        if not op.is_timed_out and deadline_at is not None and op.rest_at > deadline_at:
            self._time_out(op, at)
        del self.open_ops[op_id]
        self._at_rest(op)
        if op.is_timed_out:
            self.answers.append(Settled(op_id, at))
            return
        is_done = op.outcome is Outcome.DONE
        self.answers.append(
            Completion(
                op_id,
                op.outcome,
                at if op.started_at is None else op.started_at,
                at,
                (op.steps_done or 0) if is_done else 0,
                tuple(op.layer_times) if is_done and self._records_layers else (),
                op.reason,
            )
        )
        if not is_done:
            self._not_done[op_id] = op.outcome
            self._lose(op_id, op.outcome, op.waiters, at)
            return
        for waiter in op.waiters:
            waiter.num_open_before -= 1
            if not waiter.num_open_before and self.is_open(waiter.command.op_id):
                self._ready(waiter)

    def _time_out(self, op: OpenOp, now: int) -> None:
        command = op.command
        op.is_timed_out = True
        self.answers.append(
            Completion(
                command.op_id,
                Outcome.TIMED_OUT,
                now if op.started_at is None else op.started_at,
                now,
                reason=f"not finished by its deadline, {command.deadline_at} ns",
            )
        )
        self._not_done[command.op_id] = Outcome.TIMED_OUT
        self._lose(command.op_id, Outcome.TIMED_OUT, op.waiters, now)

    def _lose(self, op_id: OpId, outcome: Outcome, waiters: list[OpenOp], now: int) -> None:
        """Let ops fail that waited for one which is lost, and those that wait for them.

        By a list: a chain of ops must not become a deep recursion.
        """
        self._losses.append((op_id, outcome, waiters))
        if len(self._losses) > 1:
            return  # whoever is at it goes on with this one
        for lost_id, how, those in self._losses:
            reason = f"op {lost_id}, which it waits for, ended {how}"
            for waiter in those:
                self._fail(waiter, reason, now)
        self._losses.clear()

    def _fail(self, op: OpenOp, reason: str, now: int) -> None:
        op_id = op.command.op_id
        if self.open_ops.get(op_id) is not op or op.is_timed_out:
            return
        op.worsen(Outcome.FAILED, reason)
        if op.is_on_ranks:
            self._tell(Stop(op_id, at_once=True))
        else:
            self._end_here(op, Outcome.FAILED, reason, now)
