"""`kvsim trace ...`: each command does what its Python call does, and complains in one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.analysis.trace_info import describe
from kvsim.cli import main
from kvsim.trace import load

if TYPE_CHECKING:
    from pathlib import Path

ROW = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with a trace of four rows."""
    monkeypatch.chdir(tmp_path)
    rows = [
        ROW | {"timestamp": at, "session_id": name}
        for at, name in zip((0, 9, 9, 20), "abab", strict=True)
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def said(command: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    """Run a command; return what it printed, on stderr if it failed."""
    assert main(["trace", *command.split()]) == code
    out, err = capsys.readouterr()
    if code:
        assert out == ""
        assert err.count("\n") == 1
        return err
    assert err == ""
    return out


@pytest.mark.usefixtures("desk")
def test_info_prints_one_json_value_or_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    info = describe(load("t.jsonl"))
    assert json.loads(said("info t.jsonl --json", capsys)) == info.summary()
    found = json.loads(said("info t.jsonl --json --details", capsys))
    assert found == {**info.summary(), "details": json.loads(json.dumps(info.details()))}
    text = said("info t.jsonl --plot t.png", capsys)
    assert "4 requests in 0.0 s, 8 references to 2 blocks" in text
    assert text.endswith("plots saved to t.png\n")


def test_convert_writes_what_was_read(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"):
        assert said(f"convert t.jsonl --out {name}", capsys).endswith(f"written to {name}\n")
        assert load(desk / name).requests == load(desk / "t.jsonl").requests
    said("convert t.jsonl --out b.jsonl --block-size 16", capsys)
    assert load(desk / "b.jsonl").block_size == 16


@pytest.mark.usefixtures("desk")
def test_parts_and_times_and_mixes(capsys: pytest.CaptureFixture[str]) -> None:
    said("slice t.jsonl --from 0.005 --to 0.015 --out s.jsonl", capsys)
    assert [r.session_id for r in load("s.jsonl").requests] == ["b", "a"]
    said("slice t.jsonl --session a --out s.jsonl", capsys)
    assert [r.session_id for r in load("s.jsonl").requests] == ["a", "a"]
    said("slice t.jsonl --sample 1 --by session --out s.jsonl", capsys)
    assert load("s.jsonl").num_requests == 4
    said("scale t.jsonl --speed 2 --out s.jsonl", capsys)
    assert [r.arrived_at for r in load("s.jsonl").requests] == [0, 4_500_000, 4_500_000, 10_000_000]
    said("scale t.jsonl --jitter --seed 3 --out s.jsonl", capsys)
    assert load("s.jsonl").requests[2].arrived_at > 9_000_000
    # 5 tokens of 10 ms, no pause: second turns 50 ms after the first
    said("scale t.jsonl --loop poisson:think_s=0,token_ms=10 --out s.jsonl", capsys)
    assert [r.arrived_at for r in load("s.jsonl").requests] == [
        0,
        9 * 10**6,
        50 * 10**6,
        59 * 10**6,
    ]
    said("mix t.jsonl sample:chat --block-size 64 --partial never --out m.jsonl", capsys)
    assert load("m.jsonl").num_requests == 4 + kvsim.sample("chat").num_requests


@pytest.mark.usefixtures("desk")
def test_validate_names_the_row(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said("validate t.jsonl", capsys) == "valid: 4 requests, format mooncake\n"
    with (desk / "t.jsonl").open("a") as file:
        file.write('{"timestamp": 1}\n')
    assert said("validate t.jsonl", capsys, code=2) == (
        "kvsim: t.jsonl:5: field 'input_length' is missing; fields seen: 'timestamp'\n"
    )


def test_fetch_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert "mooncake-conversation: " in said("fetch", capsys)
    assert "unknown public trace 'moon'" in said("fetch moon", capsys, code=2)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "the following arguments are required: COMMAND (see kvsim trace --help)"),
        ("inof t", "invalid choice: 'inof'"),
        ("info", "the following arguments are required: TRACE (see kvsim trace info --help)"),
        ("info t.jsonl --blok-size 3", "unknown option '--blok-size'. Did you mean --block-size?"),
        ("info t.jsonl more", "unknown argument 'more'."),
        ("info t.jsonl --block-size 100", "block_size must divide the 512 tokens"),
        ("info t.jsonl --arrivals uniform", "unknown arrival model 'uniform'."),
        ("info t.jsonl --plot t.txt", "a plot ends in .png, .svg, .pdf, not '.txt'"),
        ("info t.jsonl --warmup 1", "warmup must be a share of the requests from 0 to less than 1"),
        ("info sample:chat --block-size 7", "block_size must divide the 64 tokens"),
        ("info sample:no", "unknown sample trace 'no'"),
        ("convert t.jsonl", "the following arguments are required: --out"),
        ("convert t.jsonl --out no/t.jsonl", "no/t.jsonl: no such file or directory"),
        ("slice t.jsonl --out s.jsonl", "no part named: use --from, --to, --session or --sample"),
        ("slice t.jsonl --session z --out s.jsonl", "unknown session 'z'"),
        ("slice t.jsonl --from 50 --out s.jsonl", "no request of t is left"),
        ("scale t.jsonl --out s.jsonl", "no change named: use --jitter, --loop or --speed"),
        ("mix t.jsonl sample:chat --out m.jsonl", "must have one block size and partial rule"),
    ],
)
def test_a_mistake_is_one_line_and_no_file(
    desk: Path, command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in said(command, capsys, code=2)
    assert [each.name for each in desk.iterdir()] == ["t.jsonl"]
