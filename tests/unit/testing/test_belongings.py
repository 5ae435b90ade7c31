"""What a process has, as the conformance suites count it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvsim.testing.backends.belongings import belongings

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED_MEMORY = Path("/dev/shm")

pytestmark = pytest.mark.skipif(
    not SHARED_MEMORY.is_dir(), reason="this system does not show shared memory as files"
)


@contextmanager
def segment(name: str) -> Iterator[str]:
    """Make a segment of shared memory for a while."""
    path = SHARED_MEMORY / name
    path.touch()
    try:
        yield str(path)
    finally:
        path.unlink()


def test_a_segment_that_is_left_is_counted() -> None:
    before = belongings()
    with segment(f"kvsim test {os.getpid()}") as name:
        assert name in {found for found, _ in belongings() - before}


def test_a_segment_of_a_process_that_is_gone_is_counted() -> None:
    # Process ids are below 2**22 on Linux.
    before = belongings()
    with segment("kvsim test 9999999") as name:
        assert name in {found for found, _ in belongings() - before}


def test_a_segment_named_after_another_live_process_is_not() -> None:
    with segment(f"kvsim test {os.getppid()}") as name:
        assert name not in {found for found, _ in belongings()}
