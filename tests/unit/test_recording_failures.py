"""A run that raises leaves a recording that raises again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvsim.backends.recorded import DivergenceError
from kvsim.backends.turn_codec import End, Failure
from kvsim.errors import (
    InvariantError,
    PolicyError,
    StalledError,
)
from kvsim.policies.lru import LRU
from kvsim.recording import rerun
from tests.unit.recordings import (
    BUSY,
    STORY,
    Around,
    busy_trace,
    contents,
    raising,
    record,
    record_story,
)
from tests.unit.stories import back_from_below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ops import Answer, Command
    from kvsim.core.ports import AccessInfo, Peel, PolicyContext
    from kvsim.events import Event
    from kvsim.policies.registry import PolicyMaker
    from kvsim.types import NodeId

ROOT = Path(__file__).parents[2]


def breaks(error: type[Exception], *, call: str, after: int) -> PolicyMaker:
    """Return a policy that raises when a call of it has come so often."""

    class Breaks(LRU):
        def __init__(self, context: PolicyContext) -> None:
            super().__init__(context)
            self.num_calls = 0
            self.count("__init__")

        def count(self, name: str) -> None:
            self.num_calls += name == call
            if self.num_calls > after:
                raise error(f"{call} is too much:\n\ud800 {after}")

        def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
            self.count("choose_victims")
            return super().choose_victims(n, peel, now)

        def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
            self.count("on_release")
            super().on_release(path, info)

    return Breaks


# -- the core raises


@pytest.mark.parametrize("error", [ValueError, KeyError, InvariantError, PolicyError, StalledError])
@pytest.mark.parametrize(
    ("call", "after", "is_settling"),
    [("choose_victims", 40, False), ("on_release", 50, True), ("__init__", 0, None)],
)
def test_an_error_of_the_core_comes_again_at_the_same_turn(
    tmp_path: Path, error: type[Exception], call: str, after: int, is_settling: bool | None
) -> None:
    path, policy = tmp_path / "run.turns", breaks(error, call=call, after=after)
    with pytest.raises(error, match=f"{call} is too much") as raised:
        record(path, busy_trace(), BUSY, policy=policy)
    _, _, turns, end = contents(path)
    text = str(raised.value).replace("\ud800", "\\ud800")  # which no file can hold
    assert end == End(len(turns), Failure(error.__name__, text, by_backend=False))
    if is_settling is None:
        assert turns == []
    else:
        assert (turns[-1].answers is not None) == is_settling
        assert turns[-1].events
    again = rerun(path, policy=policy)
    assert (again.difference, again.ended_well, again.turns) == (None, False, len(turns))
    assert type(again.error) is error
    assert str(again.error) == str(raised.value)
    assert again.failure == end.failure


def test_a_bug_that_was_mended_is_a_difference_at_that_turn(tmp_path: Path) -> None:
    path = tmp_path / "run.turns"
    for call, after in (("choose_victims", 40), ("on_release", 50)):
        with pytest.raises(KeyError):
            record(path, busy_trace(), BUSY, policy=breaks(KeyError, call=call, after=after))
        last = len(contents(path)[2]) - 1
        again = rerun(path, policy="lru")
        assert again.difference is not None
        assert again.difference.startswith(f"turn {last}: ")
        assert not again.ended_well


def test_another_error_than_then_is_a_difference(tmp_path: Path) -> None:
    path = tmp_path / "run.turns"
    with pytest.raises(KeyError):
        record(path, busy_trace(), BUSY, policy=breaks(KeyError, call="on_release", after=50))
    again = rerun(path, policy=breaks(IndexError, call="on_release", after=50))
    last = len(contents(path)[2]) - 1
    assert (again.difference or "").startswith(f"turn {last}: recorded KeyError: ")
    assert ", now IndexError: on_release is too much" in (again.difference or "")
    assert type(again.error) is IndexError


def test_an_error_that_did_not_come_then_is_a_difference(tmp_path: Path) -> None:
    path = record_story(tmp_path / "run.turns")
    again = rerun(path, policy=breaks(KeyError, call="on_release", after=1))
    assert (again.difference or "").startswith("turn ")
    assert "recorded the run ended well, now KeyError: " in (again.difference or "")


# -- the backend raises


@pytest.mark.parametrize(
    ("call", "after", "num_turns"),
    [("now", 100, 100), ("wait", 100, 101), ("submit", 100, None), ("close", 0, None)],
)
def test_a_run_whose_backend_died_is_decided_alike_up_to_there(
    tmp_path: Path, call: str, after: int, num_turns: int | None
) -> None:
    path = tmp_path / "run.turns"
    died = RuntimeError("worker 1 is gone")
    with pytest.raises(RuntimeError, match="worker 1 is gone"):
        record(
            path,
            busy_trace(),
            BUSY,
            wrap=lambda inner: Around(inner, call, after, raising(died)),
        )
    _, _, turns, end = contents(path)
    assert end.failure == Failure("RuntimeError", "worker 1 is gone", by_backend=True)
    assert num_turns in (None, len(turns))
    if call == "submit":  # the command that it did not take is there, and it is the last
        assert sum(len(turn.commands) for turn in turns) == after + 1
    again = rerun(path)
    assert (again.difference, again.error, again.ended_well) == (None, None, False)
    assert again.turns == len(turns)


def test_a_run_whose_backend_died_may_differ_before(tmp_path: Path) -> None:
    path = tmp_path / "run.turns"
    with pytest.raises(RuntimeError):
        record(
            path,
            busy_trace(),
            BUSY,
            wrap=lambda inner: Around(inner, "wait", 700, raising(RuntimeError())),
        )
    again = rerun(path, policy="fifo")
    assert isinstance(again.error, DivergenceError)
    assert again.error.turn < 700


class Silent:
    """A backend on which nothing ever ends, though it does not say so."""

    def now(self) -> int:
        return 0

    def submit(self, command: Command) -> None:
        pass

    def wait(self, until: int | None) -> Sequence[Answer]:
        return ()

    def close(self) -> None:
        pass


def test_a_stall_comes_again(tmp_path: Path) -> None:
    path = tmp_path / "run.turns"
    one = replace(back_from_below(), requests=back_from_below().requests[:1])
    with pytest.raises(StalledError, match="work is left at 0 ns"):
        record(path, one, STORY, wrap=lambda _: Silent())
    turns = contents(path)[2]
    # The prompt is submitted; nothing is answered; in the second turn nothing is left to do.
    assert [(len(turn.commands), turn.answers) for turn in turns] == [(1, ()), (0, ())]
    again = rerun(path)
    assert again.identical
    assert isinstance(again.error, StalledError)


# -- something else raises


class DeafSink:
    def emit(self, event: Event) -> None:
        raise OSError("nobody listens")


def test_an_error_from_outside_the_core_is_told_as_a_difference(tmp_path: Path) -> None:
    path = tmp_path / "run.turns"
    with pytest.raises(OSError, match="nobody listens"):
        record(path, back_from_below(), STORY, onward=DeafSink())
    again = rerun(path)
    assert (again.difference or "").startswith("turn 0: ")
