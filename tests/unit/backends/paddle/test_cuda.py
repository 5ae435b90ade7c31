"""Copies by the CUDA runtime, against a stand-in for it whose streams are late."""

from __future__ import annotations

import importlib
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.paddle.arenas import CudaArena, HostArena
from kvsim.backends.paddle.copier import Copies, CopyError, host_words, merged_runs
from kvsim.backends.paddle.cuda import CudaCopier
from kvsim.backends.paddle.cudart import Cuda, load_bindings
from kvsim.backends.region import MemoryKind, Region
from kvsim.errors import ConfigError
from tests.unit.backends.paddle.bits import rows_of
from tests.unit.backends.paddle.fake_cuda import VERSIONS, FakeCuda

if TYPE_CHECKING:
    from types import ModuleType

    from kvsim.backends.paddle.copier import Rows, Words

ROWS, ROW_BYTES = 10, 64


class Desk:
    """Memory of ten rows on each side, and a copier between them."""

    def __init__(self, fake: FakeCuda | None = None, *, row_bytes: int = ROW_BYTES) -> None:
        self.fake = FakeCuda() if fake is None else fake
        self.row_bytes = row_bytes
        cuda = Cuda(3, bindings=self.fake.bindings)
        self.gpu = CudaArena(cuda, ROWS * row_bytes)
        self.host = HostArena(ROWS * row_bytes)
        self.copier = CudaCopier(cuda)
        self.fake.calls.clear()

    def start(
        self, source: Region, rows: Rows | None, target: Region, others: Rows | None, num: int
    ) -> object:
        return self.copier.start(
            source, rows, target, others, num_rows=num, row_bytes=self.row_bytes
        )

    def words(self, region: Region) -> Words:
        """Return the memory as the stand-in has it, whatever kind it is."""
        return host_words(Region(region.ptr, region.num_bytes, MemoryKind.HOST), self.row_bytes)

    def fill(self) -> None:
        """Let row i of the host be full of i + 1."""
        self.words(self.host.region)[:] = np.arange(1, ROWS + 1)[:, None]


@pytest.mark.parametrize("version", VERSIONS)
def test_neighbouring_rows_go_as_one_and_are_there_when_copy_returns(version: str) -> None:
    major, driver = VERSIONS[version]
    fake = FakeCuda(major, driver=driver)
    desk = Desk(fake)
    desk.fill()
    desk.copier.copy(
        desk.host.region,
        rows_of([4, 5, 6, 1, 2]),
        desk.gpu.region,
        rows_of([0, 1, 2, 3, 5]),
        num_rows=5,
        row_bytes=ROW_BYTES,
    )
    assert desk.words(desk.gpu.region)[:, 0].tolist() == [5, 6, 7, 2, 0, 3, 0, 0, 0, 0]
    # 4, 5, 6 -> 0, 1, 2 is one piece of 192 bytes; 1 -> 3 and 2 -> 5 do not rise together.
    copies: list[tuple[str, int]] = [("batch", 3)]
    if fake.driver < 12_080:
        copies = [("copy", 192), ("copy", 64), ("copy", 64)]
    assert fake.calls == [
        ("device", 3),
        ("stream", 1),
        ("device", 3),
        ("stream", 1),
        *copies,
        ("record",),
    ]


def test_a_copy_is_not_done_before_its_bytes_are_there_and_nobody_waits_to_ask() -> None:
    desk = Desk()
    desk.fill()
    copy = desk.copier.start(
        desk.host.region,
        rows_of([0, 2, 4]),
        desk.gpu.region,
        rows_of([1, 3, 5]),
        num_rows=3,
        row_bytes=ROW_BYTES,
    )
    asked = []
    while not copy.is_done():
        asked.append(desk.words(desk.gpu.region)[5, 0])
    # Each question lets one thing happen: two of the three pieces, the third, then the event.
    assert asked == [0, 0, 5]
    assert copy.is_done()
    assert "wait" not in desk.fake.names()


def test_the_two_directions_do_not_wait_for_each_other() -> None:
    desk = Desk()
    desk.fill()
    up = desk.copier.start(
        desk.host.region, rows_of([0]), desk.gpu.region, rows_of([0]), num_rows=1, row_bytes=64
    )
    down = desk.copier.start(
        desk.gpu.region, rows_of([9]), desk.host.region, rows_of([9]), num_rows=1, row_bytes=64
    )
    first, second = desk.fake.streams
    first.todo.appendleft(lambda: False)  # it will never get on
    while not down.is_done():
        pass
    assert not up.is_done()
    assert desk.words(desk.host.region)[9, 0] == 0
    first.todo.popleft()
    assert second.todo == first.todo.__class__()


def test_pieces_of_a_megabyte_go_one_by_one_and_short_ones_in_batches_of_512() -> None:
    desk = Desk(row_bytes=1 << 20)
    for rows, expected in (([0, 2, 4], [("copy", 1 << 20)] * 3), ([0, 1], [("copy", 2 << 20)])):
        desk.fake.calls.clear()
        desk.start(desk.host.region, rows_of(rows), desk.gpu.region, rows_of(rows), len(rows))
        assert [call for call in desk.fake.calls if call[0] in {"copy", "batch"}] == expected
    fake = FakeCuda()
    cuda = Cuda(0, bindings=fake.bindings)
    gpu, host = CudaArena(cuda, 8 * 1200), HostArena(8 * 1200)
    every = np.arange(1100)[::-1].copy()
    CudaCopier(cuda).copy(host.region, every, gpu.region, every, num_rows=1100, row_bytes=8)
    assert [call for call in fake.calls if call[0] == "batch"] == [
        ("batch", 512), ("batch", 512), ("batch", 76),
    ]  # fmt: skip


def test_streams_are_made_once_and_events_are_used_again() -> None:
    desk = Desk()
    for _ in range(3):
        desk.copier.copy(
            desk.host.region, None, desk.gpu.region, None, num_rows=10, row_bytes=ROW_BYTES
        )
    assert desk.fake.names().count("stream") == 2
    assert len(desk.fake.events) == 1
    desk.copier.close()
    desk.copier.close()
    assert all(stream.is_destroyed for stream in desk.fake.streams)
    assert all(event.is_destroyed for event in desk.fake.events)


def test_copies_that_follow_a_computation_wait_for_it_on_their_streams_and_the_host_does_not() -> (
    None
):
    desk = Desk()
    compute = desk.copier.cuda.new_stream()
    gpu = desk.words(desk.gpu.region)
    desk.fake.put(compute, lambda: gpu.fill(7))
    desk.copier.follow(compute)
    copy = desk.copier.start(
        desk.gpu.region, None, desk.host.region, None, num_rows=10, row_bytes=ROW_BYTES
    )
    assert not gpu.any()  # it has not even begun
    while not copy.is_done():
        pass
    assert desk.words(desk.host.region).tolist() == [[7] * 8] * 10


def test_a_computation_that_a_copy_leads_waits_for_its_layer_and_for_no_more() -> None:
    desk = Desk()
    desk.fill()
    compute = desk.copier.cuda.new_stream()
    found: list[int] = []
    layers = [
        desk.copier.start(
            desk.host.region,
            rows_of([layer]),
            desk.gpu.region,
            rows_of([layer]),
            num_rows=1,
            row_bytes=ROW_BYTES,
        )
        for layer in range(3)
    ]
    gpu = desk.words(desk.gpu.region)
    for layer, copy in enumerate(layers):
        desk.copier.lead(compute, copy)
        desk.fake.put(compute, lambda layer=layer: found.append(int(gpu[layer, 0])))  # type: ignore[misc]
    assert found == []
    while not layers[0].is_done():
        pass
    while desk.fake._step(compute):  # noqa: SLF001  (only the computation goes on)
        pass
    assert found == [1]  # its own layer, not the next, which is still on its way
    desk.fake.cudaDeviceSynchronize()
    assert found == [1, 2, 3]


def test_a_copy_that_nobody_asks_about_keeps_its_descriptors_until_it_is_done() -> None:
    """The stand-in finds out if they are gone when it comes to the copy."""
    desk = Desk()
    desk.fill()
    desk.start(desk.host.region, rows_of([0, 2]), desk.gpu.region, rows_of([0, 2]), 2)
    desk.copier.drain()
    assert desk.words(desk.gpu.region)[:3, 0].tolist() == [1, 0, 3]


def test_a_copy_that_is_known_to_be_done_leads_without_an_event() -> None:
    desk = Desk()
    compute = desk.copier.cuda.new_stream()
    copy = desk.copier.start(
        desk.host.region, None, desk.gpu.region, None, num_rows=10, row_bytes=ROW_BYTES
    )
    copy.wait()
    desk.copier.lead(compute, copy)
    assert not compute.todo


def test_without_follow_a_copy_takes_what_is_there() -> None:
    """The stand-in would show an engine that forgot to wait."""
    desk = Desk()
    compute = desk.copier.cuda.new_stream()
    gpu = desk.words(desk.gpu.region)
    desk.fake.put(compute, lambda: gpu.fill(7))
    compute.todo.appendleft(lambda: False)
    desk.copier.copy(
        desk.gpu.region, None, desk.host.region, None, num_rows=10, row_bytes=ROW_BYTES
    )
    assert not desk.words(desk.host.region).any()
    compute.todo.clear()


@pytest.mark.parametrize("fails_at", [0, 1, 2])
@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_of_the_runtime_is_a_copy_error_and_nothing_is_on_its_way_any_more(
    version: str, fails_at: int
) -> None:
    major, driver = VERSIONS[version]
    message = {
        (12, 12_090): rf"cudaMemcpyBatchAsync failed at piece {fails_at} of 3: 1",
        (13, 13_000): r"cudaMemcpyBatchAsync failed of 3: 1",
        (12, 12_060): r"cudaMemcpyAsync failed: 719",
    }[major, driver]
    desk = Desk(FakeCuda(major, driver=driver))
    desk.fake.fails_at = fails_at
    with pytest.raises(CopyError, match=message):
        desk.start(desk.host.region, rows_of([0, 2, 4]), desk.gpu.region, rows_of([0, 2, 4]), 3)
    assert desk.fake.is_idle()


def test_a_copy_that_fails_on_its_way_says_so_when_asked() -> None:
    desk = Desk()
    copy = desk.copier.start(
        desk.host.region, None, desk.gpu.region, None, num_rows=10, row_bytes=ROW_BYTES
    )
    desk.fake.is_broken = True
    with pytest.raises(CopyError, match="cudaEventQuery failed: 719"):
        copy.is_done()
    desk.copier.drain()
    assert desk.fake.is_idle()


def test_several_copies_are_done_when_the_last_is() -> None:
    desk = Desk()
    desk.fill()
    parts = [
        desk.copier.start(
            desk.host.region,
            rows_of([row]),
            desk.gpu.region,
            rows_of([row]),
            num_rows=1,
            row_bytes=ROW_BYTES,
        )
        for row in range(3)
    ]
    copies = Copies(parts)
    while not copies.is_done():
        assert not desk.fake.is_idle()
    assert desk.words(desk.gpu.region)[:3, 0].tolist() == [1, 2, 3]


def test_a_wrong_row_never_reaches_the_runtime() -> None:
    desk = Desk()
    for source_rows, target_rows in ((rows_of([10]), None), (None, rows_of([-1]))):
        with pytest.raises(CopyError, match="beyond the 10 rows"):
            desk.start(desk.host.region, source_rows, desk.gpu.region, target_rows, 1)
    assert desk.fake.calls == []


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12),
    st.booleans(),
    st.booleans(),
)
def test_runs_are_all_the_rows_in_order_and_as_long_as_can_be(
    pairs: list[tuple[int, int]], is_first: bool, is_second: bool
) -> None:
    num = len(pairs)
    here = list(range(num)) if is_first else [pair[0] for pair in pairs]
    there = list(range(num)) if is_second else [pair[1] for pair in pairs]
    runs = list(
        merged_runs(None if is_first else rows_of(here), None if is_second else rows_of(there), num)
    )
    rows = [(a + i, b + i) for a, b, length in runs for i in range(length)]
    assert rows == list(zip(here, there, strict=True))
    for (a, b, length), (next_a, next_b, _) in pairwise(runs):
        assert (a + length, b + length) != (next_a, next_b)


def test_missing_bindings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> ModuleType:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ConfigError, match="pip install 'cuda-bindings'"):
        load_bindings()


def test_the_bindings_know_all_that_is_called() -> None:
    """The stand-in must not know more than the real ones, which import without a driver."""
    runtime = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings are not installed")
    names = [name for name in vars(FakeCuda) if name.startswith("cuda")]
    assert [name for name in names if not hasattr(runtime, name)] == []
    assert load_bindings()[1] in (12, 13)


def test_memory_of_the_host_is_zero_and_pinned_until_it_is_closed() -> None:
    fake = FakeCuda()
    arena = HostArena(5000)
    assert not arena.bytes.any()
    arena.pin(Cuda(1, bindings=fake.bindings))
    assert fake.pinned == {arena.region.ptr: 5000}
    arena.close()
    arena.close()
    assert fake.pinned == {}


def test_memory_that_cannot_be_had_or_pinned_is_refused_in_one_line() -> None:
    fake = FakeCuda()
    fake.pinned_limit_bytes = 1000
    with pytest.raises(ConfigError, match=r"host memory cannot be pinned: .*ulimit -l"):
        HostArena(5000).pin(Cuda(0, bindings=fake.bindings))
    with pytest.raises(ConfigError, match=r"the host refuses 4294967296\.0 GiB"):
        HostArena(1 << 62)
    with pytest.raises(CopyError, match="cudaMalloc failed"):
        CudaArena(Cuda(0, bindings=fake.bindings), 1 << 40)


def test_memory_of_a_gpu_is_zero_and_freed_once() -> None:
    fake = FakeCuda()
    arena = CudaArena(Cuda(0, bindings=fake.bindings), 64)
    (memory,) = fake.allocated.values()
    assert memory.raw[:64] == bytes(64)
    assert arena.region.kind is MemoryKind.GPU
    arena.close()
    arena.close()
    assert fake.allocated == {}


def test_without_a_driver_there_are_no_devices() -> None:
    assert Cuda(0, bindings=FakeCuda(num_devices=0).bindings).count_devices() == 0
    assert Cuda(0, bindings=FakeCuda(num_devices=2).bindings).count_devices() == 2
