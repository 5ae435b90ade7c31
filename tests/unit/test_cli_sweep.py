from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest

import kvsim
from kvsim.cli import main
from kvsim.cli.sweep import add_arguments
from tests.unit.sweeping.story import write_traces

ROOT = Path(__file__).parents[2]

SWEEP = """\
[sweep]
traces = ["three.jsonl", "four.jsonl"]
policies = ["lru", "fifo"]
gpu_blocks = [4, 100]
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_traces(tmp_path)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_table_shows_the_rates(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "sweep.toml", "--out", "out", "--jobs", "1"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("sweep.toml: 8 of 8 cells done\nconfig default, CPU blocks 0, seed 0\n")
    rows = [line.split() for line in out.splitlines()]
    # 14 of 26 tokens of three hit; 12 or 16 of 44 of four.
    assert ["three.jsonl", "4", "53.85%", "53.85%"] in rows
    assert ["four.jsonl", "100", "36.36%", "36.36%"] in rows
    assert (rows[-1], err) == (["saved", "to", "out"], "")
    assert not re.search(r"[ \t]$", out, re.MULTILINE)


def test_other_policies_are_compared_with_the_baseline(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "sweep.toml").write_text(SWEEP.replace('"fifo"', '"fifo", "nosuch"'))
    command = ["sweep", "sweep.toml", "--out", "out", "--jobs", "1", "--baseline", "lru"]
    assert main(command) == 1
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()]
    assert ["trace", "GPU", "blocks", "policy", "points", "95", "%", "interval"] in rows
    assert ["four.jsonl", "4", "fifo", "+0.00", "+0.00", "to", "+0.00"] in rows
    assert ["four.jsonl", "4", "nosuch", "failed"] in rows
    assert err.count("kvsim: failed: nosuch on ") == err.count("\n") == 4


def test_json_is_one_value_with_the_figures_of_the_python_call(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", "sweep.toml", "--out", "out", "--jobs", "1", "--baseline", "fifo"]
    assert main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    printed = json.loads(out)
    table = kvsim.sweep("sweep.toml", jobs=1)
    assert (out.count("\n"), err) == (1, "")
    assert printed["cells"] == {"total": 8, "done": 8, "failed": 0}
    rates = printed["rates"]["prefix_token"]
    assert [row["lru"] for row in rates] == table.rates()["lru"].tolist()
    assert [row["gpu_blocks"] for row in rates] == [4, 100, 4, 100]
    (first, *_) = printed["comparisons"]
    assert (first["policy"], first["baseline"], first["difference"]) == ("lru", "fifo", 0.0)


def test_what_is_missing_is_null_in_json(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "sweep.toml").write_text(SWEEP.replace('"fifo"', '"nosuch"'))
    command = ["sweep", "sweep.toml", "--out", "out", "--jobs", "1", "--baseline", "lru"]
    assert main([*command, "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["rates"]["block"][0]["nosuch"] is None
    assert printed["comparisons"][0]["ci_low"] is None
    assert len(printed["failures"]) == 4


@pytest.mark.parametrize("name", ["rates.png", "rates.svg", "new/rates.pdf"])
def test_the_picture_is_saved(desk: Path, name: str) -> None:
    assert main(["sweep", "sweep.toml", "--out", "out", "--jobs", "1", "--plot", name]) == 0
    assert (desk / name).stat().st_size > 5000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "the following arguments are required: --out (see kvsim sweep --help)"),
        (["--out", "sweep.toml"], "sweep.toml: cannot save there: it is a file; name a folder"),
        (["--out", "out", "--baseline", "fifoo"], "unknown policy of this sweep 'fifoo'. Did you"),
        (["--out", "out", "--plot", "x.txt"], "--plot x.txt: the name must end in one of .pdf,"),
        (["--out", "out", "--plot", "d.png"], "--plot d.png: a directory; name a file in it"),
        (["--out", "out", "--jobs", "0"], "jobs must be an integer of at least 1, not 0"),
        (["--out", "out", "--executor", "rya"], "executor must be 'local', 'dask' or a backend"),
        (["--out", "out", "--scheduler", "x"], "scheduler is for executor 'dask', and it is"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is(
    desk: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    (desk / "d.png").mkdir()
    assert main(["sweep", "sweep.toml", *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"kvsim: {message}")
    assert not (desk / "out").exists()


def test_a_mistake_in_the_file_is_told_with_its_line(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "sweep.toml").write_text(SWEEP + "[sweep.settings]\nwarmpu = 0.5\n")
    assert main(["sweep", "sweep.toml", "--out", "out"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("kvsim: sweep.toml:6: unknown setting 'warmpu'. Did you mean 'warmup'?")


def test_ctrl_c_says_where_the_finished_cells_are(desk: Path) -> None:
    code = (
        "import signal, sys; from kvsim.cli import main\n"
        "from kvsim.sweeping import run\n"
        "keep = run.SweepFolder.add\n"
        "def add(folder, result):\n"
        "    keep(folder, result)\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "run.SweepFolder.add = add\n"
        "sys.exit(main(['sweep', 'sweep.toml', '--out', 'out', '--jobs', '1']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr == "kvsim: what is finished is kept in out\nkvsim: interrupted\n"
    assert len(list((desk / "out" / "cells").glob("*.parquet"))) == 1


def test_every_option_is_documented_and_every_documented_option_exists() -> None:
    page = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(--[a-z-]+)", page, re.MULTILINE))
    parser = ArgumentParser()
    add_arguments(parser)
    options = set(re.findall(r"--[a-z-]+", parser.format_help()))
    assert documented == options - {"--help"}
