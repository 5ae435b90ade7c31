"""The copier of the host, against copies of single rows; and all that it must refuse."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.paddle.copier import CopyError, HostCopier, Rows, host_words
from kvsim.backends.region import MemoryKind, Region
from tests.unit.backends.paddle.bits import Arena, rows_of


@st.composite
def copies(
    draw: st.DrawFn,
) -> tuple[int, int, int, list[int] | None, list[int] | None, int]:
    """Return (words a row, rows there, rows in the target, source rows, target rows, number)."""
    num_words, num_there, num_in_target = (draw(st.integers(1, n)) for n in (4, 9, 9))
    num_rows = draw(st.integers(0, num_in_target))
    source_rows: list[int] | None = None
    if num_rows > num_there or draw(st.booleans()):
        each = st.integers(0, num_there - 1)
        source_rows = draw(st.lists(each, min_size=num_rows, max_size=num_rows))
    target_rows: list[int] | None = None
    if draw(st.booleans()):
        target_rows = draw(st.permutations(range(num_in_target)))[:num_rows]
    return num_words, num_there, num_in_target, source_rows, target_rows, num_rows


def as_rows(rows: list[int] | None) -> Rows | None:
    return None if rows is None else rows_of(rows)


@given(copies())
def test_each_row_goes_where_it_is_told_and_nothing_else_is_touched(
    copy: tuple[int, int, int, list[int] | None, list[int] | None, int],
) -> None:
    num_words, num_there, num_in_target, source_rows, target_rows, num_rows = copy
    row_bytes = 8 * num_words
    source, target = Arena(num_there * row_bytes), Arena(num_in_target * row_bytes + 5)
    source.bytes[:] = np.random.default_rng(0).integers(0, 256, len(source.bytes))
    target.bytes[:] = 170
    expected, before = target.bytes.copy(), source.bytes.copy()
    for i in range(num_rows):
        here = (i if source_rows is None else source_rows[i]) * row_bytes
        there = (i if target_rows is None else target_rows[i]) * row_bytes
        expected[there : there + row_bytes] = before[here : here + row_bytes]
    HostCopier().copy(
        source.region,
        as_rows(source_rows),
        target.region,
        as_rows(target_rows),
        num_rows=num_rows,
        row_bytes=row_bytes,
    )
    assert (target.bytes == expected).all()
    assert (source.bytes == before).all()


@pytest.mark.parametrize("rows", [[0, 4], [-1, 0], [0, 2**62], [-(2**63), 1], [0], [0, 1, 2]])
@pytest.mark.parametrize("is_source", [True, False])
def test_a_wrong_row_is_refused_and_nothing_is_written(rows: list[int], is_source: bool) -> None:
    source, target = Arena(4 * 8), Arena(4 * 8)
    source.bytes[:] = 1
    wrong, right = rows_of(rows), rows_of([0, 1])
    with pytest.raises(CopyError, match=r"beyond the 4 rows of 8 bytes|2 rows asked for"):
        HostCopier().copy(
            source.region,
            wrong if is_source else right,
            target.region,
            right if is_source else wrong,
            num_rows=2,
            row_bytes=8,
        )
    assert not target.bytes.any()


def test_more_rows_in_order_than_there_are_are_refused() -> None:
    small, large = Arena(4 * 8), Arena(9 * 8)
    for source, target in ((small, large), (large, small)):
        with pytest.raises(CopyError, match="row 4 lies beyond the 4 rows of 8 bytes"):
            HostCopier().copy(source.region, None, target.region, None, num_rows=5, row_bytes=8)


def test_rows_or_addresses_that_are_no_whole_words_are_refused() -> None:
    arena, other = Arena(64), Arena(64)
    odd = Region(arena.region.ptr + 4, 56, MemoryKind.HOST)
    for region, row_bytes in ((arena.region, 12), (odd, 8)):
        with pytest.raises(CopyError, match="not whole words of 8 bytes"):
            HostCopier().copy(region, None, other.region, None, num_rows=1, row_bytes=row_bytes)


def test_memory_of_a_gpu_is_refused_also_if_the_same_address_was_the_hosts() -> None:
    arena, other = Arena(64), Arena(64)
    gpu = Region(arena.region.ptr, 64, MemoryKind.GPU)
    copier = HostCopier()
    copier.copy(arena.region, None, other.region, None, num_rows=1, row_bytes=8)
    for source, target in ((gpu, other.region), (other.region, gpu)):
        with pytest.raises(CopyError, match="the host cannot reach memory of kind gpu"):
            copier.copy(source, None, target, None, num_rows=1, row_bytes=8)


def test_it_works_on_a_mapped_file_and_with_rows_of_two_sizes() -> None:
    with mmap.mmap(-1, 4096) as mapped:
        array = np.frombuffer(mapped, np.uint8)
        region = Region(array.ctypes.data, 4096, MemoryKind.HOST)
        source, copier = Arena(64), HostCopier()
        source.bytes[:] = range(64)
        copier.copy(source.region, None, region, rows_of([3, 1]), num_rows=2, row_bytes=32)
        copier.copy(source.region, rows_of([7]), region, rows_of([511]), num_rows=1, row_bytes=8)
        assert array[96:128].tolist() == list(range(32))
        assert array[32:64].tolist() == list(range(32, 64))
        assert array[4088:].tolist() == list(range(56, 64))
        assert np.count_nonzero(array) == 31 + 32 + 8  # the very first byte is 0
        del array


def test_a_view_of_the_host_shares_its_memory_and_leaves_out_a_rest_of_a_row() -> None:
    arena = Arena(40)
    view = host_words(arena.region, 16)
    assert view.shape == (2, 2)
    view[1, 1] = -1
    assert arena.bytes[24:32].tolist() == [255] * 8
    assert not arena.bytes[32:].any()
