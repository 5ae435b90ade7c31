"""Backends that break one sentence about order or time each: a simulator, and one thing wrong."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from kvsim.core.ops import Cancel, Completion, Forward, Gate, Outcome, Settled
from tests.unit.testing.broken_backends import Right

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ops import Answer, Command
    from kvsim.testing import BackendSpec


# -- order, gates and deadlines


class RunsForwardsAtOnce(Right):
    """Gives each Forward an instance of its own."""

    def submit(self, command: Command) -> None:
        if isinstance(command, Forward):
            command = command._replace(instance=command.op_id)
        super().submit(command)


class IgnoresGates(Right):
    def submit(self, command: Command) -> None:
        if not isinstance(command, Cancel):
            command = command._replace(after=())
        super().submit(command)


class IgnoresLayerGates(Right):
    """Ignores one kind of gate, and does not show it in the times of layers."""

    def submit(self, command: Command) -> None:
        if not isinstance(command, Cancel) and command.gate is Gate.LAYER:
            command = command._replace(after=())
        super().submit(command)

    def completion(self, answer: Completion) -> list[Answer]:
        return [answer._replace(layers_finished_at=())]


class TakesEveryGateForLayers(Right):
    def submit(self, command: Command) -> None:
        if not isinstance(command, Cancel):
            command = command._replace(gate=Gate.LAYER)
        super().submit(command)


class LetsLayersOvertake(Right):
    """Says of a step that all its layers were finished as soon as it began."""

    def completion(self, answer: Completion) -> list[Answer]:
        layers = len(answer.layers_finished_at)
        if not answer.steps_done:
            return [answer]
        return [answer._replace(layers_finished_at=(answer.started_at,) * layers)]


class FinishesLayersBackwards(Right):
    def completion(self, answer: Completion) -> list[Answer]:
        return [answer._replace(layers_finished_at=answer.layers_finished_at[::-1])]


class RecordsOneLayer(Right):
    def completion(self, answer: Completion) -> list[Answer]:
        return [answer._replace(layers_finished_at=answer.layers_finished_at[-1:])]


class RecordsNoLayers(Right):
    def completion(self, answer: Completion) -> list[Answer]:
        return [answer._replace(layers_finished_at=())]


class TimesOutEarly(Right):
    def submit(self, command: Command) -> None:
        if not isinstance(command, Cancel) and command.deadline_at is not None:
            early_at = max(0, command.deadline_at - self.spec.tick_ns)
            command = command._replace(deadline_at=early_at)
        super().submit(command)


class TimesOutLate(Right):
    """Notices that an op has missed its deadline when it comes to rest."""

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        self.late: dict[int, Completion] = {}

    def wait(self, until: int | None) -> Sequence[Answer]:
        while not (answers := super().wait(until)) and self.late:
            if until is not None and self.now() >= until:
                break
        return answers

    def completion(self, answer: Completion) -> list[Answer]:
        if answer.outcome is not Outcome.TIMED_OUT:
            return [answer]
        self.late[answer.op_id] = answer
        return []

    def settled(self, answer: Settled) -> list[Answer]:
        late = self.late.pop(answer.op_id)
        return [late._replace(finished_at=answer.finished_at), answer]


class KnowsNoDeadline(Right):
    def submit(self, command: Command) -> None:
        if not isinstance(command, Cancel):
            command = command._replace(deadline_at=None)
        super().submit(command)


# -- time


class ClockGoesBack(Right):
    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        self.num_reads = itertools.count()

    def now(self) -> int:
        return super().now() - (next(self.num_reads) % 50 == 49)


class ClockOfSeconds(Right):
    def now(self) -> float:  # type: ignore[override]
        return super().now() / 10**9


class AnswersBackwards(Right):
    def wait(self, until: int | None) -> Sequence[Answer]:
        return super().wait(until)[::-1]


class HoldsAnswersBack(Right):
    """Returns an answer behind those that come after it."""

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        self.held: list[Answer] = []

    def wait(self, until: int | None) -> Sequence[Answer]:
        if not self.held:
            self.held = list(super().wait(until))
        answers = super().wait(until)
        if not answers:
            answers, self.held = self.held, []
        return answers


class DatesAnswersInThePast(Right):
    def completion(self, answer: Completion) -> list[Answer]:
        return [
            answer._replace(
                started_at=answer.started_at - self.spec.tick_ns,
                finished_at=answer.finished_at - self.spec.tick_ns,
            )
        ]


class DatesAnswersInTheFuture(Right):
    def completion(self, answer: Completion) -> list[Answer]:
        return [answer._replace(finished_at=answer.finished_at + 1)]


class FinishesBeforeItStarts(Right):
    def completion(self, answer: Completion) -> list[Answer]:
        return [answer._replace(started_at=answer.finished_at + 1, layers_finished_at=())]


class DatesAnswersInSeconds(Right):
    def completion(self, answer: Completion) -> list[Answer]:
        return [answer._replace(finished_at=answer.finished_at / 1)]  # type: ignore[arg-type]


class GivesUpWaiting(Right):
    """Returns nothing before its limit."""

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        self.num_waits = itertools.count()

    def wait(self, until: int | None) -> Sequence[Answer]:
        return [] if next(self.num_waits) % 4 == 3 else super().wait(until)


class NeedsMoreWork(Right):
    """Answers nothing more once it has been idle for a while: until the next submit."""

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        self.credit = 0

    def submit(self, command: Command) -> None:
        super().submit(command)
        self.credit = 3

    def wait(self, until: int | None) -> Sequence[Answer]:
        if until is None and not self.credit:
            return []
        self.credit = max(0, self.credit - 1)
        return super().wait(until)


class BlocksInSubmit(Right):
    """Waits for each run that is submitted."""

    def submit(self, command: Command) -> None:
        super().submit(command)
        if isinstance(command, Forward) and command.num_steps > 1:
            before = self.simulator.now()
            while self.simulator.now() < before + command.num_steps * self.spec.step_ns:
                self.simulator.wait(before + command.num_steps * self.spec.step_ns)


class AnswersInSubmit(Right):
    def submit(self, command: Command) -> list[Answer]:  # type: ignore[override]
        super().submit(command)
        return []
