"""`kvsim curve` and `kvsim plane`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvsim.cli import main
from kvsim.hitrate import lru_curve, opt_curve, replay_curve, tier_plane
from kvsim.trace import write
from tests.unit.stories import three_prompts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def story(tmp_path: Path) -> str:
    """Return the path of a trace whose hits are known: 0, 3 and 1 blocks of 8."""
    write(three_prompts(), tmp_path / "story.jsonl")
    return str(tmp_path / "story.jsonl")


def printed(capsys: pytest.CaptureFixture[str], *command: str) -> object:
    """Run a command that must succeed; return the one JSON value that it prints."""
    assert main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")
    return json.loads(out)


def rows_of(table: str) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in table.splitlines()]


def test_a_curve_is_a_list_of_capacities_and_hits(
    story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    points = printed(capsys, "curve", story, "--capacities", "2,1_0")
    assert isinstance(points, list)
    assert [point["capacity"] for point in points] == [2, 10]
    hits = {name: figure["hits"] for name, figure in points[1]["hits"].items()}
    assert hits == {"block": 4, "prefix_block": 4, "prefix_token": 14, "prefix_token_usable": 12}


def test_each_policy_makes_the_call_that_a_notebook_makes(
    story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, sizes = three_prompts(), [2, 3]
    expected = {
        "lru": lru_curve(trace, sizes, warmup=0.5),
        "opt": opt_curve(trace, sizes, warmup=0.5),
        "opt-bypass": opt_curve(trace, sizes, "bypass", warmup=0.5),
        "fifo": replay_curve(trace, "fifo", sizes, warmup=0.5),
    }
    for name, curve in expected.items():
        command = ["curve", story, "--policy", name, "--capacities", "2,3", "--warmup", "0.5"]
        assert printed(capsys, *command) == curve.points()


def test_a_plane_is_a_list_of_sizes_and_hits(
    story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for mode in ("exclusive", "inclusive"):
        found = printed(capsys, "plane", story, "--mode", mode, "--gpu", "1,2", "--cpu", "0,9")
        plane = tier_plane(three_prompts(), mode, [1, 2], [0, 9])
        assert found == plane.points()
    assert isinstance(found, list)
    assert set(found[0]) == {"gpu", "cpu", "gpu_hits", "cpu_hits", "hits"}


def test_the_tables_are_for_people(story: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curve", story, "--capacities", "10"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("lru on story: hit rate by capacity\n")
    assert ["10", "50.00%", "50.00%", "53.85%", "46.15%"] in [
        row.split() for row in out.splitlines()
    ]
    assert "no requests in flight" in out
    assert main(["plane", story, "--gpu", "1", "--cpu", "9"]) == 0
    out = capsys.readouterr().out
    # 8 tokens on the GPU and 6 below of 26, as in the test of the plane.
    assert ["1", "+", "9", "30.77%", "23.08%", "53.85%"] in [
        row.split() for row in out.splitlines()
    ]


def test_without_capacities_there_are_a_dozen(capsys: pytest.CaptureFixture[str]) -> None:
    points = printed(capsys, "curve", "sample:chat", "--policy", "opt", "--limit", "200")
    assert isinstance(points, list)
    assert points[0]["capacity"] == 1
    assert 8 <= len(points) <= 14


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_is_saved(
    ending: str, story: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"p.{ending}"
    assert main(["curve", story, "--capacities", "2,3", "--plot", str(file)]) == 0
    assert file.stat().st_size > 1000
    assert main(["plane", story, "--gpu", "1,2", "--cpu", "0,9", "--plot", str(file)]) == 0
    capsys.readouterr()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"p.{ending}", "story.jsonl"]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("curve {} --policy lur", "unknown policy 'lur'. Did you mean 'lru'? Known: "),
        ("curve {} --capacities 10,x", "--capacities must be block counts with commas between"),
        ("curve {} --capacities 0", "capacities must be a whole number of blocks from 1 to"),
        ("curve {} --warmup 1", "warmup must be a share of the requests from 0 to less than 1"),
        ("curve {} --plot a.gif", "--plot a.gif: the name must end in .pdf, .png, .svg"),
        ("curve {} --plot no/a.png", "--plot no/a.png: there is no folder no"),
        ("curve {} --limit 0", "limit must be an integer of at least 1, not 0"),
        ("curve nothing.jsonl", "nothing.jsonl: no such file or directory"),
        ("curve sample:chat --limit 0", "limit must be an integer of at least 1, not 0"),
        ("curve sample:chat --partial count", "--partial of sample:chat is never, not count"),
        ("curve {} --capacity 9", "unknown option '--capacity'. Did you mean --capacities?"),
        ("plane {} --gpu 1", "the following arguments are required: --cpu"),
        ("plane {} --gpu 1 --cpu=-1", "cpu must be a whole number of blocks from 0 to"),
        ("plane {} --gpu 1 --cpu 1 --mode inclsive", "unknown mode 'inclsive'. Did you mean"),
        ("plane {} --gpu 1 --cpu 1 --plot p.png", "a plane can be drawn from two sizes of each"),
    ],
)
def test_a_bad_input_is_one_line_and_exit_code_2(
    command: str,
    problem: str,
    story: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command.format(story).split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"kvsim: {problem}")
    assert [path.name for path in tmp_path.iterdir()] == ["story.jsonl"]
