"""Copies by the CUDA runtime, against a stand-in for it whose device memory is the host's."""

from __future__ import annotations

import ctypes
import importlib
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.paddle.copier import CopyError
from kvsim.backends.paddle.cuda import CudaCopier, load_runtime, merged_runs
from kvsim.errors import ConfigError
from tests.unit.backends.paddle.bits import Arena, rows_of

if TYPE_CHECKING:
    from kvsim.backends.paddle.copier import Rows


class Runtime:
    """Behaves like `cuda.bindings.runtime`: a copy is done when its stream is waited for."""

    cudaError_t = SimpleNamespace(cudaSuccess=0)  # noqa: N815  (as in CUDA)
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyDefault=4)  # noqa: N815  (as in CUDA)
    cudaStreamNonBlocking = 1  # noqa: N815  (as in CUDA)

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.under_way: list[tuple[int, int, int]] = []
        self.fails_at = 1 << 60

    def cudaSetDevice(self, device: int) -> tuple[int]:  # noqa: N802  (as in CUDA)
        self.calls.append(("device", device))
        return (0,)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[int, str]:  # noqa: N802
        self.calls.append(("stream", flags))
        return (0, "a stream")

    def cudaMemcpyAsync(  # noqa: N802
        self, target: int, source: int, num_bytes: int, kind: int, stream: str
    ) -> tuple[int]:
        assert (kind, stream) == (4, "a stream")
        if len([call for call in self.calls if call[0] == "copy"]) == self.fails_at:
            return (719,)
        self.calls.append(("copy", num_bytes))
        self.under_way.append((target, source, num_bytes))
        return (0,)

    def cudaStreamSynchronize(self, stream: str) -> tuple[int]:  # noqa: N802
        assert stream == "a stream"
        self.calls.append(("wait",))
        for each in self.under_way:
            ctypes.memmove(*each)
        self.under_way.clear()
        return (0,)


def copy(runtime: Runtime, source_rows: Rows | None, target_rows: Rows | None, num: int) -> Arena:
    """Copy rows of 8 bytes, the i-th of which is 8 times i + 1; return the target."""
    source, target = Arena(80), Arena(80)
    source.bytes[:] = [i // 8 + 1 for i in range(80)]
    CudaCopier(3, runtime=runtime).copy(
        source.region, source_rows, target.region, target_rows, num_rows=num, row_bytes=8
    )
    return target


def test_neighbouring_rows_go_as_one_and_are_there_when_the_call_returns() -> None:
    runtime = Runtime()
    target = copy(runtime, rows_of([4, 5, 6, 1, 2]), rows_of([0, 1, 2, 3, 5]), 5)
    assert target.bytes[::8].tolist() == [5, 6, 7, 2, 0, 3, 0, 0, 0, 0]
    # 4, 5, 6 -> 0, 1, 2 is one piece of 24 bytes; 1 -> 3 and 2 -> 5 do not rise together.
    assert runtime.calls == [
        ("device", 3),
        ("stream", 1),
        ("copy", 24),
        ("copy", 8),
        ("copy", 8),
        ("wait",),
    ]


def test_device_and_stream_are_set_once() -> None:
    runtime, arena, other = Runtime(), Arena(80), Arena(80)
    copier = CudaCopier(0, runtime=runtime)
    for _ in range(3):
        copier.copy(arena.region, None, other.region, None, num_rows=10, row_bytes=8)
    assert [call[0] for call in runtime.calls] == [
        "device", "stream", "copy", "wait", "copy", "wait", "copy", "wait",
    ]  # fmt: skip


def test_an_error_of_the_runtime_is_a_copy_error_and_nothing_is_on_its_way_any_more() -> None:
    runtime = Runtime()
    runtime.fails_at = 1
    with pytest.raises(CopyError, match="cudaMemcpyAsync failed: 719"):
        copy(runtime, rows_of([0, 2, 4]), rows_of([0, 2, 4]), 3)
    assert runtime.calls[-1] == ("wait",)
    assert not runtime.under_way


def test_a_wrong_row_never_reaches_the_runtime() -> None:
    runtime = Runtime()
    for source_rows, target_rows in ((rows_of([10]), None), (None, rows_of([-1]))):
        with pytest.raises(CopyError, match="beyond the 10 rows"):
            copy(runtime, source_rows, target_rows, 1)
    assert runtime.calls == []


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
        load_runtime()
