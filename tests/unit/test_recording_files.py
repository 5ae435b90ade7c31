"""The file of a recorded run: whole at its end, or not there; and what is told before the run."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvsim.backends.turns import RecordingError
from kvsim.core.ops import Completion
from kvsim.errors import (
    ConfigError,
    MisuseError,
    UserError,
)
from kvsim.recording import recorder, rerun
from tests.unit.recordings import (
    STORY,
    Around,
    contents,
    raising,
    record,
    record_story,
)
from tests.unit.stories import back_from_below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ops import Answer

ROOT = Path(__file__).parents[2]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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
