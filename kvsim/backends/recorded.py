"""Records the turns of any backend, and plays them back to the core in its place.

What a run decides depends on nothing but its settings, its arrivals and the turns: the time read
and the answers taken. So a recording that is fed to the core brings back every command and every
event, also of a run on real hardware, and a difference is a change of the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.backends.turn_codec import Turn, encode, shown, tagged
from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.backends.turns import TurnWriter
    from kvsim.core.ops import Answer, Command
    from kvsim.core.ports import Backend, EventSink
    from kvsim.events import Event


class DivergenceError(KvsimError):
    """The core decided something else than was recorded.

    Parameters
    ----------
    turn
        Number of the turn, from 0.
    problem
        What was recorded there and what came now.
    """

    def __init__(self, turn: int, problem: str) -> None:
        super().__init__(f"turn {turn}: {problem}")
        self.turn, self.problem = turn, problem


class RecordingOverError(KvsimError):
    """The core asks for more than was recorded: the recorded run went no further."""


class TurnLog:
    """The turn under way, shared by a `RecordingBackend` and a `RecordingSink`.

    Attributes
    ----------
    events
        Of the turn under way. The list stays the same one.
    is_in_backend
        Whether a call of the backend is under way, or has raised.
    """

    __slots__ = ("_answers", "_commands", "_now", "_writer", "events", "is_in_backend")

    def __init__(self, writer: TurnWriter) -> None:
        self._writer = writer
        self._now: int | None = None
        self._commands: list[Command] = []
        self._answers: Sequence[Answer] | None = None
        self.events: list[Event] = []
        self.is_in_backend = False

    def begin(self, now: int) -> None:
        """Begin a turn."""
        self._now = now

    def ask(self, command: Command) -> None:
        """Take note of a command of the turn."""
        self._commands.append(command)

    def answer(self, answers: Sequence[Answer]) -> None:
        """Take note of the answers of the turn; what follows them belongs to it still."""
        self._answers = answers

    def flush(self) -> None:
        """Write the turn under way, if one has begun.

        Raises
        ------
        RecordingError
            If a value of the turn has no place in the format.
        OSError
            If the file cannot be written.
        """
        if self._now is None:
            return
        now, self._now = self._now, None
        self._writer.turn(now, self._commands, self._answers, self.events)
        self._commands.clear()
        self._answers = None
        self.events.clear()


class RecordingBackend:
    """Passes everything on to a backend and takes note; a `kvsim.core.ports.Backend` itself.

    A turn is written when the next one begins, or by `close`, since its events come as late as
    that.
    """

    __slots__ = ("_inner", "_log")

    def __init__(self, inner: Backend, log: TurnLog) -> None:
        self._inner = inner
        self._log = log

    def now(self) -> int:
        """Write the turn before, and begin one at the time of the backend (ns)."""
        log = self._log
        log.flush()
        log.is_in_backend = True
        now = self._inner.now()
        log.is_in_backend = False
        log.begin(now)
        return now

    def submit(self, command: Command) -> None:
        """Take note of a command and pass it on."""
        log = self._log
        log.ask(command)
        log.is_in_backend = True
        self._inner.submit(command)
        log.is_in_backend = False

    def wait(self, until: int | None) -> Sequence[Answer]:
        """Wait for the backend's answers and take note of them."""
        log = self._log
        log.is_in_backend = True
        answers = tuple(self._inner.wait(until))  # a list might be the backend's own
        log.is_in_backend = False
        log.answer(answers)
        return answers

    def close(self) -> None:
        """Write the last turn and close the backend. Idempotent."""
        log = self._log
        try:
            log.flush()
        finally:
            was_in_backend, log.is_in_backend = log.is_in_backend, True
            self._inner.close()
            log.is_in_backend = was_in_backend


class RecordingSink:
    """An `EventSink` that puts events into the turn under way, and passes them on if told so."""

    __slots__ = ("_events", "_onward")

    def __init__(self, log: TurnLog, onward: EventSink | None = None) -> None:
        self._events = log.events
        self._onward = onward

    def emit(self, event: Event) -> None:
        """Take one event."""
        self._events.append(event)
        if self._onward is not None:
            self._onward.emit(event)


class RecordedBackend:
    """Plays recorded turns; a `kvsim.core.ports.Backend`, and an `EventSink` for the same core.

    `now` and `wait` return what was recorded. Each command and each event is compared with the
    recorded one, byte for byte as they are in the file, when it comes. Call `finish` after the
    run: what did not come is a difference too.

    Parameters
    ----------
    turns
        The turns, read as they are needed.

    Attributes
    ----------
    num_turns
        Begun so far.
    num_compared
        Commands and events that have come and are as recorded.

    Raises
    ------
    DivergenceError
        From `now`, `submit`, `wait`, `emit` and `finish`, at the first difference.
    RecordingOverError
        From `now`, `submit` and `wait`, where the recorded run went no further.
    """

    def __init__(self, turns: Iterable[Turn]) -> None:
        self._turns = iter(turns)
        self._turn = Turn(now=0, commands=(), answers=(), events=())  # before the first
        self._num_commands = 0
        self._num_events = 0
        self.num_turns = 0
        self.num_compared = 0

    def now(self) -> int:
        """Return the recorded time of the next turn (ns)."""
        self._check_rest()
        turn = next(self._turns, None)
        if turn is None:
            raise RecordingOverError(f"the recording has {self.num_turns} turns, and work is left")
        self._turn = turn
        self.num_turns += 1
        self._num_commands = self._num_events = 0
        return turn.now

    def submit(self, command: Command) -> None:
        """Compare a command with the recorded one."""
        turn, index = self._turn, self._num_commands
        if turn.answers is None and index == len(turn.commands):
            raise RecordingOverError(f"the recording ends before command {index} of this turn")
        self._compare("command", index, turn.commands, command)
        self._num_commands += 1

    def emit(self, event: Event) -> None:
        """Compare an event with the recorded one."""
        self._compare("event", self._num_events, self._turn.events, event)
        self._num_events += 1

    def wait(self, until: int | None) -> Sequence[Answer]:
        """Return the recorded answers."""
        turn = self._turn
        self._check_rest_of("command", self._num_commands, turn.commands)
        if turn.answers is None:
            raise RecordingOverError("the recording ends before the answers of this turn")
        return turn.answers

    def close(self) -> None:
        """Do nothing: there is nothing to release. Idempotent."""

    def finish(self) -> None:
        """Look whether everything that was recorded has come.

        Raises
        ------
        DivergenceError
            If the recording goes on.
        """
        self._check_rest()
        if next(self._turns, None) is not None:
            raise DivergenceError(self.num_turns, "recorded, but now no work was left before it")

    def _compare(
        self, kind: str, index: int, recorded: Sequence[Command | Event], value: Command | Event
    ) -> None:
        if index >= len(recorded):
            raise self._divergence(kind, index, f"recorded nothing, now {shown(value)}")
        was = recorded[index]
        if encode(tagged(was)) != encode(tagged(value)):
            raise self._divergence(kind, index, _difference(was, value))
        self.num_compared += 1

    def _check_rest(self) -> None:
        self._check_rest_of("command", self._num_commands, self._turn.commands)
        self._check_rest_of("event", self._num_events, self._turn.events)

    def _check_rest_of(self, kind: str, index: int, recorded: Sequence[Command | Event]) -> None:
        if index < len(recorded):
            raise self._divergence(kind, index, f"recorded {shown(recorded[index])}, now nothing")

    def _divergence(self, kind: str, index: int, problem: str) -> DivergenceError:
        return DivergenceError(self.num_turns - 1, f"{kind} {index}: {problem}")


def _difference(was: Command | Event, now: Command | Event) -> str:
    if type(was) is not type(now):
        return f"recorded {shown(was)}, now {shown(now)}"
    place, before, after = _first_difference(type(was).__name__, was, now)
    return f"{place}: recorded {shown(before)}, now {shown(after)}"


def _first_difference(place: str, was: object, now: object) -> tuple[str, object, object]:
    """Return where two values that differ do so, as deep inside as can be told, and the parts."""
    if isinstance(was, tuple) and isinstance(now, tuple) and len(was) == len(now):
        names = getattr(was, "_fields", None)  # of a named tuple
        for index, (one, other) in enumerate(zip(was, now, strict=True)):
            if one != other:
                inner = f".{names[index]}" if names else f"[{index}]"
                return _first_difference(place + inner, one, other)
    return place, was, now
