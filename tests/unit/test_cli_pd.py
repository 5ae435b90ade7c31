"""`kvsim pd`: a thin skin on `kvsim.split` and `kvsim.split_sweep`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import kvsim
from kvsim.cli import main
from kvsim.cli.pd import SPLIT_OPTIONS
from kvsim.trace import write
from tests.trace_events import check_timeline, read_timeline
from tests.unit.splitting.test_split import prompts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Return the path of a trace of six prompts."""
    write(prompts(10, 20, 30, 40, 50, 60), tmp_path / "prompts.jsonl")
    return str(tmp_path / "prompts.jsonl")


def test_every_option_of_the_split_is_documented() -> None:
    page = (ROOT / "docs" / "split.md").read_text(encoding="utf-8")
    rows = "".join(re.findall(r"^\| `--.*?\|", page, re.MULTILINE))
    documented = set(re.findall(r"`--([a-z-]+)", rows))
    assert documented == {name.replace("_", "-") for name in SPLIT_OPTIONS} | {"sweep", "perfetto"}


def test_pd_prints_what_the_split_costs(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pd", trace, "--prefill", "2", "--decode", "2", "--tp", "4:2"]) == 0
    out, err = capsys.readouterr()
    assert "2 prefill x 4 ranks -> 2 decode x 2 ranks over ib-400g" in out
    assert "6 finished" in out
    assert "early starts" in out
    assert err == ""


def test_pd_prints_what_the_call_returns(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pd", trace, "--tp", "2", "--link", "5", "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    same = json.loads(kvsim.split(trace, tp=2, link="5").to_json())
    for each in (read, same):
        each.pop("provenance")
    assert read == same


def test_pd_sweeps_and_saves_a_plot(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["pd", trace, "--tp", "1", "--sweep", "link=1,10", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("layerwise" in line for line in lines) == 2
    assert sum("at_end" in line for line in lines) == 2
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"sweep.parquet", "sweep.png"}


@pytest.mark.parametrize("sweep", ["layers=4,8", "token_budget=512,1024"])
def test_pd_sweeps_over_layers_and_chunks(
    trace: str, sweep: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--send", "layerwise", "--max-running", "16", "--json"]
    assert main(["pd", trace, "--tp", "1", "--sweep", sweep, *options]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--sweep", "speed=1,2"], "can be swept over link, token_budget, layers, not 'speed'"),
        (["--sweep", "link=a"], "--sweep: 'link=a' is not NAME=A,B,..."),
        (["--sweep", "layers=0"], "layers must be whole numbers of at least 1, not 0.0"),
        (["--sweep", "link=-1"], "link must be the name of a network or GB/s a card"),
        (["--backend", "paddle"], "knows one instance only: it cannot split a run"),
        (["--prefil", "2"], "Did you mean --prefill?"),
        (["--tp", "3"], "cannot be divided among 3 GPUs"),
    ],
)
def test_pd_says_in_one_line_what_is_wrong(
    trace: str, options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pd", trace, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1


def test_pd_writes_a_timeline(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.json"
    assert main(["pd", trace, "--tp", "2:1", "--perfetto", str(file)]) == 0
    check_timeline(read_timeline(file.read_text(encoding="utf-8")))
    capsys.readouterr()
    command = ["pd", trace, "--tp", "1", "--perfetto", str(file), "--sweep", "link=1,10"]
    assert main(command) == 2
    assert "--perfetto is of one run, and --sweep makes many" in capsys.readouterr().err
    assert main(["pd", trace, "--tp", "1", "--perfetto", str(tmp_path)]) == 2
    assert "it is a folder; name a file" in capsys.readouterr().err
