"""Copies rows of memory from one region to another."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvsim.backends.paddle.shape import WORD_BYTES
from kvsim.backends.region import MemoryKind
from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.backends.region import Region

Rows: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.int64]

_LONG_BYTES: Final = 8 << 10
"""From here on a row is worth a call of its own; the cost of one is that of about 4 KiB."""

_SCRATCH_BYTES: Final = 256 << 10  # stays in the second-level cache of a core


class CopyError(KvsimError, RuntimeError):
    """A copy that failed, or that reaches beyond its region."""


class Copy(Protocol):
    """A copy that was started."""

    def is_done(self) -> bool:
        """Whether all bytes are there; changes nothing but what the copy itself holds.

        Raises
        ------
        CopyError
            If the copy failed. Nothing of it is on its way any more.
        """


class Copier(Protocol):
    """Moves rows of equal length between two regions. Not for use by two threads."""

    def start(
        self,
        source: Region,
        source_rows: Rows | None,
        target: Region,
        target_rows: Rows | None,
        *,
        num_rows: int,
        row_bytes: int,
    ) -> Copy:
        """Begin to copy row `source_rows[i]` of `source` to row `target_rows[i]` of `target`.

        A region is taken as rows of `row_bytes` bytes, one after another; None means the first
        `num_rows` rows in order. The target rows are all different, and the regions do not
        overlap. Until the copy is done, both must stay as they are. Copies that go the same way,
        up or down, are done in the order in which they were started.

        Raises
        ------
        CopyError
            If a row lies beyond its region, or the copy fails. Nothing is on its way then.
        """

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
        """Copy as `start` does. The bytes are there when the call returns."""

    def drain(self) -> None:
        """Wait until nothing is on its way any more, also if copies have failed. Never raises."""

    def close(self) -> None:
        """Drain, and give up what was taken. Idempotent; no copy is started after it."""


class CopyDone:
    """A `Copy` that was done before anybody asked."""

    def is_done(self) -> bool:
        """Say so."""
        return True


DONE: Final = CopyDone()


class Copies:
    """Several copies as one."""

    def __init__(self, parts: Sequence[Copy]) -> None:
        self._parts = [part for part in parts if part is not DONE]

    def is_done(self) -> bool:
        """Whether all are."""
        while self._parts:
            if not self._parts[-1].is_done():
                return False
            self._parts.pop()
        return True


class HostCopier:
    """Copies between regions of the host. A copy is done when `start` returns.

    Rows that are neighbours on both sides go as one; where those on one side are, numpy gathers or
    scatters; else long rows are copied one by one, and short ones gathered and scattered by way of
    a piece of memory that stays in the cache.
    """

    def __init__(self) -> None:
        self._views: dict[tuple[int, int, int], Words] = {}
        self._scratch: Words = np.zeros(_SCRATCH_BYTES // WORD_BYTES, np.int64)

    def start(
        self,
        source: Region,
        source_rows: Rows | None,
        target: Region,
        target_rows: Rows | None,
        *,
        num_rows: int,
        row_bytes: int,
    ) -> Copy:
        """Copy rows (see `Copier.start`)."""
        self.copy(source, source_rows, target, target_rows, num_rows=num_rows, row_bytes=row_bytes)
        return DONE

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
        if not num_rows:
            return
        first, other_first = first_of_run(source_rows), first_of_run(target_rows)
        if other_first is not None:
            out = words_out[other_first : other_first + num_rows]
            if first is not None:
                out[:] = words_in[first : first + num_rows]
            elif source_rows is not None:
                # "clip" because the default mode makes a copy of `out` first; see `check_rows`.
                words_in.take(source_rows, 0, out, "clip")
        elif target_rows is not None:
            if first is not None:
                words_out[target_rows] = words_in[first : first + num_rows]
            elif source_rows is not None:
                self._move(words_in, source_rows, words_out, target_rows)

    def drain(self) -> None:
        """Do nothing: a copy is done when it has been started."""

    def close(self) -> None:
        """Forget the regions."""
        self._views.clear()

    def _move(self, words_in: Words, rows: Rows, words_out: Words, other_rows: Rows) -> None:
        """Copy rows that are scattered on both sides."""
        num_words = words_in.shape[1]
        if num_words * WORD_BYTES >= _LONG_BYTES:
            for first, other_first, length in merged_runs(rows, other_rows, len(rows)):
                if length == 1:  # a row is found faster than a slice
                    words_out[other_first] = words_in[first]
                else:
                    end, other_end = first + length, other_first + length
                    words_out[other_first:other_end] = words_in[first:end]
            return
        num_fitting = len(self._scratch) // num_words
        for start in range(0, len(rows), num_fitting):
            part = rows[start : start + num_fitting]
            scratch = self._scratch[: len(part) * num_words].reshape(len(part), num_words)
            words_in.take(part, 0, scratch, "clip")
            words_out[other_rows[start : start + num_fitting]] = scratch

    def _view(self, region: Region, row_bytes: int) -> Words:
        if region.kind is not MemoryKind.HOST:
            raise CopyError(f"the host cannot reach memory of kind {region.kind}")
        place = (region.ptr, region.num_bytes, row_bytes)
        view = self._views.get(place)
        if view is None:
            view = self._views[place] = host_words(region, row_bytes)
        return view


def first_of_run(rows: Rows | None) -> int | None:
    """Return the first row if the rows follow one another; None if they do not, or are none."""
    if rows is None:
        return 0
    if not len(rows):
        return None
    first = int(rows[0])
    if int(rows[-1]) - first != len(rows) - 1 or not (np.diff(rows) == 1).all():
        return None
    return first


def merged_runs(
    source_rows: Rows | None, target_rows: Rows | None, num_rows: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (first source row, first target row, number of rows) of runs that rise together."""
    if not num_rows:
        return
    here = np.arange(num_rows) if source_rows is None else source_rows
    there = np.arange(num_rows) if target_rows is None else target_rows
    breaks = np.flatnonzero((np.diff(here) != 1) | (np.diff(there) != 1)) + 1
    starts = np.concatenate(([0], breaks))
    lengths = np.diff(starts, append=num_rows)
    yield from zip(here[starts].tolist(), there[starts].tolist(), lengths.tolist(), strict=True)


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
