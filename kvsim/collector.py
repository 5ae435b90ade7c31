"""Python's cyclic garbage collector, out of the way of a replay."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def paused_collector() -> Iterator[None]:
    """Switch the cyclic collector off, and on again if it was on.

    A replay makes dozens of objects a request and no cycle (a test looks), so the collector's
    passes over them find nothing, at a twentieth of the time, or a sixth when events are kept.
    What is no longer used is freed all the same, by its reference count.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
