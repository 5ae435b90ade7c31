"""`kvsim validate` and `kvsim calibrate` on real tensors: what must hold on a busy machine too.

How near the simulator comes depends on the machine, so no test asks for a ratio, only that it is
told and that the exit code follows from it. docs/validation.md has what was measured.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.calibration import load_calibration
from kvsim.cli import main
from kvsim.errors import ConfigError
from kvsim.validation.result import NO_SWAP
from tests.unit.calibration.made import calibration

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.validation import Validation

pytest.importorskip("paddle", reason="the tensor backend needs PaddlePaddle")

KEYS = {
    "wrong_bytes",
    "blocks_checked",
    "decisions_identical",
    "decisions_compared",
    "predicted_over_measured",
    "tolerance",
    "within",
    "calibration",
}


def expect_told(told: dict[str, object], code: int) -> None:
    """Assert what must hold of every validation, and that its exit code fits what it says."""
    assert set(told) == KEYS
    assert told["wrong_bytes"] == 0
    assert isinstance(told["blocks_checked"], int)
    assert told["blocks_checked"] > 0
    assert told["decisions_identical"] is True
    assert isinstance(told["decisions_compared"], int)
    assert told["decisions_compared"] > 100
    ratios = told["predicted_over_measured"]
    assert isinstance(ratios, dict)
    assert set(ratios) == {"swap_in", "swap_out", "ttft_mean"}
    assert all(ratio is None or ratio > 0 for ratio in ratios.values())
    assert code == (0 if told["within"] else 1)


@pytest.fixture(scope="module")
def validation() -> Validation:
    """Return a validation against a calibration that is certainly wrong: copies take an hour."""
    found = calibration()
    slow = replace(found, swap_out=replace(found.swap_out, op_ns=3.6e12))
    return kvsim.validate("sample:chat", calibration=slow, limit=60, ranks=2, time_scale=100)


def test_a_validation_calibrates_runs_decides_again_and_simulates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "copies.png"
    options = ["--limit", "60", "--ranks", "2", "--time-scale", "100", "--plot", str(picture)]
    code = main(["validate", "sample:chat", *options, "--json"])
    out, err = capsys.readouterr()
    told = json.loads(out)
    expect_told(told, code)
    assert told["tolerance"] == 0.1
    assert told["calibration"]["source"].startswith("in this call, ")
    assert told["calibration"]["conditions"]["ranks"] == 2
    assert ("outside 0.9 to 1.1" in err) is not told["within"]
    assert picture.stat().st_size > 10_000
    assert not [each for each in threading.enumerate() if each.name.startswith("kvsim rank")]


def test_what_is_outside_the_tolerance_is_told(validation: Validation) -> None:
    assert not validation.within
    (fault,) = validation.faults
    assert fault.startswith("predicted over measured is outside 0.9 to 1.1: ")
    assert validation.ratios["swap_out"] is not None
    assert validation.ratios["swap_out"] > 1000
    assert validation.calibrated == "before, 2026-01-02T03:04:05Z"
    assert validation.before is validation.calibration
    expect_told(json.loads(validation.to_json()), 1)


def test_a_run_without_a_copy_is_no_validation(validation: Validation) -> None:
    swaps = validation.comparison.swap_out
    nothing = replace(
        swaps,
        count=swaps.count._replace(measured=0),
        total_ns=swaps.total_ns._replace(measured=0),
    )
    comparison = replace(validation.comparison, swap_in=nothing, swap_out=nothing)
    empty = replace(validation, comparison=comparison)
    assert empty.faults == (NO_SWAP,)
    assert not empty.within
    assert empty.ratios["swap_in"] is None


def test_wrong_bytes_and_other_decisions_are_told(validation: Validation) -> None:
    assert validation.run.tensors is not None
    tensors = {**validation.run.tensors, "wrong_bytes": 3}
    bad = replace(
        validation,
        run=replace(validation.run, tensors=tensors),  # type: ignore[arg-type]
        again=replace(validation.again, difference="turn 3: something else"),
    )
    assert bad.faults[0] == "3 bytes that were read are wrong"
    assert bad.faults[1].endswith("turn 3: something else")


def test_a_validation_shows_itself_as_a_table_and_a_plot(validation: Validation) -> None:
    page = validation._repr_html_()
    assert "swap-out copy time, same ops (ms)" in page
    assert "0 wrong bytes" in page
    ax = validation.plot()
    assert ax.get_xlabel() == "blocks of the copy"
    assert ax.get_ylabel() == "time of the slowest rank (us)"
    assert "<Validation chat: 60 requests" in repr(validation)


def test_a_calibration_is_measured_kept_and_fits_its_own_conditions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hardware.toml"
    picture = str(tmp_path / "copies.png")
    options = ["--out", str(file), "--plot", picture, "--seconds", "2", "--seed", "3"]
    assert main(["calibrate", *options]) == 0
    out = capsys.readouterr().out
    assert "swap-in" in out
    assert f"saved to {file}" in out
    found = load_calibration(file)
    assert found.swap_in.num_samples > 10
    assert {each.blocks for each in found.sizes} <= {1, 2, 4, 8, 16, 32, 64, 128, 256}
    assert min(found.swap_in.ns(1), found.swap_out.ns(1), found.step.ns(0)) > 0
    assert found.conditions.rank_block_bytes == 8192
    # On two ranks a block has half of these bytes on each.
    assert main(["validate", "sample:chat", "--ranks", "2", "--hardware", str(file)]) == 2
    assert "calibrated with ranks 1 and the run has 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--tolerance", "0"], "tolerance must be a share above 0 and below 1, not 0.0"),
        (["--backend", "sim"], "backend 'sim' is the simulator itself"),
        (["--cpu-blocks", "0"], "validation needs a CPU tier"),
        (["--policy", "lruu"], "unknown policy 'lruu'"),
        (["--hardware", "none.toml"], "none.toml: no such file"),
        (["--plot", "copies.txt"], "the name must end in"),
        (["--device", "tpu"], "device must be 'cpu' or 'gpu:N'"),
        (["--ranks", "0"], "ranks must be an integer of at least 1"),
    ],
)
def test_what_cannot_be_validated_is_one_line(
    options: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", "sample:chat", "--limit", "5", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert problem in err
    assert err.count("\n") == 1


def test_what_cannot_be_calibrated_is_one_line() -> None:
    with pytest.raises(ConfigError, match="'sim' has no time of its own to measure"):
        kvsim.calibrate(backend="sim")
    with pytest.raises(ConfigError, match="requests_per_s must be a number above 0, not 0"):
        kvsim.calibrate(requests_per_s=0)
    with pytest.raises(ConfigError, match="lasts_s must be a number above 0, not inf"):
        kvsim.calibrate(lasts_s=float("inf"))


@pytest.mark.thorough
def test_two_thousand_requests_of_conversations_are_validated(
    public_traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = public_traces / "mooncake" / "conversation_trace.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    code = main(["validate", str(path), "--limit", "2000", "--ranks", "2", "--json"])
    expect_told(json.loads(capsys.readouterr().out), code)
