from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvsim.cli import main
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
    from pathlib import Path


def test_the_same_decisions_are_exit_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(record_story(tmp_path / "story.turns"))
    assert main(["rerun", path]) == 0
    assert capsys.readouterr() == ("8 turns: every decision is the same\n", "")
    assert main(["rerun", path, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "turns": 8, "identical": True, "difference": None, "ended_well": True,
    }  # fmt: skip
    assert (out.count("\n"), err) == (1, "")


def test_another_decision_is_exit_code_1_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "busy.turns"
    record(path, busy_trace(), BUSY)
    num_turns = len(contents(path)[2])
    assert main(["rerun", str(path), "--policy", "fifo", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["turns"], told["identical"], told["ended_well"]) == (num_turns, False, True)
    assert told["difference"].startswith("turn ")
    assert main(["rerun", str(path), "--policy", "fifo"]) == 1
    assert capsys.readouterr() == (f"{num_turns} turns: {told['difference']}\n", "")


def test_a_run_that_failed_and_is_decided_alike_is_exit_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "story.turns"
    with pytest.raises(RuntimeError):
        record(
            path,
            back_from_below(),
            STORY,
            wrap=lambda inner: Around(inner, "wait", 2, raising(RuntimeError("gone\nfor good"))),
        )
    assert main(["rerun", str(path)]) == 0
    assert capsys.readouterr().out == (
        "the recorded run ended with RuntimeError: gone for good\n"
        "3 turns: every decision is the same\n"
    )
    assert main(["rerun", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ended_well"] is False


@pytest.mark.parametrize(
    ("content", "options", "problem"),
    [
        (b"", [], "story.turns: not a recording: it must begin with 'kvsim-turns 1', not nothing"),
        (b"kvsim-turns 9\n", [], "story.turns: a recording in format 9; this kvsim reads format 1"),
        (None, ["--policy", "lruu"], "unknown policy 'lruu'. Did you mean 'lru'?"),
        (None, ["--polcy", "lru"], "unknown option '--polcy'. Did you mean --policy?"),
        (None, ["more"], "unknown argument 'more'."),
    ],
)
def test_what_cannot_be_rerun_is_exit_code_2_and_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    options: list[str],
    problem: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = record_story(tmp_path / "story.turns")
    if content is not None:
        path.write_bytes(content)
    assert main(["rerun", "story.turns", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"kvsim: {problem}")
    assert err.count("\n") == 1


def test_a_file_that_is_missing_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rerun", "/nowhere/run.turns"]) == 2
    assert capsys.readouterr().err == "kvsim: /nowhere/run.turns: no such file or directory\n"
    assert main(["rerun"]) == 2


def test_the_help_says_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rerun", "--help"]) == 0
    assert "replay a recording through the core" in capsys.readouterr().out
