"""A backend in real time, as small as one can be: one thread, and timers instead of work."""

from __future__ import annotations

import threading
import time
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from kvsim.core.ops import Cancel, Completion, Forward, Outcome, Settled
from kvsim.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.core.ops import Answer, Command, Transfer
    from kvsim.testing import BackendSpec

DONE = Outcome.DONE


class _Op:
    """An op that has not come to rest."""

    def __init__(self, command: Forward | Transfer, fault: str) -> None:
        self.command = command
        self.fault = fault
        self.started_at: int | None = None
        self.steps_done = 0
        self.is_cancelled = False
        self.is_timed_out = False


class RealTimeBackend:
    """A `kvsim.core.ports.Backend`: every op takes its time by the clock and does nothing.

    Both gates are taken for `Gate.OP`, which is later than need be and never too early. All state
    is guarded by one condition; whatever changes it is followed by `_start_what_can`.
    """

    def __init__(self, spec: BackendSpec) -> None:
        self._spec = spec
        self._origin = time.monotonic_ns()
        self._read_at = 0
        self._changed = threading.Condition()
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._ops: dict[int, _Op] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._answers: list[Answer] = []
        self._is_closed = False
        self._thread = threading.Thread(target=self._fire_timers, name="real time", daemon=True)
        self._thread.start()

    def now(self) -> int:
        self._read_at = self._time()
        return self._read_at

    def submit(self, command: Command) -> None:
        with self._changed:
            if self._is_closed:
                raise MisuseError("the backend is closed")
            if isinstance(command, Cancel):
                self._cancel(command.op_id)
                return
            op_id = command.op_id
            if op_id in self._ops or op_id in self._outcomes:
                raise MisuseError(f"op {op_id} was submitted twice")
            for other in command.after:
                if other not in self._ops and other not in self._outcomes:
                    raise MisuseError(f"op {op_id} waits for op {other}, not submitted before")
            self._ops[op_id] = op = _Op(command, self._fault(command))
            if command.deadline_at is not None:
                self._at(command.deadline_at, lambda: self._miss_deadline(op))
            self._start_what_can()

    def wait(self, until: int | None) -> Sequence[Answer]:
        with self._changed:
            while not self._answers:
                if until is None and not self._ops:
                    return []
                left_ns = None if until is None else until - self._time()
                if left_ns is not None and left_ns <= 0:
                    return []
                self._changed.wait(None if left_ns is None else left_ns / 10**9)
            answers, self._answers = self._answers, []
        dated = [self._dated(answer) for answer in answers]
        return sorted(dated, key=lambda answer: (answer.finished_at, answer.op_id))

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _time(self) -> int:
        return time.monotonic_ns() - self._origin

    def _dated(self, answer: Answer) -> Answer:
        """Date an op that ended unseen at the last reading of the clock."""
        return answer._replace(finished_at=max(answer.finished_at, self._read_at))

    def _fault(self, command: Forward | Transfer) -> str:
        """Return "fail" or "hang" if the spec wants that of every op of this kind."""
        faults = self._spec.faults
        kind = "forward" if isinstance(command, Forward) else "transfer"
        if faults is None or kind not in faults.kinds:
            return ""
        can_hang = command.deadline_at is not None
        return "hang" if faults.hang_rate and can_hang else "fail"

    def _fire_timers(self) -> None:
        with self._changed:
            while not self._is_closed:
                left_ns = self._timers[0][0] - self._time() if self._timers else None
                if left_ns is None or left_ns > 0:
                    self._changed.wait(None if left_ns is None else left_ns / 10**9)
                    continue
                heappop(self._timers)[2]()
                self._start_what_can()

    def _at(self, when: int, fire: Callable[[], None]) -> None:
        heappush(self._timers, (when, next(self._order), fire))
        self._changed.notify_all()

    def _start_what_can(self) -> None:
        """Start or fail what its predecessors and its instance let start or fail."""
        is_settled = False
        while not is_settled:
            is_settled = True
            busy: set[int] = set()
            for op in list(self._ops.values()):
                command, is_forward = op.command, isinstance(op.command, Forward)
                outcomes = [self._outcomes.get(other) for other in command.after]
                if op.started_at is None:
                    bad = [other for other in outcomes if other not in {None, DONE}]
                    if bad:
                        self._end(op, Outcome.FAILED, f"a predecessor ended {bad[0]}")
                        is_settled = False
                        continue
                    if None not in outcomes and not (
                        isinstance(command, Forward) and command.instance in busy
                    ):
                        self._start(op)
                if is_forward and isinstance(command, Forward):
                    busy.add(command.instance)

    def _start(self, op: _Op) -> None:
        op.started_at = self._time()
        if op.fault != "hang":
            self._go_on(op)

    def _go_on(self, op: _Op) -> None:
        """Plan the next step, or the whole copy."""
        is_forward = isinstance(op.command, Forward)
        step_ns = self._spec.step_ns if is_forward else self._spec.copy_ns
        self._at(self._time() + step_ns, lambda: self._end_step(op))

    def _end_step(self, op: _Op) -> None:
        if isinstance(op.command, Forward):
            op.steps_done += 1
            if op.steps_done < op.command.num_steps and not op.is_cancelled:
                self._go_on(op)
                return
        failed = op.fault == "fail"
        self._end(op, Outcome.FAILED if failed else DONE, "injected" if failed else "")

    def _cancel(self, op_id: int) -> None:
        op = self._ops.get(op_id)
        if op is not None and op.started_at is None and not op.is_timed_out:
            self._end(op, Outcome.CANCELLED, "")
            self._start_what_can()
        elif op is not None:
            op.is_cancelled = not op.is_timed_out

    def _miss_deadline(self, op: _Op) -> None:
        if self._ops.get(op.command.op_id) is not op:
            return
        self._answer(op, Outcome.TIMED_OUT, "its deadline has passed")
        op.is_timed_out = True
        if op.started_at is None:
            self._end(op, DONE, "")
        elif op.fault == "hang" and self._spec.faults is not None:
            settle_at = self._time() + self._spec.faults.settle_ns
            self._at(settle_at, lambda: self._end(op, DONE, ""))

    def _end(self, op: _Op, outcome: Outcome, reason: str) -> None:
        del self._ops[op.command.op_id]
        if op.is_timed_out:
            self._answers.append(Settled(op.command.op_id, self._time()))
            self._changed.notify_all()
        else:
            self._answer(op, outcome, reason)

    def _answer(self, op: _Op, outcome: Outcome, reason: str) -> None:
        now = self._time()
        steps_done = op.steps_done if outcome is DONE else 0
        started_at = now if op.started_at is None else op.started_at
        op_id = op.command.op_id
        self._outcomes[op_id] = outcome
        self._answers.append(Completion(op_id, outcome, started_at, now, steps_done, reason=reason))
        self._changed.notify_all()
