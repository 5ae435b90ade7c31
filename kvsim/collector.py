"""Python's cyclic garbage collector, out of the way of a replay."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def settle_collector() -> None:
    """Tell the cyclic collector that what there is now is here to stay.

    Called when many objects have been made that are in no cycle, before the collector is switched
    on again: its first pass would look at all of them, and find nothing, for half the time that
    it took to make them. They go to the oldest generation, as that pass would have put them.
    """
    if not gc.get_freeze_count():  # whoever has frozen objects wants them to stay frozen
        gc.freeze()
        gc.unfreeze()


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
