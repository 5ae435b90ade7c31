"""Copies rows of memory from one region to another."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvsim.backends.paddle.shape import WORD_BYTES
from kvsim.backends.region import MemoryKind
from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from kvsim.backends.region import Region

Rows: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.int64]


class CopyError(KvsimError, RuntimeError):
    """A copy that failed, or that reaches beyond its region."""


class Copier(Protocol):
    """Moves rows of equal length between two regions."""

    def copy(
        self,
        source: Region,
        source_rows: Rows | None,
        target: Region,
        target_rows: Rows | None,
        *,
        num_rows: int,
        row_bytes: int,
    ) -> None:
        """Copy row `source_rows[i]` of `source` to row `target_rows[i]` of `target`, for each i.

        A region is taken as rows of `row_bytes` bytes, one after another; None means the first
        `num_rows` rows in order. The target rows are all different, and the regions do not
        overlap. The bytes are there when the call returns.

        Raises
        ------
        CopyError
            If a row lies beyond its region, or the copy fails.
        """


class HostCopier:
    """Copies between regions of the host, by gather and scatter. Not for use by two threads."""

    def __init__(self) -> None:
        self._views: dict[tuple[int, int, int], Words] = {}

    def copy(
        self,
        source: Region,
        source_rows: Rows | None,
        target: Region,
        target_rows: Rows | None,
        *,
        num_rows: int,
        row_bytes: int,
    ) -> None:
        """Copy rows (see `Copier.copy`)."""
        words_in, words_out = self._view(source, row_bytes), self._view(target, row_bytes)
        check_rows(source, source_rows, num_rows, row_bytes)
        check_rows(target, target_rows, num_rows, row_bytes)
        if target_rows is None:
            out = words_out[:num_rows]
            if source_rows is None:
                out[:] = words_in[:num_rows]
            else:
                # "clip" because the default mode makes a copy of `out` first; see `check_rows`.
                words_in.take(source_rows, 0, out, "clip")
        elif source_rows is None:
            words_out[target_rows] = words_in[:num_rows]
        else:
            words_out[target_rows] = words_in[source_rows]

    def _view(self, region: Region, row_bytes: int) -> Words:
        if region.kind is not MemoryKind.HOST:
            raise CopyError(f"the host cannot reach memory of kind {region.kind}")
        place = (region.ptr, region.num_bytes, row_bytes)
        view = self._views.get(place)
        if view is None:
            view = self._views[place] = host_words(region, row_bytes)
        return view


def check_rows(region: Region, rows: Rows | None, num_rows: int, row_bytes: int) -> None:
    """Raise `CopyError` unless all rows lie in `region`: others would be overwritten."""
    num_there = region.num_bytes // row_bytes
    if rows is None:
        first, last = 0, num_rows - 1
    elif len(rows) != num_rows:
        raise CopyError(f"{num_rows} rows asked for, {len(rows)} named")
    elif (
        not num_rows or np.maximum.reduce(rows.view(np.uint64)) < num_there
    ):  # a negative one is huge so
        return
    else:
        first, last = int(rows.min()), int(rows.max())
    if first < 0 or last >= num_there:
        row = first if first < 0 else last
        raise CopyError(f"row {row} lies beyond the {num_there} rows of {row_bytes} bytes")


def host_words(region: Region, row_bytes: int) -> Words:
    """Return a region of the host as an array of (rows, words a row), without a copy.

    The array does not keep the memory alive.

    Raises
    ------
    CopyError
        If rows or address are not whole words.
    """
    if row_bytes % WORD_BYTES or region.ptr % WORD_BYTES:
        raise CopyError(
            f"rows of {row_bytes} bytes at address {region.ptr:#x} are not whole words"
            f" of {WORD_BYTES} bytes"
        )
    num_rows, num_words = region.num_bytes // row_bytes, row_bytes // WORD_BYTES
    memory = (ctypes.c_int64 * (num_rows * num_words)).from_address(region.ptr)
    return np.ctypeslib.as_array(memory).reshape(num_rows, num_words)
