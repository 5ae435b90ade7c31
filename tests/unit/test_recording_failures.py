"""A run that raises leaves a recording that raises again; one that is stopped leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvsim.backends.recorded import DivergenceError
from kvsim.backends.turn_codec import End, Failure
from kvsim.backends.turns import RecordingError
from kvsim.core.ops import Completion
from kvsim.errors import (
    ConfigError,
    InvariantError,
    MisuseError,
    PolicyError,
    StalledError,
    UserError,
)
from kvsim.policies.lru import LRU
from kvsim.recording import recorder, rerun
from tests.unit.recordings import BUSY, STORY, busy_trace, contents, record, record_story
from tests.unit.stories import back_from_below

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.core.ops import Answer, Command
    from kvsim.core.ports import AccessInfo, Backend, Peel, PolicyContext
    from kvsim.events import Event
    from kvsim.policies.registry import PolicyMaker
    from kvsim.types import NodeId

ROOT = Path(__file__).parents[2]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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


class Around:
    """A backend that passes everything on, and does something when a call has come so often."""

    def __init__(self, inner: Backend, call: str, after: int, then: Callable[[], None]) -> None:
        self.inner = inner
        self.call = call
        self.left = after
        self.then = then

    def count(self, call: str) -> None:
        if call == self.call:
            self.left -= 1
            if self.left < 0:
                self.then()

    def now(self) -> int:
        self.count("now")
        return self.inner.now()

    def submit(self, command: Command) -> None:
        self.count("submit")
        self.inner.submit(command)

    def wait(self, until: int | None) -> Sequence[Answer]:
        self.count("wait")
        return self.inner.wait(until)

    def close(self) -> None:
        self.inner.close()
        self.count("close")


def raising(error: BaseException) -> Callable[[], None]:
    def then() -> None:
        raise error

    return then


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


# -- nothing is left


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("call", ["now", "submit", "wait", "close"])
def test_a_run_that_is_stopped_leaves_nothing(
    tmp_path: Path, stop: type[BaseException], call: str
) -> None:
    with pytest.raises(stop):
        record(
            tmp_path / "new" / "run.turns",
            back_from_below(),
            STORY,
            wrap=lambda inner: Around(inner, call, 0, raising(stop())),
        )
    assert names(tmp_path) == []


def test_a_run_that_is_stopped_leaves_the_recording_before_it(tmp_path: Path) -> None:
    path = record_story(tmp_path / "run.turns")
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        record(
            path,
            back_from_below(),
            STORY,
            wrap=lambda inner: Around(inner, "wait", 3, raising(KeyboardInterrupt())),
        )
    assert path.read_bytes() == before
    assert names(tmp_path) == ["run.turns"]


def test_the_file_appears_whole_at_the_end_and_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "run.turns"
    seen = []
    for old in (None, b"old"):
        if old is not None:
            path.write_bytes(old)
        record(
            path,
            back_from_below(),
            STORY,
            wrap=lambda inner: Around(
                inner, "close", 0, lambda: seen.append(path.exists() and path.read_bytes())
            ),
        )
        assert rerun(path).identical
    assert seen == [False, b"old"]
    assert names(tmp_path) == ["run.turns"]


def test_a_bare_file_name_means_the_folder_that_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record_story(Path("run.turns"))
    assert names(tmp_path) == ["run.turns"]
    assert rerun("run.turns").identical


def test_a_disk_that_is_full_is_told_in_one_line_and_nothing_is_left(tmp_path: Path) -> None:
    # A limit on the size of files acts like a full disk, in a process of its own.
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from kvsim.errors import UserError\n"
        "from tests.unit.recordings import BUSY, busy_trace, record\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "try:\n"
        "    record(Path(sys.argv[1]), busy_trace(), BUSY)\n"
        "except UserError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run.turns")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{tmp_path}: cannot save there: File too large\n"
    assert names(tmp_path) == []


def test_a_recording_that_fails_does_not_hide_why_the_run_did(tmp_path: Path) -> None:
    path = tmp_path / "run.turns"

    def stand_in_the_way() -> None:
        path.mkdir()
        raise RuntimeError("worker 1 is gone")

    with pytest.raises(RuntimeError, match="worker 1 is gone") as raised:
        record(
            path,
            back_from_below(),
            STORY,
            wrap=lambda inner: Around(inner, "wait", 0, stand_in_the_way),
        )
    assert raised.value.__notes__ == [
        f"And it could not be recorded: {tmp_path}: cannot save there: Is a directory"
    ]


def test_what_cannot_be_recorded_is_told_before_the_run(tmp_path: Path) -> None:
    trace = back_from_below()
    one, two, three = trace.requests
    floats = replace(trace, requests=(one, replace(two, block_keys=(0.5, "b", "c")), three))
    with pytest.raises(RecordingError, match=r"block key 0 of request 1 must be .* not 0\.5"):
        record(tmp_path / "run.turns", floats, STORY)
    assert names(tmp_path) == []


class Garbled(Around):
    """A backend whose reasons are no text."""

    def wait(self, until: int | None) -> Sequence[Answer]:
        return [
            each._replace(reason="\ud800") if isinstance(each, Completion) else each
            for each in self.inner.wait(until)
        ]


def test_what_cannot_be_recorded_in_mid_run_ends_it(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"frame 4 \(turn\) cannot be recorded: .*surrogates"):
        record(
            tmp_path / "run.turns",
            back_from_below(),
            STORY,
            wrap=lambda inner: Garbled(inner, "", 0, lambda: None),
        )
    assert names(tmp_path) == []


def test_a_place_where_no_file_can_be_is_told_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, problem in (
        (tmp_path, "cannot save there: it is a folder; name a file"),
        (tmp_path / "file" / "run", "file is a file; name a folder|it is a file; name a folder"),
        (Path(), "not the name of a file"),
    ):
        with pytest.raises(UserError, match=problem):
            record(path, back_from_below(), STORY)
    assert names(tmp_path) == ["file"]


def test_a_run_without_turns_or_with_open_settings_is_refused(tmp_path: Path) -> None:
    path, trace = tmp_path / "run.turns", back_from_below()
    with (
        pytest.raises(ConfigError, match="an instant replay has no turns to record"),
        recorder(path, replace(STORY, instant=True), trace),
    ):
        pass
    with (
        pytest.raises(MisuseError, match="leave nothing open"),
        recorder(path, replace(STORY, gpu_blocks=None), trace),
    ):
        pass
    assert names(tmp_path) == []


def test_a_name_that_is_no_utf_8_is_recorded_as_it_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "run.turns"
    record(path, replace(back_from_below(), name="caf\udce9"), STORY)
    assert contents(path)[0].name == "caf\\udce9"
    assert rerun(path).identical
