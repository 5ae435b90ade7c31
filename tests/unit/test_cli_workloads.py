"""`kvsim trace synth` and `kvsim trace fit`: each does what its Python call does."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from kvsim.cli import main
from kvsim.trace import load, load_model, synthesize

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(command: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert main(["trace", *command.split()]) == code
    out, err = capsys.readouterr()
    assert (err == "") == (code == 0)
    if code:
        assert err.count("\n") == 1
    return err if code else out


def test_synth_writes_what_the_call_makes(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "synth rag:passages=3 --requests 40 --seed 7 --block-size 32"
    said(f"{command} --arrivals bursts:gap_s=2+diurnal:swing=0.9 -o made.jsonl", capsys)
    made = synthesize(
        "rag:passages=3",
        num_requests=40,
        seed=7,
        block_size=32,
        arrivals="bursts:gap_s=2+diurnal:swing=0.9",
    )
    assert load(desk / "made.jsonl").requests == made.requests


def test_synth_alone_lists_lines_that_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said("synth", capsys).splitlines()
    workloads = [each.strip() for each in lines[1 : lines.index("arrivals:")]]
    assert [each.partition(":")[0] for each in workloads] == [
        "chat",
        "system-prompts",
        "rag",
        "agents",
    ]
    for line in workloads:
        said(f"synth {line} --requests 3 -o some.jsonl", capsys)


def test_a_model_is_fitted_and_drawn_from(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said("synth chat --requests 300 --seed 4 -o chat.jsonl", capsys)
    text = said("fit chat.jsonl -o model.toml", capsys)
    model = load_model(desk / "model.toml")
    assert f"{model.num_numbers} numbers written to model.toml; against chat:" in text
    assert "mean absolute error" in text
    assert "note: Do not rank eviction policies on it" in text
    found = json.loads(said("fit chat.jsonl -o again.toml --json", capsys))
    assert model.report is not None
    assert found == json.loads(json.dumps(asdict(model.report)))
    assert (desk / "again.toml").read_bytes() == (desk / "model.toml").read_bytes()
    text = said("synth model.toml --seed 2 -o drawn.jsonl", capsys)
    assert "Do not rank eviction policies on it" in text
    assert load(desk / "drawn.jsonl").requests == synthesize("model.toml", seed=2).requests


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("synth rag", "name the file to write: --out FILE"),
        ("synth rags -o a.jsonl", "unknown workload 'rags'. Did you mean 'rag'?"),
        ("synth rag:k=1 -o a.jsonl", "unknown number of workload rag 'k'"),
        ("synth no.toml -o a.jsonl", "no.toml: no such file or directory"),
        ("synth rag -o no/a.jsonl", "no/a.jsonl: no such file or directory"),
        ("fit sample:chat -o model.json", "the name of a model ends in .toml, not 'model.json'"),
        ("fit no.jsonl -o model.toml", "no.jsonl: no such file or directory"),
    ],
)
def test_mistakes_are_told_in_one_line(
    capsys: pytest.CaptureFixture[str], command: str, problem: str
) -> None:
    assert problem in said(command, capsys, code=2)
