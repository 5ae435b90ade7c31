"""`kvsim check-policy`, as a person and as a script sees it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvsim.cli import main

if TYPE_CHECKING:
    from pathlib import Path

FEW = ["--traces", "3", "--requests", "20"]
BROKEN = "tests.unit.testing.broken_policies"


def test_a_right_policy_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-policy", "kvsim.testing:PerBlockLRU", *FEW]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "kvsim.testing:PerBlockLRU keeps its contract (per-block form)"
    assert "in 3 traces (60 requests)" in lines[1]


def test_a_right_policy_is_one_json_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-policy", "sieve", "--json", *FEW]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["policy"], report["form"]) == (True, "sieve", "batch")
    assert report["num_requests"] == 60
    assert report["uses_hits"] is True


def test_a_broken_policy_ends_with_1_and_says_what_it_did(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check-policy", f"{BROKEN}:ForgetsPins"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    heading, problem, contract = printed.err.splitlines()
    assert heading == f"{BROKEN}:ForgetsPins breaks its contract: pinned-victim"
    assert problem.startswith("  ForgetsPins.choose_victim (call ")
    assert contract.startswith("  contract: on_pinned: ")


def test_a_broken_policy_is_one_json_value_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-policy", f"{BROKEN}:ForgetsHits", "--json"]) == 1
    printed = capsys.readouterr()
    assert printed.err == ""
    found = json.loads(printed.out)
    assert (found["ok"], found["finding"]) == (False, "ignores-hits")
    assert set(found) == {"ok", "policy", "finding", "problem", "contract"}


def test_what_is_meant_can_be_waived(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--waive", "ignores-hits", "--waive", "cost"]
    assert main(["check-policy", f"{BROKEN}:ForgetsHits", *options, *FEW]) == 0
    assert "what a call costs was not asked" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["lruu"], "unknown policy 'lruu'. Did you mean 'lru'?"),
        (["no_such_module:X"], "no module 'no_such_module' in "),
        (["no_such_file.py:X"], "no file 'no_such_file.py'"),
        (["lru", "--waive", "orphan"], "unknown finding to waive 'orphan'"),
        (["lru", "--traces", "0"], "num_traces must be at least 1, not 0"),
        (["lru", "--seeds", "1"], "unknown option '--seeds'. Did you mean --seed?"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-policy", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert problem in printed.err
    assert printed.err.count("\n") == 1


def test_a_class_with_a_wrong_signature_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("class Mine:\n    def __init__(self):\n        pass\n", encoding="utf-8")
    assert main(["check-policy", f"{file}:Mine"]) == 2
    assert "Mine cannot be made as Mine(context)" in capsys.readouterr().err


def test_a_policy_of_your_own_is_replayed_by_the_same_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--gpu-blocks", "500", "--limit", "50", "--instant", "--json"]
    figures = []
    for policy in ("lru", "kvsim.testing:PerBlockLRU"):
        assert main(["replay", "sample:chat", "--policy", policy, *options]) == 0
        figures.append(json.loads(capsys.readouterr().out))
    assert figures[0]["hits"] == figures[1]["hits"]
    assert figures[1]["config"]["policy"] == "kvsim.testing:PerBlockLRU"
