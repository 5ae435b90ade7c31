"""Pools: one arena of Paddle's a tier, seen without a copy; and what a machine has not got."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.backends.paddle.copier import CopyError, HostCopier, host_words
from kvsim.backends.paddle.layout import Layout
from kvsim.backends.paddle.pool import KVPool, available_bytes, check_memory
from kvsim.backends.paddle.runtime import find_place, load_paddle
from kvsim.backends.region import MemoryKind
from kvsim.errors import ConfigError
from tests.unit.backends.paddle.bits import SHAPE

if TYPE_CHECKING:
    from types import ModuleType

pytest.importorskip("paddle", reason="the tensor backend needs PaddlePaddle")


def test_the_region_is_the_arena_itself_and_zero() -> None:
    pool = KVPool(SHAPE, 5)
    array = np.from_dlpack(pool._arena)  # noqa: SLF001  (bf16 has no DLPack in numpy)
    assert array.dtype == np.uint8
    assert array.shape == (5 * 256,)  # 32 words a block
    assert array.ctypes.data == pool.region.ptr
    assert pool.region.num_bytes == 5 * 256
    assert pool.region.kind is MemoryKind.HOST
    assert not array.any()
    host_words(pool.region, 8)[3, 0] = -1
    assert array.tolist().count(255) == 8
    array[0] = 7
    assert host_words(pool.region, 8)[0, 0] == 7


def test_the_typed_view_has_the_dimensions_of_the_shape_and_shares_the_memory() -> None:
    pool = KVPool(SHAPE, 5)
    (tensor,) = pool.tensors()
    assert tuple(tensor.shape) == (5, 2, 2, 2, 4, 4)
    assert str(tensor.dtype) == "paddle.bfloat16"
    assert tensor.data_ptr() == pool.region.ptr
    # 1.0 in bf16 is 0x3F80. Block 3, layer 1, V, head 0, token 2, value 3: rows of 4 values.
    row = (((3 * 2 + 1) * 2 + 1) * 2 + 0) * 4 + 2
    np.from_dlpack(pool._arena).view(np.uint16)[row * 4 + 3] = 0x3F80  # noqa: SLF001
    assert float(tensor[3, 1, 1, 0, 2, 3]) == 1.0
    assert float(tensor.astype("float32").sum()) == 1.0


def test_a_section_of_extra_layers_lies_where_the_layout_says() -> None:
    """Paddle gives a slice that is then viewed as another type a wrong address."""
    draft = replace(SHAPE, num_extra_layers=1, expand_ratio=1.5)
    for layout in Layout:
        pool = KVPool(draft, 4, layout=layout)
        places = [tensor.data_ptr() - pool.region.ptr for tensor in pool.tensors()]
        assert places == [section.offset_bytes for section in pool.layout.sections]
        assert [tuple(tensor.shape) for tensor in pool.tensors()] == [
            pool.layout.dimensions(section) for section in pool.layout.sections
        ]


@pytest.mark.parametrize("device", ["gpu", "gpu:x", "gpu:-1", "cuda:0", "", "CPU"])
def test_a_device_of_another_name_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=r"device must be 'cpu' or 'gpu:N'"):
        KVPool(SHAPE, 1, device=device)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"device 'gpu:999' is not there: Paddle sees \d+ GPUs"):
        find_place("gpu:999")


def test_a_pool_on_a_gpu_is_the_gpus() -> None:
    if not load_paddle().device.cuda.device_count():
        pytest.skip("this machine has no GPU that Paddle can see")
    pool = KVPool(SHAPE, 5, device="gpu:0")
    assert pool.region.kind is MemoryKind.GPU
    assert pool.tensors()[0].data_ptr() == pool.region.ptr
    with pytest.raises(CopyError, match="the host cannot reach"):
        HostCopier().copy(pool.region, None, pool.region, None, num_rows=1, row_bytes=8)


def test_more_memory_than_there_is_is_refused_before_it_is_taken() -> None:
    available = available_bytes()
    if available is None:
        pytest.skip("this system does not tell how much memory is available")
    check_memory(0)
    check_memory(available // 2)
    with pytest.raises(
        ConfigError, match=r"take 1048576\.0 GiB of host memory and .* GiB are free"
    ):
        check_memory(2**50)


def test_a_paddle_that_is_missing_or_broken_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(missing: str) -> None:
        def fail(name: str) -> ModuleType:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

        monkeypatch.setattr(importlib, "import_module", fail)

    without("paddle")
    with pytest.raises(ConfigError, match=r"not installed: pip install 'kvsim\[paddle\]'"):
        load_paddle()
    without("setuptools")
    with pytest.raises(ConfigError, match=r"does not load: No module named 'setuptools'"):
        load_paddle()
