"""The script for a GPU, run whole against the stand-in for the CUDA runtime; and without a GPU."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

import kvsim
from kvsim.backends.paddle import gpu_check
from kvsim.backends.paddle.bench import Direction
from kvsim.backends.paddle.cudart import Cuda
from kvsim.backends.paddle.gpu_check import Effort, link_toml, main
from kvsim.backends.paddle.gpu_overlap import measure_overlap
from kvsim.config import LinkConfig
from kvsim.run_file import load_run_file
from tests.unit.backends.paddle.fake_cuda import VERSIONS, FakeCuda

QUICK = Effort(block_kib=(64,), mib=1, repeats=1, counts=(1, 2), num_blocks=6)

BARE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from kvsim.backends.paddle.gpu_check import main
sys.exit(main([]))
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_the_whole_script_runs_and_finds_all_copies_right(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    major, driver = VERSIONS[version]
    fake = FakeCuda(major, driver=driver)
    assert main(["--out", str(tmp_path)], bindings=fake.bindings, effort=QUICK) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "gpu_check.json").read_text())
    assert report["copies_are_right"] is True
    assert report["paddle"] == "Paddle not exercised"
    assert report["device"]["batch_copies"] is (driver >= 12_080)
    # Block-major by blocks and by layers, and layer-major, three ways.
    assert len(report["bandwidth"]) == 9
    assert set(report["overlap"]) == {
        "swap_us", "compute_us", "together_us", "by_layer_us", "overlap_percent",
    }  # fmt: skip
    assert fake.is_idle()
    assert (fake.pinned, fake.allocated) == ({}, {})
    link = load_run_file(tmp_path / "gpu_link.toml").machine.host_link
    assert link.bytes_per_second > 1


def test_a_copy_that_goes_astray_is_found_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeCuda()
    moves = iter(range(10**9))

    def move(target: int, source: int, num_bytes: int, descriptors: object = None) -> bool:
        # One piece in ten is a byte off.
        is_off = next(moves) % 10 == 9
        ctypes.memmove(target, source + is_off, num_bytes - is_off)
        return True

    monkeypatch.setattr(fake, "_move", move)
    assert main(["--out", str(tmp_path)], bindings=fake.bindings, effort=QUICK) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["copies_are_right"] is False
    assert "rows of 64 bytes" in report["problems"][0]
    assert any("tiny-mla, layer-major, bfloat16, cudaMalloc" in each for each in report["problems"])
    assert "bandwidth" not in report
    assert not (tmp_path / "gpu_link.toml").exists()


def test_the_link_that_is_saved_is_the_slower_way_and_duplex_if_both_are_faster(
    tmp_path: Path,
) -> None:
    link = {
        "up": {"latency_ns": 900.0, "bytes_per_second": 50e9},
        "down": {"latency_ns": 1100.0, "bytes_per_second": 40e9},
        "both": {"latency_ns": 0.0, "bytes_per_second": 61e9},
    }
    file = tmp_path / "gpu_link.toml"
    file.write_text(link_toml(link, 'a "GPU"'))
    config = load_run_file(file)
    assert config.machine.name == 'a "GPU"'
    assert config.machine.host_link == LinkConfig(
        bytes_per_second=40_000_000_000, latency_ns=1100, overhead_ns=0, full_duplex=True
    )
    link["both"]["bytes_per_second"] = 60e9
    file.write_text(link_toml(link, "a"))
    assert not load_run_file(file).machine.host_link.full_duplex


def test_a_layer_of_the_computation_waits_for_its_layer_of_the_swap() -> None:
    fake = FakeCuda()
    measure_overlap(Cuda(0, bindings=fake.bindings), num_blocks=4, repeats=1)
    # Eight layers, once before it is measured and once more.
    assert fake.names().count("wait for") == 8 * 2


@pytest.mark.parametrize(
    ("arguments", "fake", "message"),
    [
        ([], FakeCuda(num_devices=0), "there is no GPU 0: CUDA sees 0"),
        (["--device", "4"], FakeCuda(), "there is no GPU 4: CUDA sees 4"),
        (["--devise", "1"], FakeCuda(), "unrecognized arguments: --devise 1 (see --help)"),
        (["--out", "nowhere"], FakeCuda(), "--out nowhere: there is no such folder"),
    ],
)
def test_what_cannot_be_checked_is_one_line_and_exit_code_2(
    arguments: list[str], fake: FakeCuda, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments, bindings=fake.bindings, effort=QUICK) == 2
    assert capsys.readouterr().err == f"gpu_check: {message}\n"


def test_memory_that_cannot_be_pinned_is_one_line_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeCuda()
    fake.pinned_limit_bytes = 1000
    assert main(["--out", str(tmp_path)], bindings=fake.bindings, effort=QUICK) == 2
    assert "cannot be pinned" in capsys.readouterr().err


def test_it_needs_numpy_and_no_other_package() -> None:
    """From a checkout, without a GPU: it comes to the question whether there is one."""
    others = "pandas,pyarrow,matplotlib,rich,paddle,msgspec,zmq,scipy,hypothesis"
    done = subprocess.run(
        [sys.executable, "-c", BARE, others],
        cwd=Path(kvsim.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        ("gpu_check: there is no GPU 0: CUDA sees 0", "gpu_check: copies to and from a GPU need")
    )


def test_the_script_says_what_it_does() -> None:
    assert (gpu_check.__doc__ or "").startswith("Checks and measures the copies")
    assert {each.value for each in Direction} == {"up", "down", "both"}
