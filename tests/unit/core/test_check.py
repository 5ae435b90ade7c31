"""`check()` finds whatever is wrong: each count and state relation, spoilt one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsim.core.check import evictable_nodes
from kvsim.core.ops import Outcome
from kvsim.core.residency import ABSENT, INCOMING, READY
from kvsim.errors import InvariantError
from tests.property.story import (
    admitted,
    answer,
    issued,
    last_transfer,
    new_driver,
    p,
    push_down,
    refused,
    served,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.core.attempt import Attempt
    from kvsim.core.cache import CacheState
    from tests.property.driver import Driver

    Spoil = Callable[[CacheState], object]


def busy_driver() -> Driver:
    """Return a driver in which everything is under way at a time.

    On the GPU (8 blocks): the chain "112" leaving, "3" hit again on its way down, "0" and "00"
    being copied up, "2" being computed. On the CPU (8 blocks): "0", "00" and "01". Node 16 is free.
    """
    driver = new_driver(8, 8)
    served(driver, p("00"))
    served(driver, p("01"))
    push_down(driver)
    served(driver, p("112"))
    served(driver, p("3"))
    refused(driver, p("99999999"))  # all leave: 4 blocks
    admitted(driver, p("3"))  # and one is hit again
    admitted(driver, p("00"))
    issued(driver, admitted(driver, p("2")))
    return driver


def test_a_busy_cache_is_consistent() -> None:
    driver = busy_driver()
    driver.check()
    cache = driver.cache
    assert (len(cache.transfers), len(cache.forwards), cache.num_rescued) == (2, 1, 1)
    driver.close()


def node_of(cache: CacheState, letters: str) -> int:
    """Return the node of a block of one token."""
    return cache.tree.index[tuple(map(int, letters)), 1]


def bump(counts: list[int], index: int) -> None:
    """Make a count wrong by one."""
    counts[index] += 1


SPOILS: dict[str, Spoil] = {
    "a reference too many": lambda c: bump(c.tree.pins, node_of(c, "3")),
    "a hold too many above": lambda c: bump(c.gpu.copies.holds, node_of(c, "11")),
    "a hold too many below": lambda c: bump(c.tiers[1].copies.holds, node_of(c, "01")),
    "a count of states": lambda c: bump(c.gpu.copies.num_in, READY),
    "a lost block": lambda c: c.gpu.pool.free.append(99),
    "a block with two owners": lambda c: c.gpu.copies.block.__setitem__(
        node_of(c, "3"), c.gpu.copies.block[node_of(c, "2")]
    ),
    "a read that no op makes": lambda c: c.tiers[1].reads.update({node_of(c, "01"): 1}),
    "a read forgotten": lambda c: c.tiers[1].reads.pop(node_of(c, "0")),
    "a copy that nobody writes": lambda c: c.gpu.copies.state.__setitem__(
        node_of(c, "3"), INCOMING
    ),
    "a write-back forgotten": lambda c: c.transfers.pop(min(c.transfers)),
    "a writer forgotten": lambda c: c.incoming_by.clear(),
    "a writer too many": lambda c: c.incoming_by.update({node_of(c, "3"): 7}),
    "a Forward forgotten": lambda c: c.forwards.clear(),
    "rescues miscounted": lambda c: setattr(c, "num_rescued", 0),
    "path lengths miscounted": lambda c: setattr(c, "num_path_blocks", 0),
    "an attempt forgotten": lambda c: c.live.popitem(),
    "a key without its node": lambda c: c.tree.index.pop(((3,), 1)),
    "a node under another key": lambda c: c.tree.key_of.__setitem__(node_of(c, "3"), "x"),
    "a node twice": lambda c: c.tree.index.update(x=node_of(c, "3")),
    "a node without a copy": lambda c: c.gpu.copies.state.__setitem__(node_of(c, "2"), ABSENT),
    "a parent that is not there": lambda c: c.tree.parent.__setitem__(node_of(c, "3"), 16),
    "an attached node among the detached": lambda c: c.tree.detached.add(node_of(c, "3")),
    "a path with a gap": lambda c: attempt_on(c, "00").path.pop(0),
    "a table that is too short": lambda c: attempt_on(c, "00").table.clear(),
    "a table with another block": lambda c: bump(attempt_on(c, "00").table, 0),
    "quarantine miscounted": lambda c: setattr(c.gpu.pool, "num_quarantined", 1),
}


def attempt_on(cache: CacheState, letters: str) -> Attempt:
    """Return the live attempt whose path ends at a block."""
    end = node_of(cache, letters)
    return next(a for a in cache.live.values() if a.path and a.path[-1] == end)


@pytest.mark.parametrize("what", SPOILS)
def test_check_notices(what: str) -> None:
    driver = busy_driver()
    SPOILS[what](driver.cache)
    with pytest.raises(InvariantError):
        driver.manager.check()


def test_a_late_op_may_still_read_what_is_ready_twice() -> None:
    # The only time a block is READY on both tiers; without the read it is a fault.
    driver = new_driver(4, 4)
    served(driver, p("0"))
    push_down(driver)
    driver.end(admitted(driver, p("0")))
    answer(driver, last_transfer(driver), Outcome.TIMED_OUT)
    admitted(driver, p("0"))
    answer(driver, last_transfer(driver))
    driver.cache.transfers.clear()
    driver.cache.tiers[1].reads.clear()
    with pytest.raises(InvariantError, match="is READY twice"):
        driver.manager.check()


def test_evictable_is_what_is_ready_bare_and_held_by_nothing() -> None:
    # "0" - "00" and "0" - "01": the two leaves are, their parent is not, and "00" is not while a
    # request holds it.
    driver = new_driver(8)
    served(driver, p("00"))
    served(driver, p("01"))
    cache = driver.cache
    assert evictable_nodes(cache, cache.gpu) == {node_of(cache, "00"), node_of(cache, "01")}
    admitted(driver, p("00"))
    assert evictable_nodes(cache, cache.gpu) == {node_of(cache, "01")}
