"""Memory that others can map, and what must not be mapped."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.backends.region import MemoryKind, Region
from kvsim.backends.transports.memory import MemoryFile, check_file, view_region
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_mapping_of_the_file_is_the_same_memory() -> None:
    with MemoryFile(5_000) as memory, mmap.mmap(memory.file, 5_000) as other:
        other[4_999] = 7
        assert memory.bytes[4_999] == 7
        assert view_region(memory.region)[4_999] == 7


def test_a_file_cannot_be_cut_short_under_those_that_have_mapped_it() -> None:
    with MemoryFile(5_000) as memory:
        for length in (0, 10_000):
            with pytest.raises(PermissionError):
                os.ftruncate(memory.file, length)


def test_nothing_is_left_of_a_closed_file() -> None:
    memory = MemoryFile(100)
    file = memory.file
    memory.close()
    memory.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
    with pytest.raises(ValueError, match="is closed"):
        _ = memory.bytes


def test_memory_that_somebody_looks_at_is_not_unmapped() -> None:
    memory = MemoryFile(100)
    view = memory.bytes
    with pytest.raises(BufferError):
        memory.close()
    assert view[0] == 0
    del view
    memory.close()


def test_a_file_on_a_disk_is_not_safe_to_map(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_bytes(bytes(100))
    with path.open() as opened:
        with pytest.raises(ConfigError, match="can be cut short"):
            check_file(opened.fileno(), 100)
        with pytest.raises(ConfigError, match="a region of 99 bytes has 100 bytes"):
            check_file(opened.fileno(), 99)


@pytest.mark.parametrize("num_bytes", [0, -1])
def test_a_file_has_a_length(num_bytes: int) -> None:
    with pytest.raises(ConfigError, match="has one byte or more"):
        MemoryFile(num_bytes)


def test_memory_of_a_gpu_is_not_looked_at() -> None:
    with pytest.raises(ConfigError, match="moves memory of the host, not of kind gpu"):
        view_region(Region(0, 100, MemoryKind.GPU))


def test_a_view_is_the_memory_itself() -> None:
    array = np.zeros(16, np.uint8)
    view_region(Region(array.ctypes.data, 16, MemoryKind.HOST))[3] = 9
    assert array.tolist() == [0, 0, 0, 9, *[0] * 12]
