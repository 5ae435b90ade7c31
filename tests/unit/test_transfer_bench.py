"""`kvsim.bench_transfer` and its command: what it measures, shows, draws and refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from matplotlib.figure import Figure

import kvsim
from kvsim.cli import main
from kvsim.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.transfer_bench import TransferBench


@pytest.fixture(scope="module")
def result() -> TransferBench:
    return kvsim.bench_transfer(block_kib=[64, 256], mib=1, repeats=1)


def test_every_layout_unit_size_and_direction_is_measured(result: TransferBench) -> None:
    # Block-major by blocks and by layers, and layer-major; 2 sizes, 3 directions.
    assert len(result.rows) == 3 * 2 * 3
    assert {row["num_blocks"] * row["block_bytes"] for row in result.rows} == {1 << 20}
    assert json.loads(result.to_json())["rows"] == list(result.rows)


def test_the_table_has_a_line_for_each_and_says_what_the_ceiling_is(result: TransferBench) -> None:
    rows = result.table_rows()
    assert rows[0][:4] == ("block-major", "block", "64 KiB", "up")
    assert rows[0][6] == f"{result.rows[0]['percent_of_ceiling']:.0f} %"
    assert "one large contiguous copy" in result.notes[0]
    assert "bypass the caches" in result.notes[1]


def test_the_picture_has_a_line_for_each_and_its_units(result: TransferBench) -> None:
    ax = result.plot(Figure().add_subplot())
    labelled = [line for line in ax.get_lines() if not str(line.get_label()).startswith("_")]
    assert len(labelled) == 9
    assert ax.get_xlabel() == "block (KiB, all layers)"
    assert ax.get_ylabel() == "% of one contiguous copy"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["64", "256"]


def test_the_command_prints_the_table_and_saves_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "copies.png"
    arguments = ["--mib", "1", "--repeats", "1", "--block-kib", "128", "--direction", "up,both"]
    assert main(["bench-transfer", *arguments, "--plot", str(picture)]) == 0
    said = capsys.readouterr().out
    assert said.count("128 KiB") == 3 * 2
    assert picture.stat().st_size > 1000
    assert main(["bench-transfer", *arguments, "--layout", "layer-major", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--block-kib", "a"], "--block-kib must be sizes in KiB with commas between them"),
        (["--block-kib", "6"], "block_kib must be multiples of 4, not 6"),
        (["--block-kib", "2048", "--mib", "1"], "mib is 1, less than a block of 2048 KiB"),
        (["--layout", "flat"], "unknown layout 'flat'. Known: block-major, layer-major."),
        (["--direction", "left"], "unknown direction 'left'. Known: both, down, up."),
        (["--repeats", "0"], "repeats must be an integer from 1 to 10000, not 0"),
        (["--device", "tpu"], "the measurement failed: device must be 'cpu' or 'gpu:N'"),
        (["--mib", "1048576"], "the measurement failed: the pools of all ranks take 4096.0 GiB"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench-transfer", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"kvsim: {message}")
    assert said.count("\n") == 1


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(UserError, match="at least one block size"):
        kvsim.bench_transfer(block_kib=[])
