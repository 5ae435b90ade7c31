"""Taking note of turns beside any backend, and playing them in its place."""

from __future__ import annotations

from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvsim.backends.recorded import (
    DivergenceError,
    RecordedBackend,
    RecordingBackend,
    RecordingOverError,
    RecordingSink,
    TurnLog,
)
from kvsim.backends.turn_codec import Header, Turn
from kvsim.backends.turns import TurnReader, TurnWriter
from kvsim.core.ops import Cancel, Completion, Outcome, Place, Settled, Transfer
from kvsim.events import AttemptEnded, BlocksStored, EndReason, OpAnswered, RequestEnded
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.core.ops import Answer, Command
    from kvsim.events import Event

GPU, CPU = Place(instance=0, tier=0), Place(instance=0, tier=1)
DOWN = Transfer(0, GPU, CPU, (1, 2), (3, 4))
DONE = Completion(0, Outcome.DONE, 5, 9)
STORED = BlocksStored(1, ("a", "b"), (3, 4))
ANSWERED = OpAnswered(9, 0, "done")
ENDED = RequestEnded(9, 0, "finished")


class Hardware:
    """A backend that answers from a script, in a list of its own that it uses again."""

    def __init__(self, *answers: Sequence[Answer], fails_in: str = "") -> None:
        self.calls: list[object] = []
        self._answers = list(answers)
        self._batch: list[Answer] = []
        self._fails_in = fails_in

    def now(self) -> int:
        self._call("now")
        return 10 * self.calls.count("now")

    def submit(self, command: Command) -> None:
        self._call(command)

    def wait(self, until: int | None) -> Sequence[Answer]:
        self._call(("wait", until))
        self._batch[:] = self._answers.pop(0)
        return self._batch

    def close(self) -> None:
        self._call("close")

    def _call(self, call: object) -> None:
        self.calls.append(call)
        if self._fails_in and self._fails_in in str(call):
            raise OSError(f"lost in {self._fails_in}")


class Desk:
    """A log on a file in memory."""

    def __init__(self) -> None:
        self._stream = BytesIO()
        header = Header("0", {}, "t", "f", None, 4, PartialRule.COUNT, 0)
        self.writer = TurnWriter(self._stream, Path("run"), header, ())
        self.log = TurnLog(self.writer)

    def turns(self) -> list[Turn]:
        """End the file; return the turns in it."""
        self.writer.end(None)
        self._stream.seek(0)
        turns = TurnReader(self._stream, Path("run"))
        return list(islice(turns, self.writer.num_turns))  # the end may not fit the last of them


class Listener:
    def __init__(self) -> None:
        self.heard: list[Event] = []

    def emit(self, event: Event) -> None:
        self.heard.append(event)


# -- recording


def test_everything_is_passed_on_and_taken_down() -> None:
    desk, hardware, listener = Desk(), Hardware([DONE], [], []), Listener()
    backend = RecordingBackend(hardware, desk.log)
    sink = RecordingSink(desk.log, listener)
    assert backend.now() == 10
    sink.emit(STORED)
    backend.submit(DOWN)
    backend.submit(Cancel(0))
    assert backend.wait(99) == (DONE,)
    sink.emit(ANSWERED)  # while the answer is settled: of the same turn
    assert desk.writer.num_turns == 0
    assert backend.now() == 20
    assert desk.writer.num_turns == 1
    assert backend.wait(None) == ()
    backend.close()
    assert hardware.calls == [
        *["now", DOWN, Cancel(0), ("wait", 99)],
        *["now", ("wait", None), "close"],
    ]
    assert listener.heard == [STORED, ANSWERED]
    assert desk.turns() == [
        Turn(10, (DOWN, Cancel(0)), (DONE,), (STORED, ANSWERED)),
        Turn(20, (), (), ()),
    ]


def test_without_another_sink_events_are_taken_down_all_the_same() -> None:
    desk = Desk()
    backend = RecordingBackend(Hardware(), desk.log)
    backend.now()
    RecordingSink(desk.log).emit(ENDED)
    backend.close()
    assert desk.turns() == [Turn(10, (), None, (ENDED,))]


def test_answers_are_kept_though_the_backend_uses_its_list_again() -> None:
    desk, settled = Desk(), Settled(0, 12)
    backend = RecordingBackend(Hardware([DONE], [settled]), desk.log)
    backend.now()
    first = backend.wait(None)
    backend.now()
    backend.wait(None)
    backend.close()
    assert first == (DONE,)
    assert [turn.answers for turn in desk.turns()] == [(DONE,), (settled,)]


def test_closing_twice_writes_the_last_turn_once() -> None:
    desk, hardware = Desk(), Hardware([])
    backend = RecordingBackend(hardware, desk.log)
    backend.now()
    backend.wait(None)
    backend.close()
    backend.close()
    assert desk.turns() == [Turn(10, (), (), ())]
    assert hardware.calls.count("close") == 2


def test_closing_before_the_first_turn_writes_none() -> None:
    desk = Desk()
    RecordingBackend(Hardware(), desk.log).close()
    assert desk.turns() == []


@pytest.mark.parametrize(
    ("fails_in", "turns"),
    [
        ("now", []),
        ("Cancel", [Turn(10, (DOWN, Cancel(0)), None, (STORED,))]),
        ("wait", [Turn(10, (DOWN, Cancel(0), Cancel(1)), None, (STORED,))]),
        ("close", [Turn(10, (DOWN, Cancel(0), Cancel(1)), (DONE,), (STORED, ANSWERED))]),
    ],
)
def test_a_backend_that_raises_leaves_the_turn_as_far_as_it_came(
    fails_in: str, turns: list[Turn]
) -> None:
    desk = Desk()
    backend = RecordingBackend(Hardware([DONE], fails_in=fails_in), desk.log)

    def one_turn() -> None:
        backend.now()
        desk.log.events.append(STORED)
        for command in (DOWN, Cancel(0), Cancel(1)):
            backend.submit(command)
        backend.wait(None)
        desk.log.events.append(ANSWERED)
        backend.close()

    with pytest.raises(OSError, match=f"lost in {fails_in}"):
        one_turn()
    if fails_in != "close":
        backend.close()
    assert desk.log.is_in_backend
    assert desk.turns() == turns


def test_an_error_of_the_core_is_not_taken_for_one_of_the_backend() -> None:
    desk = Desk()
    backend = RecordingBackend(Hardware([DONE]), desk.log)
    backend.now()
    backend.submit(DOWN)
    backend.wait(None)
    backend.close()
    assert not desk.log.is_in_backend


# -- playing

WHOLE = Turn(10, (DOWN, Cancel(0)), (DONE,), (STORED, ANSWERED))
OPEN = Turn(20, (DOWN,), None, (STORED,))


def play(
    backend: RecordedBackend,
    commands: Sequence[Command] = (DOWN, Cancel(0)),
    before: Sequence[Event] = (STORED,),
    after: Sequence[Event] = (ANSWERED,),
) -> None:
    """Do what the recorded core did in a turn, or something else."""
    backend.now()
    for event in before:
        backend.emit(event)
    for command in commands:
        backend.submit(command)
    backend.wait(None)
    for event in after:
        backend.emit(event)


def test_what_was_recorded_is_told_again() -> None:
    backend = RecordedBackend([WHOLE, WHOLE._replace(now=30, answers=())])
    assert backend.now() == 10
    backend.emit(STORED)
    backend.submit(DOWN)
    backend.submit(Cancel(0))
    assert backend.wait(7) == (DONE,)
    backend.emit(ANSWERED)
    assert backend.now() == 30
    assert backend.num_turns == 2


def test_the_same_again_is_no_difference() -> None:
    backend = RecordedBackend([WHOLE, WHOLE])
    play(backend)
    play(backend)
    backend.finish()
    backend.close()
    backend.close()


def test_turns_are_read_one_by_one() -> None:
    taken = []

    def turns() -> Iterator[Turn]:
        for turn in (WHOLE, WHOLE):
            taken.append(turn)
            yield turn

    play(RecordedBackend(turns()))
    assert len(taken) == 1


@pytest.mark.parametrize(
    ("commands", "before", "after", "problem"),
    [
        pytest.param(
            (DOWN._replace(target_ids=(3, 5)), Cancel(0)), (STORED,), (ANSWERED,),
            "command 0: Transfer.target_ids[1]: recorded 4, now 5", id="part of a command",
        ),
        pytest.param(
            (DOWN._replace(target=GPU), Cancel(0)), (STORED,), (ANSWERED,),
            "command 0: Transfer.target: recorded Place(instance=0, tier=1), now"
            " Place(instance=0, tier=0)",
            id="place",
        ),
        pytest.param(
            (DOWN._replace(source_ids=(1,)), Cancel(0)), (STORED,), (ANSWERED,),
            "command 0: Transfer.source_ids: recorded (1, 2), now (1,)", id="length",
        ),
        pytest.param(
            (Cancel(0), DOWN), (STORED,), (ANSWERED,),
            "command 0: recorded Transfer(op_id=0, source=Place(instance=0, tier=0), target=P...,"
            " now Cancel(op_id=0)", id="order",
        ),
        pytest.param(
            (DOWN, Cancel(0), Cancel(1)), (STORED,), (ANSWERED,),
            "command 2: recorded nothing, now Cancel(op_id=1)", id="one more",
        ),
        pytest.param(
            (DOWN,), (STORED,), (ANSWERED,),
            "command 1: recorded Cancel(op_id=0), now nothing", id="one less",
        ),
        pytest.param(
            (DOWN, Cancel(False)), (STORED,), (ANSWERED,),
            "command 1: Cancel: recorded Cancel(op_id=0), now Cancel(op_id=False)", id="equal",
        ),
        pytest.param(
            (DOWN, Cancel(0)), (BlocksStored(1, ("a", "c"), (3, 4)),), (ANSWERED,),
            "event 0: BlocksStored.keys[1]: recorded 'b', now 'c'", id="part of an event",
        ),
        pytest.param(
            (DOWN, Cancel(0)), (AttemptEnded(9, 0, 0, EndReason.FINISHED),), (ANSWERED,),
            "event 0: recorded BlocksStored(tier=1, keys=('a', 'b'), block_ids=(3, 4)), now"
            " AttemptEnded(at=9, request_id=0, attempt=0, reason=<EndReaso...", id="event",
        ),
        pytest.param(
            (DOWN, Cancel(0)), (), (ANSWERED,),
            "event 0: recorded BlocksStored(tier=1, keys=('a', 'b'), block_ids=(3, 4)), now"
            " OpAnswered(at=9, op_id=0, outcome='done')", id="first event less",
        ),
        pytest.param(
            (DOWN, Cancel(0)), (STORED,), (ANSWERED, ENDED),
            "event 2: recorded nothing, now RequestEnded(at=9, request_id=0, status='finished')",
            id="event more",
        ),
        pytest.param(
            (DOWN, Cancel(0)), (STORED,), (),
            "event 1: recorded OpAnswered(at=9, op_id=0, outcome='done'), now nothing",
            id="last event less",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_last", [True, False])
def test_the_first_difference_is_told(
    commands: Sequence[Command],
    before: Sequence[Event],
    after: Sequence[Event],
    problem: str,
    is_last: bool,
) -> None:
    backend = RecordedBackend([WHOLE, WHOLE] if is_last else [WHOLE, WHOLE, WHOLE])
    play(backend)

    def another_turn() -> None:
        play(backend, commands, before, after)
        backend.finish() if is_last else backend.now()

    with pytest.raises(DivergenceError) as caught:
        another_turn()
    assert str(caught.value) == f"turn 1: {problem}"
    assert (caught.value.turn, caught.value.problem) == (1, problem)


def test_work_that_was_not_left_then_is_told_apart() -> None:
    backend = RecordedBackend([WHOLE])
    play(backend)
    with pytest.raises(RecordingOverError, match="the recording has 1 turns, and work is left"):
        backend.now()


def test_work_that_is_not_left_now_is_a_difference() -> None:
    backend = RecordedBackend([WHOLE, WHOLE])
    play(backend)
    with pytest.raises(DivergenceError, match="turn 1: recorded, but now no work was left"):
        backend.finish()


def test_a_turn_that_was_not_finished_ends_where_it_ended_then() -> None:
    backend = RecordedBackend([OPEN])
    with pytest.raises(RecordingOverError, match="ends before the answers of this turn"):
        play(backend, commands=[DOWN])
    backend = RecordedBackend([OPEN])
    with pytest.raises(RecordingOverError, match="ends before command 1 of this turn"):
        play(backend)
    backend = RecordedBackend([OPEN])
    with pytest.raises(DivergenceError, match="turn 0: command 0: recorded Transfer"):
        play(backend, commands=[])
