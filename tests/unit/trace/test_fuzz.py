"""Whatever is in a file: a trace, or one line; never another exception, never all the memory."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvsim.errors import TraceError
from kvsim.trace import TRACES, Trace, load
from tests.unit.trace.damage import GOOD, damaged, put

if TYPE_CHECKING:
    from pathlib import Path

THOROUGH_INPUTS = 12_000
"""For each of the ten readers: 120,000 in all."""

MOST_BYTES = 64 << 20

SHARED_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def try_to_load(path: Path, name: str | None) -> None:
    """Load a file that may be bad."""
    problem = ""
    try:
        trace = load(path, format=name)
        assert isinstance(trace, Trace)
        assert trace.num_requests
    except TraceError as error:
        problem = str(error)
    assert len(problem.splitlines()) <= 1


def check(content: bytes, name: str, is_named: bool, folder: Path) -> None:
    path = put(folder, content)
    try_to_load(path, name if is_named else None)


def test_there_is_a_good_file_of_every_format(tmp_path: Path) -> None:
    assert set(GOOD) == set(TRACES)
    for name, content in GOOD.items():
        trace = load(put(tmp_path, content))
        assert trace.format == name


@pytest.mark.parametrize("name", TRACES)
@SHARED_FOLDER
@given(data=st.data(), is_named=st.booleans())
def test_a_damaged_file_gives_a_trace_or_one_line(
    name: str, data: st.DataObject, is_named: bool, tmp_path: Path
) -> None:
    check(data.draw(damaged(name)), name, is_named, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TRACES)
@settings(SHARED_FOLDER, max_examples=THOROUGH_INPUTS)
@given(data=st.data(), is_named=st.booleans())
def test_no_damage_out_of_a_hundred_thousand_does_more(
    name: str, data: st.DataObject, is_named: bool, tmp_path: Path
) -> None:
    check(data.draw(damaged(name)), name, is_named, tmp_path)


@pytest.mark.parametrize("name", [each for each in TRACES if each != "kvsim-parquet"])
def test_a_huge_number_does_not_fill_the_memory(name: str, tmp_path: Path) -> None:
    good = GOOD[name]
    load(put(tmp_path, good))  # what is imported does not count
    tracemalloc.start()
    try:
        for digits in (b"9" * 7, b"9" * 12, b"9" * 15, b"9" * 4000):
            for old in (b"17", b"655", b"99", b"130", b"4808", b"472", b"1,", b"3]"):
                if old in good:
                    path = put(tmp_path, good.replace(old, digits + old[-1:], 1))
                    try_to_load(path, name)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MOST_BYTES
