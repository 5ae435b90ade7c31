"""`kvsim replay --attribution --metrics --kv-events --perfetto`, `kvsim rerun`, `kvsim compare`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from kvsim.cli import main
from kvsim.trace import write
from tests.trace_events import check_timeline, read_timeline
from tests.unit.stories import back_from_below

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def story(tmp_path: Path) -> str:
    """Return the path of a trace whose third prompt is found in the CPU tier."""
    write(back_from_below(), tmp_path / "story.jsonl")
    return str(tmp_path / "story.jsonl")


def replay(story: str, *options: str) -> int:
    return main(["replay", story, "--gpu-blocks", "3", "--cpu-blocks", "3", *options])


def test_attribution_is_a_table_a_frame_a_picture_and_json(
    story: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(story, "--attribution", "--out", str(tmp_path / "out")) == 0
    printed = capsys.readouterr().out
    assert "hit cpu              3   33.33%" in printed
    assert "cold                 6   66.67%" in printed
    frame = pd.read_parquet(tmp_path / "out" / "misses.parquet")
    assert frame.groupby("class")["num_blocks"].sum().to_dict() == {"cold": 6, "hit_cpu": 3}
    assert (tmp_path / "out" / "misses.png").stat().st_size > 1000
    assert replay(story, "--attribution", "--json") == 0
    found = json.loads(capsys.readouterr().out)["attribution"]
    assert found["blocks"]["hit_cpu"] == 3
    assert sum(found["blocks"].values()) == 9


def test_without_options_nothing_more_is_said(
    story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(story, "--json") == 0
    assert "attribution" not in json.loads(capsys.readouterr().out)


def test_metrics_are_written_under_the_names_that_were_asked_for(
    story: str, tmp_path: Path
) -> None:
    file = tmp_path / "metrics.txt"
    assert replay(story, "--metrics", str(file), "--metric-names", "fastdeploy") == 0
    assert "fastdeploy:prefix_cpu_cache_token_num 12" in file.read_text().splitlines()
    assert replay(story, "--metrics", str(file), "--window", "1") == 0
    # The last window has the third request alone.
    assert "kvsim_window_hit_token_ratio 1.0" in file.read_text().splitlines()


def test_kv_events_are_lines_of_json(story: str, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    assert replay(story, "--kv-events", str(file)) == 0
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [event["sequence"] for event in events] == list(range(7))
    assert {event["medium"] for event in events} == {"GPU", "CPU"}


def test_a_timeline_of_a_run_and_of_its_recording(story: str, tmp_path: Path) -> None:
    files = [tmp_path / "run.json", tmp_path / "again.json"]
    turns = str(tmp_path / "run.turns")
    assert replay(story, "--perfetto", str(files[0]), "--record", turns) == 0
    assert main(["rerun", turns, "--perfetto", str(files[1])]) == 0
    run, again = (read_timeline(file.read_text()) for file in files)
    check_timeline(run)
    assert run == again


def test_two_saved_runs_are_compared(
    story: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(story, "--out", str(tmp_path / "a")) == 0
    assert main(["replay", story, "--gpu-blocks", "6", "--out", str(tmp_path / "b")]) == 0
    capsys.readouterr()
    folders = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["compare", *folders, "--plot", str(tmp_path / "c.png")]) == 0
    printed = capsys.readouterr().out
    assert "note: A: a: story, lru, 3 GPU + 3 CPU blocks" in printed
    assert "latency (ms)" in printed
    assert (tmp_path / "c.png").stat().st_size > 1000
    assert main(["compare", *folders, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_requests"] == 3


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--metrics", "nowhere/\0"], "not the name of a file"),
        (["--perfetto", "."], "it is a folder; name a file"),
        (["--metric-names", "vllm"], "--metric-names needs --metrics: name the file"),
        (["--metrics", "m", "--metric-names", "vlm"], "Did you mean 'vllm'?"),
        (["--window", "0"], "--window must be at least 1, not 0"),
        (["--perfetto", "x.json", "--instant"], "no clock"),
    ],
)
def test_a_mistake_is_one_line(
    options: list[str],
    problem: str,
    story: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert replay(story, *options) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["story.jsonl"]


def test_a_comparison_of_nothing_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no such folder" in said
