"""The one engine loop, shared by every backend: nobody is told whether time is simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kvsim.errors import StalledError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ops import Answer, Command
    from kvsim.core.ports import Backend


class Decider(Protocol):
    """What the loop drives: a scheduler."""

    def has_work(self) -> bool:
        """Whether a request is left or an op has not settled."""

    def step(self, now: int) -> Sequence[Command]:
        """Decide; return the commands to submit."""

    def next_wakeup_at(self) -> int | None:
        """When `step` must be called again even if nothing is answered."""

    def settle(self, answer: Answer) -> None:
        """Take one answer."""


class TurnObserver(Protocol):
    """Sees every turn of the loop; a recording is the list of them."""

    def turn(self, now: int, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
        """Take one turn: the time read, what was submitted, what was answered."""


def run(scheduler: Decider, backend: Backend, *, observer: TurnObserver | None = None) -> int:
    """Drive `scheduler` on `backend` until no work is left; return the number of turns.

    Raises
    ------
    StalledError
        If work is left but nothing was submitted, nothing was answered and no wake-up is due.
    """
    turns = 0
    while scheduler.has_work():
        now = backend.now()
        commands = scheduler.step(now)
        for command in commands:
            backend.submit(command)
        wakeup_at = scheduler.next_wakeup_at()
        answers = backend.wait(wakeup_at)
        for answer in answers:
            scheduler.settle(answer)
        if observer is not None:
            observer.turn(now, commands, answers)
        if not (answers or commands or wakeup_at is not None or not scheduler.has_work()):
            raise StalledError(
                f"work is left at {now} ns, but nothing is in flight and none is due"
            )
        turns += 1
    return turns
