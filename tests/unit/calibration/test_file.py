"""A calibration is written to TOML and read back, by itself and as the hardware of a replay."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.calibration import load_calibration, save_calibration
from kvsim.calibration.file import to_toml
from kvsim.errors import ConfigError, UserError
from kvsim.replay_config import ReplayConfig
from tests.unit.calibration.made import calibration

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    found = calibration()
    found = replace(found, swap_in=replace(found.swap_in, tail_ns=-3.25))
    save_calibration(found, tmp_path / "hardware.toml")
    assert load_calibration(tmp_path / "hardware.toml") == found


def test_a_replay_takes_the_link_that_was_measured(tmp_path: Path) -> None:
    save_calibration(calibration(), tmp_path / "hardware.toml")
    path = str(tmp_path / "hardware.toml")
    result = kvsim.replay("sample:chat", limit=3, hardware=path, gpu_blocks=2000)
    machine = result.config.machine
    # Half of (100,000 + 300,000) ns an op; 4096 bytes in half of (1 + 2) ns; the waits are latency.
    assert machine.host_link.overhead_ns == 200_000
    assert machine.host_link.bytes_per_second == round(4096 / 1.5 * 1e9)
    assert machine.host_link.latency_ns == 40_000
    assert machine.name == 'a100-8x with the link of a "small" one, 2 cores'
    assert machine.memory_bytes == 80_000_000_000  # of the a100-8x


def test_each_direction_has_its_link_unless_both_share_one() -> None:
    links = calibration().links
    assert links[0, 1].overhead_ns == 300_000
    assert links[1, 0].overhead_ns == 100_000
    assert links[1, 0].full_duplex
    (shared,) = calibration(duplex_factor=0.5).links.values()
    assert shared.overhead_ns == 200_000
    assert not shared.full_duplex


def test_the_file_says_where_and_when_and_in_which_units() -> None:
    text = to_toml(calibration())
    assert text.startswith("# Measured by `kvsim calibrate`. Times in ns")
    origin = tomllib.loads(text)["calibration"]["origin"]
    assert origin["date"] == "2026-01-02T03:04:05Z"
    assert origin["machine"] == 'a "small" one, 2 cores'


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("[hardware", "[other", r"no table \[hardware\]"),
        ("[calibration.swap_in]", "[calibration.other]", r"no table \[swap_in\]"),
        ("block_ns = 1.0", "block_ns = 0.0", "swap_in must have a block_ns above 0"),
        ("block_ns = 1.0", "block_ns = nan", "block_ns of swap_in must be a number .* not nan"),
        ("duplex_factor = 1.0", "duplex_factor = 0.4", "duplex_factor must be 0.5 to 1, not 0.4"),
        ("wait_ns = 40000", "wait_ns = true", "wait_ns of calibration must be a number"),
        ('shape = "tiny"', "shape = 3", "shape of conditions must be text, not 3"),
        ('base = "a100-8x"', 'base = "a-100"', "unknown hardware 'a-100'"),
        ("blocks = 2", "block = 2", "blocks of sizes must be a number"),
        ("[hardware]", "[hardware", "not valid TOML"),
    ],
)
def test_a_file_that_is_damaged_is_refused_in_one_line(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    text = to_toml(calibration())
    assert old in text
    file = tmp_path / "hardware.toml"
    file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=problem) as raised:
        load_calibration(file)
    assert str(raised.value).startswith(str(file))
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("none.toml: no such file")):
        load_calibration(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=re.escape("none.toml: no such file")):
        kvsim.replay("sample:chat", hardware=str(tmp_path / "none.toml"))
    with pytest.raises(UserError, match="it is a folder; name a file"):
        save_calibration(calibration(), tmp_path)


def test_a_toml_file_of_something_else_is_no_hardware(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("gpu_blocks = 3\n")
    with pytest.raises(ConfigError, match=r"run.toml: no table \[hardware\]"):
        kvsim.replay("sample:chat", hardware=str(file))


def test_a_run_with_other_ranks_does_not_fit() -> None:
    calibration(ranks=2).check_fits(ReplayConfig(backend="paddle", ranks=2))
    with pytest.raises(ConfigError, match="calibrated with ranks 2 and the run has 1"):
        calibration(ranks=2).check_fits(ReplayConfig(backend="paddle"))
    processes = ReplayConfig(backend="paddle", ranks=2, workers="processes")
    with pytest.raises(ConfigError, match="workers 'threads' and the run has 'processes'"):
        calibration().check_fits(processes)
    with pytest.raises(ConfigError, match="calibrated with device 'cpu' and the run has 'gpu:0'"):
        calibration().check_fits(ReplayConfig(backend="paddle", ranks=2, device="gpu:0"))
