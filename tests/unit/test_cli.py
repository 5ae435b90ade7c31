from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import kvsim
from kvsim.cli import main
from kvsim.cli.parser import COMMANDS
from kvsim.cli.replay import OPTIONS, SPELT
from kvsim.replay_config import ReplayConfig
from kvsim.trace import write
from tests.unit.stories import back_from_below, three_prompts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def story(tmp_path: Path) -> str:
    """Return the path of a trace whose hits are known: 0, 3 and 1 blocks of 8."""
    write(three_prompts(), tmp_path / "story.jsonl")
    return str(tmp_path / "story.jsonl")


def run_python(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_every_setting_is_an_option() -> None:
    named = [name for options in OPTIONS.values() for name in options]
    assert sorted(named) == sorted(each.name for each in fields(ReplayConfig))


def test_every_option_is_documented_and_every_documented_option_exists() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `--([a-z-]+)", page, re.MULTILINE))
    names = [SPELT.get(name, name) for group in OPTIONS.values() for name in group]
    options = {name.replace("_", "-") for name in names}
    others = {"config", "engine", "out", "json", "record", "verify"}
    others |= {"attribution", "kv-events", "metric-names", "metrics", "perfetto", "window"}
    assert documented == options | others


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    table = page.partition("\n\n`kvsim replay TRACE` replays")[0]
    assert set(re.findall(r"`kvsim ([a-z-]+)", table)) == set(COMMANDS)


def test_the_defaults_that_the_help_names_are_those_of_the_config() -> None:
    for name, (_, text) in ((n, o) for group in OPTIONS.values() for n, o in group.items()):
        default = next(each.default for each in fields(ReplayConfig) if each.name == name)
        told = re.search(r"default: (\S+)$", text)
        if told and isinstance(default, int | str) and not isinstance(default, bool):
            assert told[1] == str(default), name


def test_the_table_shows_the_hits(story: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", story, "--gpu-blocks", "100"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("story: 3 requests, 4 tokens a block; lru, llama-3.1-8b on h200-8x\n")
    rows = [line.split() for line in out.splitlines()]
    assert ["block", "4", "0", "8", "50.00%"] in rows
    assert ["prefix_token_usable", "12", "0", "26", "46.15%"] in rows
    assert err == ""
    assert not re.search(r"[ \t]$", out, re.MULTILINE)


def test_json_is_one_value_and_all_there_is(story: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", story, "--gpu-blocks", "100", "--json"]) == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert figures["hits"]["block"] == {"hits": 4, "total": 8, "rate": 0.5}
    assert (out.count("\n"), err) == (1, "")


def test_the_command_makes_the_call_that_a_notebook_makes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.jsonl"
    write(back_from_below(), trace)
    options = ["--gpu-blocks", "3", "--cpu-blocks", "6", "--swap-batch-blocks", "1"]
    options += ["--policy", "fifo", "--seed", "3", "--warmup", "0.5", "--no-keep-outputs"]
    assert main(["replay", str(trace), "--json", *options]) == 0
    printed = json.loads(capsys.readouterr().out)
    called = json.loads(
        kvsim.replay(
            trace, gpu_blocks=3, cpu_blocks=6, swap_batch_blocks=1, policy="fifo", seed=3,
            warmup=0.5, keep_outputs=False,
        ).to_json()
    )  # fmt: skip
    del printed["provenance"], called["provenance"]
    assert printed == called


def test_options_go_before_the_run_file(
    story: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text('gpu_blocks = 50\npolicy = "fifo"\ninstant = true\n')
    command = ["replay", story, "--config", str(tmp_path / "run.toml"), "--json"]
    assert main([*command, "--policy", "lru", "--no-instant"]) == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert (config["gpu_blocks"], config["policy"], config["instant"]) == (50, "lru", False)


def test_a_sample_needs_no_other_option_and_out_saves_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "out"
    command = ["replay", "sample:chat", "--gpu-blocks", "1000", "--limit", "100", "--out", str(out)]
    assert main(command) == 0
    assert f"saved to {out}\n" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == [
        "hits.png", "requests.parquet", "run.json", "transfers.parquet", "ttft.png",
    ]  # fmt: skip


@pytest.mark.parametrize("command", [["--version"], ["--help"], ["replay", "--help"]])
def test_asking_for_help_is_no_error(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "kvsim" in out
    assert err == ""


def test_the_figures_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    command = (
        "-m",
        "kvsim",
        "replay",
        "sample:chat",
        "--limit",
        "300",
        "--json",
        "--policy",
        "lru",
    )
    sizes = ("--gpu-blocks", "700", "--cpu-blocks", "1500", "--fail-rate", "0.01")
    printed = [run_python(*command, *sizes, PYTHONHASHSEED=seed).stdout for seed in ("0", "1")]
    figures = [re.sub(r'"provenance": \{[^}]*\}', "", each) for each in printed]
    assert figures[0] == figures[1] != ""


def test_control_c_is_130_without_a_traceback_or_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it, so the command waits until it is stopped
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        code = main(["replay", str(tmp_path / "pipe"), "--out", str(tmp_path / "out")])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    out, err = capsys.readouterr()
    assert (code, out, err) == (130, "", "kvsim: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_reader_that_leaves_early_is_no_error(story: str) -> None:
    script = f"{sys.executable} -m kvsim replay {story} --json | true"
    done = run_python("-c", f"import subprocess; subprocess.run({script!r}, shell=True)")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_bar_is_drawn_on_a_terminal(story: str, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal, pytest.MonkeyPatch.context() as patch:  # noqa: PTH123
        patch.setattr(sys, "stderr", terminal)
        patch.setenv("TERM", "xterm")
        assert main(["replay", story, "--gpu-blocks", "9", "--json"]) == 0
        drawn = b""  # a terminal hands over what it has, piece by piece
        while b"replay" not in drawn and select.select([ours], [], [], 5)[0]:
            drawn += os.read(ours, 100_000)
        assert b"replay" in drawn
    os.close(ours)
    json.loads(capsys.readouterr().out)


def test_the_readme_shows_what_its_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\$ kvsim (replay .*)\n((?:(?!```|\$).*\n)+)", page, re.MULTILINE)
    assert shown
    for command, output in shown:
        words = re.sub(r" --out \S+", "", command).split()
        assert main(words) == 0
        saved = re.sub(r"^saved to .*\n", "", output, flags=re.MULTILINE)
        assert capsys.readouterr().out == saved
