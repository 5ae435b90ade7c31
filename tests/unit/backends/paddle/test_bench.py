"""What is measured is what is said: the bytes move, the figures follow from the times."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.backends.paddle import bench_process
from kvsim.backends.paddle.bench import (
    CopyTimes,
    Direction,
    SwapRig,
    Unit,
    fit_link,
    measure_ceiling,
    measure_copies,
    shape_of,
)
from kvsim.backends.paddle.bench_process import BenchSpec, measure, spec_from_json, spec_to_json
from kvsim.backends.paddle.cudart import Cuda
from kvsim.backends.paddle.layout import Layout
from kvsim.backends.streaming import streaming_environment
from kvsim.errors import ConfigError
from tests.unit.backends.paddle.fake_cuda import FakeCuda

if TYPE_CHECKING:
    from kvsim.backends.paddle.copier import Words

BLOCK = 64 << 10

SPEC = BenchSpec(
    block_bytes=(BLOCK,),
    layouts=("block-major", "layer-major"),
    directions=("up", "both"),
    device="cpu",
    bytes_each_way=4 * BLOCK,
    repeats=3,
    seed=0,
)


def timed(num_bytes: int, *times_ns: int) -> CopyTimes:
    return CopyTimes(
        direction=Direction.UP,
        layout=Layout.BLOCK_MAJOR,
        unit=Unit.BLOCK,
        block_bytes=num_bytes,
        num_blocks=1,
        num_bytes=num_bytes,
        times_ns=times_ns,
    )


def block_words(rig: SwapRig, *, is_host: bool) -> Words:
    """Return one word for each block of a tier of a rig on the CPU."""
    arena = rig._host if is_host else rig._gpu  # noqa: SLF001  (what it moved is nobody's business)
    return arena.bytes.view(np.int64).reshape(rig.num_blocks, -1)[:, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize("unit", Unit)
def test_a_swap_moves_the_blocks_it_says_each_way(unit: Unit) -> None:
    with SwapRig(shape_of(BLOCK), 8) as rig:
        block_words(rig, is_host=True)[:] = 1
        block_words(rig, is_host=False)[:] = 2
        assert rig.swap_ns(Direction.BOTH, 3, unit) > 0
        # 3 of 8 went up and are 1 now; 3 others of the upper tier went down.
        assert sorted(block_words(rig, is_host=False)) == [1] * 3 + [2] * 5
        assert sorted(block_words(rig, is_host=True)) == [1] * 5 + [2] * 3
        assert rig.swap_ns(Direction.UP, 4, unit) > 0
        with pytest.raises(ConfigError, match="a tier of 8 blocks has not the 10 that 5 blocks"):
            rig.swap_ns(Direction.UP, 5, unit)


def test_on_a_gpu_all_goes_by_the_runtime_and_nothing_is_left() -> None:
    fake = FakeCuda()
    cuda = Cuda(0, bindings=fake.bindings)
    with SwapRig(shape_of(BLOCK), 8, device="gpu:0", cuda=cuda) as rig:
        assert fake.pinned == {rig._host.region.ptr: 8 * BLOCK}  # noqa: SLF001
        for direction in Direction:
            assert rig.swap_ns(direction, 2) > 0
            assert measure_ceiling(rig, direction, repeats=1) > 0
        assert fake.is_idle()
    assert (fake.pinned, fake.allocated) == ({}, {})
    assert all(stream.is_destroyed for stream in fake.streams)


def test_each_transfer_is_measured_as_often_as_asked_and_once_before() -> None:
    with SwapRig(shape_of(BLOCK), 8) as rig:
        found = measure_copies(rig, counts=(1, 4), repeats=3, units=tuple(Unit))
    assert [(t.unit, t.direction, t.num_blocks) for t in found] == [
        (unit, direction, num) for unit in Unit for direction in Direction for num in (1, 4)
    ]
    assert {len(t.times_ns) for t in found} == {3}
    assert [t.num_bytes // BLOCK for t in found[:6]] == [1, 4, 1, 4, 2, 8]


def test_the_rate_is_that_of_the_time_in_the_middle() -> None:
    # 1000 bytes in 500 ns are 2 bytes a nanosecond.
    assert timed(1000, 100, 500, 900).bytes_per_second == 2 * 10**9


def test_a_link_is_fitted_to_times_of_one_exactly() -> None:
    # 700 ns, and 4 ns a byte.
    fit = fit_link([timed(size, 700 + 4 * size) for size in (1, 10, 1000, 100_000)])
    assert fit == (700, 250_000_000, 0.0)


def test_a_link_has_no_latency_below_zero() -> None:
    fit = fit_link([timed(100, 90), timed(1000, 1000)])
    # Nearest through the origin: the mean of 100 / 90 and 1 byte a nanosecond.
    assert fit.latency_ns == 0
    assert fit.bytes_per_second == round(10**9 * (100 / 90 + 1) / 2)
    with pytest.raises(ConfigError, match="at least two sizes"):
        fit_link([timed(100, 90), timed(100, 91)])


def test_a_block_that_cannot_be_cut_into_layers_is_refused() -> None:
    assert shape_of(1 << 20).layer_bytes == 128 << 10
    for size in (0, -4096, 5000):
        with pytest.raises(ConfigError, match=f"a multiple of 4096 bytes, not {size}"):
            shape_of(size)


def test_a_transfer_is_compared_with_a_contiguous_copy_of_as_many_bytes() -> None:
    rows = measure(SPEC)
    assert [(row["layout"], row["unit"], row["direction"]) for row in rows] == [
        ("block-major", "block", "up"),
        ("block-major", "block", "both"),
        ("block-major", "layer", "up"),
        ("block-major", "layer", "both"),
        ("layer-major", "block", "up"),
        ("layer-major", "block", "both"),
    ]
    for row in rows:
        num_bytes = 4 * BLOCK * (2 if row["direction"] == "both" else 1)
        assert row["bytes_per_second"] == num_bytes * 10**9 // sorted(row["times_ns"])[1]
        ceiling_ns = sorted(row["ceiling_times_ns"])[1]
        assert row["ceiling_bytes_per_second"] == num_bytes * 10**9 // ceiling_ns
        shares = [
            100 * ceiling / time
            for ceiling, time in zip(row["ceiling_times_ns"], row["times_ns"], strict=True)
        ]
        assert row["percent_of_ceiling"] == round(sorted(shares)[1], 1)


def test_the_process_reads_a_spec_and_says_what_is_wrong_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spec_from_json(spec_to_json(SPEC)) == SPEC
    monkeypatch.setattr(sys, "stdin", io.StringIO(spec_to_json(replace(SPEC, repeats=1))))
    assert bench_process.main() == 0
    assert len(json.loads(capsys.readouterr().out)) == 6
    monkeypatch.setattr(sys, "stdin", io.StringIO(spec_to_json(replace(SPEC, device="tpu"))))
    assert bench_process.main() == 2
    assert capsys.readouterr().err == (
        "device must be 'cpu' or 'gpu:N' with a number N, not 'tpu'\n"
    )


def test_long_copies_bypass_the_caches_unless_the_user_has_said_otherwise() -> None:
    ours = "glibc.cpu.x86_non_temporal_threshold=0x80000"
    assert streaming_environment({"A": "1"}) == {"A": "1", "GLIBC_TUNABLES": ours}
    others = {"GLIBC_TUNABLES": "glibc.malloc.check=3"}
    assert streaming_environment(others) == {"GLIBC_TUNABLES": f"glibc.malloc.check=3:{ours}"}
    set_already = {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x40000"}
    assert streaming_environment(set_already) == set_already
