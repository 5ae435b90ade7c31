"""Stands before a backend, passes calls on, and holds each of them to the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn, cast

from kvsim.core.ops import Cancel, Completion, Forward, Gate, Outcome, Settled
from kvsim.errors import BackendContractError, MisuseError
from kvsim.testing.backends.contract import Sentence, broken, require
from kvsim.testing.backends.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.core.ops import Answer, Command, Transfer
    from kvsim.core.ports import Backend
    from kvsim.testing.backends.spec import BackendSpec
    from kvsim.types import OpId

_READS_A_PAUSE: Final = 50_000  # tens of milliseconds of real time; then it is virtual


class CallLog:
    """Which call a check has made last, and the sentence it breaks if it does not return."""

    def __init__(self) -> None:
        self.sentence = Sentence.PROGRESS
        self.call = "making the backend"

    def enter(self, sentence: Sentence, call: str) -> None:
        """Take note of a call."""
        self.sentence, self.call = sentence, call


class Witness:
    """A backend under test, with all that it was told and all that it answered.

    Checks each call, and each answer by itself; `check_end` checks how they hang together.

    Attributes
    ----------
    write
        Writes the ops.
    completions, settled
        The answers, by op.
    in_flight
        Ops that still owe an answer; none once the backend is closed.

    Raises
    ------
    BackendContractError
        From any call that breaks the contract.
    """

    def __init__(self, backend: Backend, spec: BackendSpec, log: CallLog) -> None:
        self._backend = backend
        self._log = log
        self._read_at: int | None = None
        self._rested_at: dict[OpId, int] = {}
        self.spec = spec
        self.write = Scenario(spec)
        self.commands: dict[OpId, Forward | Transfer] = {}
        self.cancelled: set[OpId] = set()
        self.completions: dict[OpId, Completion] = {}
        self.settled: dict[OpId, Settled] = {}
        self.in_flight: set[OpId] = set()

    def now(self) -> int:
        """Read the time."""
        value = self._backend.now()
        require(type(value) is int, Sentence.CLOCK, f"now() returned {value!r}, not an int")
        if self._read_at is not None and value < self._read_at:
            broken(Sentence.CLOCK, f"now() returned {value} after {self._read_at}")
        self._read_at = value
        return value

    def ticks(self, num_ticks: int) -> int:
        """Return a number of ticks in nanoseconds."""
        return num_ticks * self.spec.tick_ns

    def submit(self, command: Command) -> OpId:
        """Submit a command; return the id of its op."""
        try:
            self._pass_on(command)
        except MisuseError as error:
            sentence = Sentence.IDLE_CANCEL if isinstance(command, Cancel) else Sentence.MISUSE
            problem = f"submit({_name(command)}) was refused ({error})"
            raise BackendContractError(sentence, problem) from error
        if isinstance(command, Cancel):
            self.cancelled.add(command.op_id)
        else:
            self.commands[command.op_id] = command
            self.in_flight.add(command.op_id)
        return command.op_id

    def cancel(self, op_id: OpId) -> None:
        """Submit a Cancel of an op."""
        self.submit(Cancel(op_id=op_id))

    def refuses(self, command: Command, why: str) -> None:
        """Submit a command that must be refused."""
        try:
            self._pass_on(command, Sentence.MISUSE)
        except MisuseError:
            return
        broken(Sentence.MISUSE, f"submit() took a command that it must refuse: {why}")

    def wait(self, until: int | None) -> list[Answer]:
        """Wait once."""
        before = self.now()
        call = f"wait({until}) at {before} with {_ops(self.in_flight)} in flight"
        is_idle = until is not None or not self.in_flight
        self._log.enter(Sentence.EMPTY_WAIT if is_idle else Sentence.PROGRESS, call)
        answers = list(self._backend.wait(until))
        after = self.now()
        if not answers and until is not None and after < until:
            broken(Sentence.EMPTY_WAIT, f"{call} returned nothing at {after}")
        order: list[tuple[int, OpId]] = []
        for answer in answers:
            self._take(answer, before, after)
            order.append((answer.finished_at, answer.op_id))
        require(order == sorted(order), Sentence.WAIT, f"{call} returned (time, op id)s {order}")
        return answers

    def wait_ticks(self, num_ticks: int) -> None:
        """Go on for a number of ticks, and take what is answered meanwhile."""
        until = self.now() + self.ticks(num_ticks)
        while self.now() < until:
            self.wait(until)

    def look_away(self, num_ticks: int) -> None:
        """Read the clock until it has moved by a number of ticks; not for ever: it may stand."""
        until = self.now() + self.ticks(num_ticks)
        for _ in range(_READS_A_PAUSE):
            if self.now() >= until:
                return

    def wait_for(self, *op_ids: OpId) -> None:
        """Wait for the Completions of these ops."""
        while not self.completions.keys() >= set(op_ids):
            if not self.wait(None):
                self._blame(Sentence.ONE_COMPLETION)

    def drain(self, *, sentence: Sentence = Sentence.ONE_COMPLETION) -> None:
        """Wait until nothing is in flight; `sentence` is broken if an answer never comes."""
        while self.in_flight:
            if not self.wait(None):
                self._blame(sentence)

    def finish(self) -> None:
        """Drain, make sure that no more is answered, and check how all answers hang together."""
        self.drain()
        require(not self.wait(None), Sentence.EMPTY_WAIT, "wait(None) with nothing in flight")
        self.wait_ticks(2)
        self.check_end()

    def close(self) -> None:
        """Close the backend. Idempotent, as `Backend.close` must be."""
        sentence = Sentence.CLOSE_IN_FLIGHT if self.in_flight else Sentence.CLOSE
        self._log.enter(sentence, "close()")
        try:
            self._backend.close()
        except MisuseError as error:
            raise BackendContractError(sentence, f"close() raised {error!r}") from error
        self.in_flight.clear()

    def completion(self, op_id: OpId, *outcomes: Outcome, sentence: Sentence) -> Completion:
        """Return the answer to an op; `sentence` is broken if it has none of `outcomes`."""
        answer = self.completions[op_id]
        if answer.outcome not in outcomes:
            wanted = " or ".join(outcome.name for outcome in outcomes)
            broken(sentence, f"{_name(self.commands[op_id])} ended {_ending(answer)}, not {wanted}")
        return answer

    def check_end(self) -> None:
        """Check outcomes, predecessors, gates and queues of all ops that were answered."""
        last: dict[int, OpId] = {}
        for op_id, command in self.commands.items():
            answer = self.completions[op_id]
            self._check_outcome(command, answer)
            if answer.outcome is not Outcome.DONE:
                continue
            for predecessor_id in command.after:
                self._check_gate(command, answer, predecessor_id)
            if isinstance(command, Forward):
                before = last.get(command.instance)
                if before is not None and answer.started_at < self._rested_at[before]:
                    broken(
                        Sentence.SUBMISSION_ORDER,
                        f"forward {op_id} started at {answer.started_at}, before forward {before}"
                        f" of its instance had ended at {self._rested_at[before]}",
                    )
                last[command.instance] = op_id

    def _pass_on(self, command: Command, sentence: Sentence = Sentence.SUBMIT) -> None:
        call = f"submit({_name(command)})"
        self._log.enter(sentence, call)
        given = cast("Callable[[Command], object]", self._backend.submit)(command)
        require(given is None, Sentence.SUBMIT, f"{call} returned {given!r}")

    def _take(self, answer: Answer, before: int, after: int) -> None:
        op_id, at = answer.op_id, answer.finished_at
        what = f"{type(answer).__name__} of op {op_id}"
        require(type(at) is int, Sentence.TIMES, f"{what}: finished_at is {at!r}")
        if not before <= at <= after:
            broken(
                Sentence.FINISH_WINDOW,
                f"{what} has finished_at {at}, but now() was {before} before it and {after} after",
            )
        if isinstance(answer, Settled):
            timed_out = self.completions.get(op_id)
            if timed_out is None or timed_out.outcome is not Outcome.TIMED_OUT:
                broken(Sentence.ONE_SETTLED, f"{what}, which has not timed out")
            require(op_id not in self.settled, Sentence.ONE_SETTLED, f"a second {what}")
            self.settled[op_id] = answer
        else:
            self._take_completion(answer, what)
            # Dated by the last now(), it may have ended at any time since it started.
            self._rested_at[op_id] = at if at > before else answer.started_at
        self.write.settle(answer)
        if not (isinstance(answer, Completion) and answer.outcome is Outcome.TIMED_OUT):
            self.in_flight.discard(op_id)

    def _take_completion(self, answer: Completion, what: str) -> None:
        op_id, command = answer.op_id, self.commands.get(answer.op_id)
        if command is None:
            sentence = (
                Sentence.CANCEL_HAS_NO_ANSWER
                if op_id in self.cancelled
                else Sentence.ONE_COMPLETION
            )
            broken(sentence, f"{what}, which was never submitted")
        if op_id in self.completions:
            was_cancelled = Outcome.CANCELLED in (answer.outcome, self.completions[op_id].outcome)
            broken(
                Sentence.CANCEL_HAS_NO_ANSWER if was_cancelled else Sentence.ONE_COMPLETION,
                f"a second {what}: {_ending(answer)} after {_ending(self.completions[op_id])}",
            )
        start, end = answer.started_at, answer.finished_at
        if type(start) is not int or start > end:
            broken(Sentence.TIMES, f"{what} started at {start!r} and finished at {end!r}")
        self._check_steps(command, answer)
        self._check_layers(answer, what)
        self.completions[op_id] = answer

    def _check_steps(self, command: Forward | Transfer, answer: Completion) -> None:
        steps, most = answer.steps_done, command.num_steps if isinstance(command, Forward) else 0
        what = f"{_name(command)} ended {_ending(answer)} with steps_done {steps!r}"
        require(type(steps) is int and 0 <= steps <= most, Sentence.STEPS_DONE, f"{what} of {most}")
        was_cancelled = answer.op_id in self.cancelled
        if answer.outcome is Outcome.DONE:
            require(was_cancelled or steps == most, Sentence.ALL_STEPS, f"{what} of {most}")
            require(steps or not most, Sentence.STEP_BOUNDARY, what)
        elif answer.outcome is Outcome.CANCELLED:
            require(not steps, Sentence.STEP_BOUNDARY, what)

    def _check_layers(self, answer: Completion, what: str) -> None:
        layers = answer.layers_finished_at
        if not layers:
            return
        require(
            len(layers) == self.spec.num_layers,
            Sentence.LAYER_TIMES,
            f"{what} has {len(layers)} layer times for {self.spec.num_layers} layers",
        )
        times = [answer.started_at, *layers, answer.finished_at]
        require(
            times == sorted(times),
            Sentence.LAYER_ORDER,
            f"{what} has start, layers and finish {times}",
        )

    def _check_outcome(self, command: Forward | Transfer, answer: Completion) -> None:
        doomed_by = [
            op_id for op_id in command.after if self.completions[op_id].outcome is not Outcome.DONE
        ]
        what = f"{_name(command)} ended {_ending(answer)}"
        match answer.outcome:
            case Outcome.DONE:
                if doomed_by:
                    other = _ending(self.completions[doomed_by[0]])
                    broken(
                        Sentence.FAILS_WITH_PREDECESSOR,
                        f"{what}, though op {doomed_by[0]}, which it waits for, ended {other}",
                    )
            case Outcome.FAILED:
                may_fail = doomed_by or self.spec.faults is not None
                require(may_fail, Sentence.ENDS_DONE, f"{what} ({answer.reason!r})")
                require(answer.reason, Sentence.REASON, f"{what}, and gives no reason")
            case Outcome.CANCELLED:
                require(
                    answer.op_id in self.cancelled, Sentence.ENDS_DONE, f"{what} without a Cancel"
                )
            case Outcome.TIMED_OUT:
                deadline_at = command.deadline_at
                if deadline_at is None or answer.finished_at < deadline_at:
                    broken(
                        Sentence.DEADLINE,
                        f"{what} at {answer.finished_at}; its deadline is {deadline_at}",
                    )

    def _check_gate(
        self, command: Forward | Transfer, answer: Completion, predecessor_id: OpId
    ) -> None:
        rested_at = self._rested_at[predecessor_id]
        what = f"{_name(command)}, which waits for op {predecessor_id} ({command.gate} gate),"
        if command.gate is Gate.OP:
            if answer.started_at < rested_at:
                broken(
                    Sentence.GATE_OP,
                    f"{what} started at {answer.started_at}, before its end at {rested_at}",
                )
            return
        if answer.finished_at < rested_at:
            broken(
                Sentence.GATE_LAYER,
                f"{what} finished at {answer.finished_at}, before it did at {rested_at}",
            )
        theirs = self.completions[predecessor_id].layers_finished_at
        for layer, (at, floor) in enumerate(zip(answer.layers_finished_at, theirs, strict=False)):
            if at < floor:
                broken(
                    Sentence.GATE_LAYER,
                    f"{what} finished layer {layer} at {at}, before it did at {floor}",
                )

    def _blame(self, sentence: Sentence) -> NoReturn:
        """Report that ops in flight are not answered, by what they waited for."""
        what = f"wait(None) returned nothing, with {_ops(self.in_flight)} in flight"
        require(not self._backend.wait(None), Sentence.EMPTY_WAIT, f"{what}, and then an answer")
        for op_id in sorted(self.in_flight):
            if op_id in self.completions:
                broken(Sentence.ONE_SETTLED, f"op {op_id} has timed out and never settles")
            for predecessor_id in self.commands[op_id].after:
                other = self.completions.get(predecessor_id)
                if other is not None and other.outcome is not Outcome.DONE:
                    broken(
                        Sentence.FAILS_WITH_PREDECESSOR,
                        f"{_name(self.commands[op_id])} is not answered, though op"
                        f" {predecessor_id}, which it waits for, ended {_ending(other)}",
                    )
        broken(sentence, what)


def _name(command: Command) -> str:
    return f"{type(command).__name__.lower()} {command.op_id}"


def _ending(answer: Completion) -> str:
    return answer.outcome.name


def _ops(op_ids: set[OpId]) -> str:
    """Name a few ops of a set."""
    if not op_ids:
        return "nothing"
    first = sorted(op_ids)[:5]
    more = "" if len(first) == len(op_ids) else f" and {len(op_ids) - len(first)} more"
    return f"ops {', '.join(map(str, first))}{more}"
