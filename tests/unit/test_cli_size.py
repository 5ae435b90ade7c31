"""`kvsim size` and `kvsim explain`: thin skins on the Python calls."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.cli import main
from kvsim.trace import write
from tests.unit.stories import three_prompts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def story(tmp_path: Path) -> str:
    """Return the path of a trace whose LRU curve is known: 8, 12, 14 of 26 tokens."""
    write(three_prompts(), tmp_path / "story.jsonl")
    return str(tmp_path / "story.jsonl")


def test_size_prints_the_answer_as_a_table(story: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", story, "--target-hit", "0.4", "--gpu-blocks", "1"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("story: 40.00% prefix_token for llama-3.1-8b on h200-8x, KV in 16 bits")
    rows = [line.split() for line in out.splitlines()]
    assert ["GPU", "+", "CPU", "1", "0.00049", "1", "0.00049"] in [row[:7] for row in rows]
    assert "note: 2 blocks, 0.00098 GiB, on the GPU alone" in out
    assert err == ""
    assert not re.search(r"[ \t]$|…", out, re.MULTILINE)


def test_size_prints_what_the_call_returns_as_json(
    story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--definition", "block", "--kv-dtype", "fp8", "--model", "llama-3.1-70b"]
    assert main(["size", story, *options, "--gpu-gib", "2", "--warmup", "0.5", "--json"]) == 0
    found = kvsim.size(
        story, definition="block", kv_dtype="fp8", model="llama-3.1-70b", gpu_gib=2, warmup=0.5
    )
    assert json.loads(capsys.readouterr().out) == found.to_dict()


def test_explain_prints_one_column_an_engine(
    story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", story, "--gpu-blocks", "100"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    # 4 of 8 blocks; 3 of 5 full ones; 12 of 26 tokens: +10, -13.85 points.
    assert ["vllm", "sglang", "lmcache", "fastdeploy"] in rows
    assert ["keys", *["+10.00"] * 4] in rows
    assert ["unit", *["-13.85"] * 4] in rows
    assert ["would", "report", *["46.15%"] * 4] in rows
    assert not re.search(r"[ \t]$|…", out, re.MULTILINE)


def test_explain_prints_what_the_call_returns_as_json(
    story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", story, "--gpu-blocks", "2", "--warmup", "0.5", "--json"]) == 0
    found = kvsim.explain(story, gpu_blocks=2, warmup=0.5)
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found.to_dict()))


@pytest.mark.parametrize("command", ["size", "explain"])
def test_a_picture_is_saved(command: str, story: str, tmp_path: Path) -> None:
    picture = tmp_path / "x.png"
    assert main([command, story, "--gpu-blocks", "2", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["size", "--target-hit", "30"], "target_hit must be a share"),
        (["size", "--definition", "x"], "unknown definition"),
        (["size", "--plot", "x.doc"], "must end in"),
        (["explain"], "--gpu-blocks"),
        (["explain", "--gpu-blocks", "0"], "gpu_blocks must be a whole number"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], problem: str, story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *options = words
    assert main([command, story, *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert problem in err
