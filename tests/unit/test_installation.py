"""`kvsim doctor`: what is said about a machine, for machines that this one is not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.cli import main
from kvsim.installation import EXTRAS, Facts, Finding, State, diagnose, look

if TYPE_CHECKING:
    from collections.abc import Mapping

BASE = {"numpy": "2.4", "pandas": "3.0", "pyarrow": "26.0", "matplotlib": "3.10", "rich": "15.0"}
CPU_ONLY = Facts(python=(3, 12, 1), versions={**BASE, "paddlepaddle": "3.3.1"})


def finding(facts: Facts, what: str) -> Finding:
    """Return the finding about something."""
    (found,) = (each for each in diagnose(facts).findings if each.what.startswith(what))
    return found


def with_packages(**versions: str) -> Mapping[str, str]:
    """Return the base packages and some more."""
    return {**BASE, **{name.replace("_", "-"): found for name, found in versions.items()}}


def test_a_machine_with_the_cpu_build_is_well() -> None:
    found = diagnose(CPU_ONLY)
    assert not found.is_broken
    assert finding(CPU_ONLY, "real tensors").state is State.OK
    assert finding(CPU_ONLY, "GPU") == (
        "GPU",
        State.MISSING,
        "none",
        "only --device gpu:N needs one",
    )


def test_both_builds_of_paddle_are_broken_together() -> None:
    versions = with_packages(paddlepaddle="3.3.1", paddlepaddle_gpu="3.3.1")
    facts = replace(CPU_ONLY, versions=versions)
    assert diagnose(facts).is_broken
    assert finding(facts, "real tensors").advice.startswith("both own the name paddle")


def test_without_paddle_the_extra_is_named() -> None:
    facts = replace(CPU_ONLY, versions=BASE)
    assert finding(facts, "real tensors").state is State.MISSING
    assert "kvsim[paddle]" in finding(facts, "real tensors").advice
    assert not diagnose(facts).is_broken


def test_the_gpu_build_of_the_public_index_is_too_old() -> None:
    facts = replace(CPU_ONLY, versions=with_packages(paddlepaddle_gpu="2.6.2"), num_gpus=1)
    assert finding(facts, "real tensors").state is State.BROKEN
    assert "Paddle's own index" in finding(facts, "real tensors").advice


def test_a_gpu_build_without_a_gpu_is_told_and_not_broken() -> None:
    facts = replace(CPU_ONLY, versions=with_packages(paddlepaddle_gpu="3.3.0"), paddle_cuda="12.6")
    assert finding(facts, "GPU").state is State.NOTE
    assert "--device cpu" in finding(facts, "GPU").advice
    assert not diagnose(facts).is_broken


def test_a_gpu_that_the_cpu_build_cannot_see_is_told() -> None:
    facts = replace(CPU_ONLY, has_nvidia=True)
    assert finding(facts, "GPU").state is State.NOTE


@pytest.mark.parametrize(
    ("bindings", "state"), [("12.9.1", State.OK), ("13.0.0", State.BROKEN), ("", State.MISSING)]
)
def test_cuda_bindings_must_be_of_the_major_release_of_paddles_cuda(
    bindings: str, state: State
) -> None:
    versions = dict(with_packages(paddlepaddle_gpu="3.3.0"))
    if bindings:
        versions["cuda-bindings"] = bindings
    facts = replace(CPU_ONLY, versions=versions, paddle_cuda="12.6", num_gpus=2)
    found = finding(facts, "copies on a GPU")
    assert found.state is state
    assert ("cuda-bindings==12.*" in found.advice) is (state is not State.OK)


def test_a_paddle_that_does_not_load_is_broken() -> None:
    facts = replace(CPU_ONLY, paddle_problem="libgomp.so.1: cannot open shared object file")
    assert diagnose(facts).is_broken
    assert "libgomp" in finding(facts, "real tensors").found


@pytest.mark.parametrize(
    ("python", "state"),
    [((3, 10, 9), State.BROKEN), ((3, 11, 0), State.OK), ((3, 14, 0), State.BROKEN)],
)
def test_pythons_that_paddle_has_no_wheel_for_are_broken(
    python: tuple[int, int, int], state: State
) -> None:
    assert finding(replace(CPU_ONLY, python=python), "Python").state is state


def test_little_memory_to_pin_or_to_share_is_told() -> None:
    facts = replace(CPU_ONLY, pinned_bytes=8 << 20, shm_bytes=64 << 20)
    pinned = finding(facts, "pinned memory")
    assert (pinned.state, pinned.found) == (State.NOTE, "8.0 MiB")
    assert finding(facts, "shared memory").found == "64.0 MiB free"
    assert finding(replace(facts, pinned_bytes=None), "pinned memory").found == "no limit"
    assert finding(replace(facts, shm_bytes=None), "shared memory").state is State.MISSING


def test_a_missing_base_package_is_broken_and_a_missing_extra_is_not() -> None:
    versions = {name: found for name, found in BASE.items() if name != "rich"}
    facts = replace(CPU_ONLY, versions=versions)
    assert finding(facts, "replays").advice == "pip install rich"
    for what, (extra, packages) in EXTRAS.items():
        assert finding(CPU_ONLY, what).advice == f"pip install 'kvsim[{extra}]'"
        there = replace(CPU_ONLY, versions=BASE | dict.fromkeys(packages, "1.0"))
        assert finding(there, what).state is State.OK


def test_this_machine_can_run_what_these_tests_need(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"broken", "findings"}
    assert not told["broken"]
    assert told == kvsim.doctor().to_dict()
    assert look().versions.keys() >= BASE.keys()
    assert main(["doctor"]) == 0
    assert "nothing is broken" in capsys.readouterr().out
