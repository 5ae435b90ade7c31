"""A backend that ends its ops in whatever order and way a random source says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.core.ops import Cancel, Completion, Forward, Outcome, Settled
from kvsim.types import NEVER

if TYPE_CHECKING:
    from random import Random

    from kvsim.core.ops import Answer, Command, Transfer
    from kvsim.types import OpId

WAITS_NS = [0, 0, 1, 1, 2, 7]


@dataclass(slots=True)
class _Op:
    command: Forward | Transfer
    is_cancel_wanted: bool = False
    is_timed_out: bool = False


class ScriptedBackend:
    """A `kvsim.core.ports.Backend` that keeps to the contract, and to nothing else.

    Ops end in any order and after any time; a Forward ends DONE only after the ops it waits for,
    possibly in the same instant, and then the answers come in the order of op ids, as the contract
    says. A cancelled run ends after any number of its steps.

    Parameters
    ----------
    rng
        Decides everything.
    trouble_percent
        How often an op that could end well ends FAILED, or TIMED_OUT if it has a deadline.
    can_cancel_unstarted
        Whether a Cancel may find its Forward not started, which then ends CANCELLED.
    dies_at
        When each instance dies, of those that do: no op that touches it ends well after that.
    """

    def __init__(
        self,
        rng: Random,
        *,
        trouble_percent: int = 0,
        can_cancel_unstarted: bool = False,
        dies_at: dict[int, int] | None = None,
    ) -> None:
        self._rng = rng
        self._trouble_percent = trouble_percent
        self._can_cancel_unstarted = can_cancel_unstarted
        self._dies_at = dies_at or {}
        self._now = 0
        self._open: dict[OpId, _Op] = {}
        self._outcomes: dict[OpId, Outcome] = {}

    def now(self) -> int:
        return self._now

    def submit(self, command: Command) -> None:
        if isinstance(command, Cancel):
            op = self._open.get(command.op_id)
            if op is not None:
                op.is_cancel_wanted = True
            return
        op_id = command.op_id
        assert op_id not in self._open.keys() | self._outcomes.keys(), f"op {op_id} twice"
        for before in command.after:
            assert before in self._open or before in self._outcomes, f"op {before} is not known"
        self._open[op_id] = _Op(command)

    def wait(self, until: int | None) -> list[Answer]:
        at = self._now + self._rng.choice(WAITS_NS)
        answers: list[Answer] = []
        if self._open:
            late = self._next_deadline()
            if late is not None and (late[0] <= at or self._is_trouble()):
                at = max(late[0], self._now)
                if until is None or at <= until:
                    answers.append(self._time_out(late[1], at))
        if until is not None and (not self._open or at > until):
            self._now = max(self._now, until)
            return []
        self._now = at
        num_wanted = self._rng.choice([1, 1, 2, 4])
        while len(answers) < num_wanted and (ready := self._ready()):
            answers.append(self._end(self._rng.choice(ready)))
        return sorted(answers, key=lambda answer: answer.op_id)

    def close(self) -> None:
        self._open.clear()

    def _is_trouble(self) -> bool:
        return self._rng.randrange(100) < self._trouble_percent

    def _next_deadline(self) -> tuple[int, OpId] | None:
        """Return (deadline, op id) of the op that times out next, if one can."""
        return min(
            (
                (op.command.deadline_at, op_id)
                for op_id, op in self._open.items()
                if op.command.deadline_at is not None and not op.is_timed_out
            ),
            default=None,
        )

    def _time_out(self, op_id: OpId, at: int) -> Answer:
        self._open[op_id].is_timed_out = True
        self._outcomes[op_id] = Outcome.TIMED_OUT
        return self._completion(op_id, Outcome.TIMED_OUT, at)

    def _ready(self) -> list[OpId]:
        """Return the ops that can end now."""
        return [op_id for op_id, op in self._open.items() if op.is_timed_out or self._may_end(op)]

    def _may_end(self, op: _Op) -> bool:
        """Whether all ops it waits for have ended, or one of them badly, or it fails itself."""
        outcomes = [self._outcomes.get(before) for before in op.command.after]
        return (
            None not in outcomes
            or any(outcome not in {None, Outcome.DONE} for outcome in outcomes)
            or self._is_trouble()
        )

    def _end(self, op_id: OpId) -> Answer:
        op = self._open.pop(op_id)
        command = op.command
        if op.is_timed_out:
            return Settled(op_id=op_id, finished_at=self._now)
        is_doomed = any(self._outcomes.get(before) is not Outcome.DONE for before in command.after)
        steps_done = command.num_steps if isinstance(command, Forward) else 0
        is_doomed = is_doomed or any(self._dies_at.get(i, NEVER) < self._now for i in _at(command))
        outcome = Outcome.FAILED if is_doomed or self._is_trouble() else Outcome.DONE
        if op.is_cancel_wanted and outcome is Outcome.DONE and isinstance(command, Forward):
            if self._can_cancel_unstarted and not self._rng.randrange(3):
                outcome = Outcome.CANCELLED
            else:
                steps_done = self._rng.randint(1, steps_done)
        self._outcomes[op_id] = outcome
        return self._completion(
            op_id, outcome, self._now, steps_done if outcome is Outcome.DONE else 0
        )

    def _completion(
        self, op_id: OpId, outcome: Outcome, at: int, steps_done: int = 0
    ) -> Completion:
        return Completion(
            op_id=op_id,
            outcome=outcome,
            started_at=self._now,
            finished_at=at,
            steps_done=steps_done,
            reason="" if outcome is Outcome.DONE else "scripted",
        )


def _at(command: Forward | Transfer) -> tuple[int, ...]:
    """Return the instances that an op touches."""
    if isinstance(command, Forward):
        return (command.instance,)
    return (command.source.instance, command.target.instance)
