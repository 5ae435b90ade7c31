"""Backends that break one sentence of their contract each: a simulator, and one thing wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvsim.core.ops import Cancel, Completion, Forward, Outcome, Settled
from kvsim.errors import MisuseError
from tests.conformance.makers import make_simulator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.backends.sim import SimBackend
    from kvsim.core.ops import Answer, Command
    from kvsim.testing import BackendSpec

DONE, FAILED = Outcome.DONE, Outcome.FAILED


class Right:
    """Passes everything on to a simulator: nothing is wrong."""

    def __init__(self, spec: BackendSpec) -> None:
        self.spec = spec
        self.simulator = make_simulator(spec)

    def now(self) -> int:
        return self.simulator.now()

    def submit(self, command: Command) -> None:
        self.simulator.submit(command)

    def wait(self, until: int | None) -> Sequence[Answer]:
        return [
            changed
            for answer in self.simulator.wait(until)
            for changed in (
                self.completion(answer) if isinstance(answer, Completion) else self.settled(answer)
            )
        ]

    def close(self) -> None:
        self.simulator.close()

    def completion(self, answer: Completion) -> list[Answer]:
        """Return what is answered instead of a Completion."""
        return [answer]

    def settled(self, answer: Settled) -> list[Answer]:
        """Return what is answered instead of a Settled."""
        return [answer]


# -- how many answers


class AnswersTwice(Right):
    def completion(self, answer: Completion) -> list[Answer]:
        return [answer, answer]


class ForgetsCopies(Right):
    def completion(self, answer: Completion) -> list[Answer]:
        return [] if not answer.steps_done and answer.outcome is DONE else [answer]


class AnswersCancels(Right):
    """Answers each Cancel of an op under way, beside the op."""

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        self.cancelled: list[int] = []

    def submit(self, command: Command) -> None:
        super().submit(command)
        if isinstance(command, Cancel):
            self.cancelled.append(command.op_id)

    def wait(self, until: int | None) -> Sequence[Answer]:
        now = self.now()
        if self.cancelled:
            op_id = self.cancelled.pop(0)
            return [Completion(op_id, Outcome.CANCELLED, now, now)]
        return super().wait(until)


class NeverSettles(Right):
    def settled(self, answer: Settled) -> list[Answer]:
        return []


class SettlesTwice(Right):
    def settled(self, answer: Settled) -> list[Answer]:
        return [answer, answer]


class SettlesWithoutTimeout(Right):
    def completion(self, answer: Completion) -> list[Answer]:
        settled = [Settled(answer.op_id, answer.finished_at)] if answer.outcome is DONE else []
        return [answer, *settled]


# -- how ops end


class HangsOnFailure(Right):
    """Forgets the ops behind one that did not end DONE."""

    def completion(self, answer: Completion) -> list[Answer]:
        return [] if "which it waits for" in answer.reason else [answer]


class IgnoresFailure(Right):
    """Does the ops behind one that did not end DONE."""

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        self.num_steps: dict[int, int] = {}

    def submit(self, command: Command) -> None:
        super().submit(command)
        if not isinstance(command, Cancel):
            steps = command.num_steps if isinstance(command, Forward) else 0
            self.num_steps[command.op_id] = steps

    def completion(self, answer: Completion) -> list[Answer]:
        if "which it waits for" not in answer.reason:
            return [answer]
        steps_done = self.num_steps[answer.op_id]
        return [answer._replace(outcome=DONE, steps_done=steps_done, reason="")]


class FailsAtRandom(Right):
    def completion(self, answer: Completion) -> list[Answer]:
        if answer.op_id % 3 or answer.outcome is not DONE:
            return [answer]
        return [
            answer._replace(
                outcome=FAILED, steps_done=0, layers_finished_at=(), reason="a cosmic ray"
            )
        ]


class GivesNoReason(Right):
    def completion(self, answer: Completion) -> list[Answer]:
        return [answer._replace(reason="")]


class LosesAStep(Right):
    def completion(self, answer: Completion) -> list[Answer]:
        return (
            [answer._replace(steps_done=max(1, answer.steps_done - 1))]
            if (answer.steps_done)
            else [answer]
        )


class CountsStepsOfCopies(Right):
    def completion(self, answer: Completion) -> list[Answer]:
        return [answer._replace(steps_done=answer.steps_done or 1)]


class IgnoresCancels(Right):
    def submit(self, command: Command) -> None:
        if not isinstance(command, Cancel):
            super().submit(command)


class CancelsWhatHasStarted(Right):
    """Throws away the steps that a cancelled run has done."""

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        self.cancelled: set[int] = set()

    def submit(self, command: Command) -> None:
        super().submit(command)
        if isinstance(command, Cancel):
            self.cancelled.add(command.op_id)

    def completion(self, answer: Completion) -> list[Answer]:
        if answer.op_id not in self.cancelled or answer.outcome is not DONE:
            return [answer]
        return [answer._replace(outcome=Outcome.CANCELLED, steps_done=0, layers_finished_at=())]


class CountsStepsOfTheCancelled(CancelsWhatHasStarted):
    def completion(self, answer: Completion) -> list[Answer]:
        is_cancelled = answer.outcome is Outcome.CANCELLED
        return [answer._replace(steps_done=1) if is_cancelled else answer]


class DoesNothingWhenCancelled(CancelsWhatHasStarted):
    """Says of a cancelled run that it is done, with no step."""

    def completion(self, answer: Completion) -> list[Answer]:
        if answer.op_id in self.cancelled and answer.steps_done:
            return [answer._replace(steps_done=0)]
        return [answer]


class ClaimsStepsItHadNoTimeFor(CancelsWhatHasStarted):
    """Says of a cancelled run that it has done one step more."""

    def completion(self, answer: Completion) -> list[Answer]:
        if answer.op_id in self.cancelled and answer.steps_done > 1:
            return [answer._replace(steps_done=answer.steps_done + 1)]
        return [answer]


class RefusesIdleCancels(Right):
    """Takes a Cancel of an op that is not in flight for misuse."""

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        self.open: set[int] = set()

    def submit(self, command: Command) -> None:
        if not isinstance(command, Cancel):
            self.open.add(command.op_id)
        elif command.op_id not in self.open:
            raise MisuseError(f"op {command.op_id} is not in flight")
        super().submit(command)

    def completion(self, answer: Completion) -> list[Answer]:
        self.open.discard(answer.op_id)
        return [answer]


class DropsTheBatchOfTheCancelled(Right):
    """Applies what a Forward says of the batch when it runs; a cancelled one never does."""

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        self.forwards: dict[int, Forward] = {}
        self.batch: set[int] = set()

    def submit(self, command: Command) -> None:
        super().submit(command)
        if isinstance(command, Forward):
            self.forwards[command.op_id] = command

    def completion(self, answer: Completion) -> list[Answer]:
        forward = self.forwards.get(answer.op_id)
        if forward is None or answer.outcome is not DONE:
            return [answer]
        self.batch |= {member.request_id for member in forward.joined}
        if not self.batch.issuperset(forward.left) or forward.num_decodes > len(self.batch):
            reason = f"the batch is {self.batch}"
            return [answer._replace(outcome=FAILED, steps_done=0, reason=reason)]
        self.batch -= set(forward.left)
        return [answer]


# -- misuse and close


class TakesAnIdTwice(Right):
    def submit(self, command: Command) -> None:
        try:
            super().submit(command)
        except MisuseError as error:
            if "twice" not in str(error):
                raise


class TakesUnknownPredecessors(Right):
    def submit(self, command: Command) -> None:
        if not isinstance(command, Cancel):
            command = command._replace(after=tuple(op for op in command.after if op < 10_000))
        super().submit(command)


class TakesCommandsWhenClosed(Right):
    def submit(self, command: Command) -> None:
        try:
            super().submit(command)
        except MisuseError as error:
            if "closed" not in str(error):
                raise


class ClosesOnce(Right):
    is_closed = False

    def close(self) -> None:
        if self.is_closed:
            raise MisuseError("closed already")
        self.is_closed = True
        super().close()


class ClosesOnlyWhenIdle(Right):
    """Refuses to close while an op has not been answered."""

    num_open = 0

    def submit(self, command: Command) -> None:
        super().submit(command)
        self.num_open += not isinstance(command, Cancel)

    def completion(self, answer: Completion) -> list[Answer]:
        self.num_open -= 1
        return [answer]

    def close(self) -> None:
        if self.num_open:
            self.num_open = 0  # the second time it gives in
            raise MisuseError("ops are in flight")
        super().close()


class LeavesAThread(Right):
    """Has a thread that ends when it is told to, and is told so by the tests only."""

    told = threading.Event()

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        threading.Thread(target=self.told.wait, name="worker", daemon=True).start()


class LeavesAProcess(Right):
    children: Final[list[subprocess.Popen[bytes]]] = []

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        program = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
        self.children.append(subprocess.Popen(program, stdin=subprocess.PIPE))


class LeavesAFile(Right):
    descriptors: Final[list[int]] = []

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        self.descriptors.append(os.open(os.devnull, os.O_RDONLY))


class LeavesSharedMemory(Right):
    segments: Final[list[Path]] = []

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        descriptor, name = tempfile.mkstemp(prefix="kvsim-test-", dir="/dev/shm")
        os.close(descriptor)
        self.segments.append(Path(name))


class IsShared(Right):
    """Has one simulator for all that are alike."""

    simulators: Final[dict[str, SimBackend]] = {}

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        self.simulator = self.simulators.setdefault(repr(spec), self.simulator)

    def close(self) -> None:
        super().close()
        self.simulators.pop(repr(self.spec), None)


def clean_up() -> None:
    """Take away what was left."""
    LeavesAThread.told.set()
    LeavesAThread.told = threading.Event()
    for child in LeavesAProcess.children:
        child.communicate()
    for descriptor in LeavesAFile.descriptors:
        os.close(descriptor)
    for segment in LeavesSharedMemory.segments:
        segment.unlink()
    LeavesAProcess.children.clear()
    LeavesAFile.descriptors.clear()
    LeavesSharedMemory.segments.clear()
