"""The turns of a run, kept beside its events: what happened when.

An event names what was decided, not the time. The turn it belongs to does: decisions of a step are
made at the time that was read, those that follow from an answer at the finish of that answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.core.ops import Answer, Command
    from kvsim.core.ports import Backend
    from kvsim.events import Event


class TurnRecord(NamedTuple):
    """One turn of the engine.

    `events[first_event:num_step_events]` of the run were decided by the step at `now` (ns), those
    up to `num_events` when the answers were taken.
    """

    now: int
    commands: tuple[Command, ...]
    answers: tuple[Answer, ...]
    first_event: int
    num_step_events: int
    num_events: int


class TimelineBackend:
    """Passes everything on to a backend and keeps the turns; a `kvsim.core.ports.Backend` itself.

    Parameters
    ----------
    inner
        The backend.
    events
        The list that the events of the run are appended to.
    turns
        Where the turns go. The last is complete after `close`.
    """

    __slots__ = ("_commands", "_events", "_inner", "_open", "_turns")

    def __init__(self, inner: Backend, events: Sequence[Event], turns: list[TurnRecord]) -> None:
        self._inner = inner
        self._events = events
        self._turns = turns
        self._commands: list[Command] = []
        self._open: TurnRecord | None = None

    def now(self) -> int:
        """End the turn before, and begin one at the time of the backend (ns)."""
        self.end_turn()
        now = self._inner.now()
        first = len(self._events)
        self._open = TurnRecord(now, (), (), first, first, first)
        return now

    def submit(self, command: Command) -> None:
        """Take note of a command and pass it on."""
        self._commands.append(command)
        self._inner.submit(command)

    def wait(self, until: int | None) -> Sequence[Answer]:
        """Wait for the backend's answers and take note of them."""
        num_step_events = len(self._events)
        answers = tuple(self._inner.wait(until))
        if self._open is not None:
            self._open = self._open._replace(answers=answers, num_step_events=num_step_events)
        return answers

    def close(self) -> None:
        """End the last turn and close the backend. Idempotent."""
        self.end_turn()
        self._inner.close()

    def end_turn(self) -> None:
        """Keep the turn under way, if one has begun."""
        if self._open is not None:
            turn = self._open._replace(commands=tuple(self._commands), num_events=len(self._events))
            self._turns.append(turn)
            self._open = None
        self._commands.clear()


def timed_events(
    events: Sequence[Event], turns: Sequence[TurnRecord]
) -> Iterator[tuple[int, Event]]:
    """Yield (time in ns, event) in order; times never decrease.

    Where several ops have ended in one turn at different times, which only a wall clock brings
    about, an event without a time of its own has that of the one before.
    """
    at = 0
    for turn in turns:
        at = max(at, turn.now)
        for event in events[turn.first_event : turn.num_step_events]:
            yield at, event
        if turn.answers:
            at = max(at, turn.answers[0].finished_at)
        for event in events[turn.num_step_events : turn.num_events]:
            at = max(at, getattr(event, "at", at))
            yield at, event
