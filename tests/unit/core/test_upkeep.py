"""Pins, eviction of a prefix, flush, new weights and sizes, in small stories.

A letter is a block of one token; the driver's model compares what every block holds with what its
key and the weights say, at each step.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from kvsim.config import CacheConfig
from kvsim.core.manager import CacheManager
from kvsim.core.ops import Outcome
from kvsim.core.upkeep import Evicted
from kvsim.errors import MisuseError, PolicyError
from kvsim.events import CacheCleared
from kvsim.policies import POLICIES
from kvsim.policies.fifo import FIFO
from kvsim.testing import digest
from tests.property.story import (
    admitted,
    answer,
    issued,
    last_transfer,
    matched,
    new_driver,
    p,
    readable,
    refused,
    served,
    tokens,
)

if TYPE_CHECKING:
    from kvsim.core.ports import PolicyContext
    from kvsim.types import BlockKey
    from tests.property.driver import Driver


def keys(letters: str, *, block_size: int = 1) -> tuple[BlockKey, ...]:
    """Return the keys of the blocks of these letters."""
    numbers = tuple(map(int, letters))
    return tuple((numbers[: i + 1], block_size) for i in range(len(numbers)))


def state_of(driver: Driver) -> object:
    """Return a value that is equal as long as nothing has changed."""
    return digest(driver.manager, without=[driver.mirror]), len(driver.mirror.events)


# -- pinned prefixes


def test_a_pinned_block_is_never_a_victim() -> None:
    driver = new_driver(3)
    served(driver, p("12"))
    driver.manager.pin_prefix(keys("12"))
    served(driver, p("3"))
    served(driver, p("4"))  # 3 blocks: 1 and 2 are older than 3, and yet 3 goes
    assert matched(driver, p("12")) == (0, 0)
    assert matched(driver, p("3")) == ()


def test_a_pinned_prefix_that_is_not_there_yet_is_pinned_as_it_comes() -> None:
    driver = new_driver(3)
    assert driver.manager.pin_prefix(keys("12")) == 0
    served(driver, p("1"))
    served(driver, p("12"))
    for letter in "3456":
        served(driver, p(letter))
    assert matched(driver, p("12")) == (0, 0)


def test_a_pinned_block_below_stays_there_and_when_it_comes_up_it_stays_above() -> None:
    driver = new_driver(2, 2)
    served(driver, p("12"))
    served(driver, p("34"))
    driver.drain()
    assert matched(driver, p("12")) == (1, 1)
    driver.manager.pin_prefix(keys("12"))
    served(driver, p("56"))  # 34 find no room below, and are dropped
    assert matched(driver, p("12")) == (1, 1)
    served(driver, p("12"))
    assert matched(driver, p("12")) == (0, 0)
    refused(driver, p("7"))  # both GPU blocks are pinned: 1 is short of 1
    driver.manager.unpin_prefix(keys("12"))
    served(driver, p("7"))


def test_a_prefix_pinned_twice_is_unpinned_twice() -> None:
    driver = new_driver(1)
    served(driver, p("1"))
    for _ in range(2):
        driver.manager.pin_prefix(keys("1"))
    driver.manager.unpin_prefix(keys("1"))
    refused(driver, p("2"))
    driver.manager.unpin_prefix(keys("1"))
    served(driver, p("2"))
    with pytest.raises(MisuseError, match="not pinned"):
        driver.manager.unpin_prefix(keys("1"))


def test_a_prefix_has_a_block_at_least() -> None:
    with pytest.raises(MisuseError, match="a block at least"):
        new_driver(1).manager.pin_prefix(())


def test_a_pin_outlives_a_failed_step_and_holds_what_is_computed_next() -> None:
    driver = new_driver(2)
    driver.manager.pin_prefix(keys("12"))
    client = admitted(driver, p("12"))
    answer(driver, issued(driver, client), Outcome.FAILED)
    assert matched(driver, p("12")) == ()
    driver.waiting.clear()
    served(driver, p("12"))
    refused(driver, p("3"))


# -- eviction of a prefix


def test_a_prefix_goes_with_all_below_it_from_every_tier() -> None:
    driver = new_driver(3, 6)
    served(driver, p("123"))
    served(driver, p("456"))
    driver.drain()  # 123 are below
    served(driver, p("14"))  # 1 is above again, with 14
    driver.drain()
    # 1, 14, and 12 and 123 below them.
    assert driver.manager.evict(keys("1")) == Evicted(num_gone=4, num_kept=0)
    driver.check()
    assert matched(driver, p("123")) == matched(driver, p("14")) == ()


def test_of_an_evicted_prefix_stays_what_somebody_holds_and_what_others_share() -> None:
    driver = new_driver(6)
    served(driver, p("125"))
    client = admitted(driver, p("12"))
    # 125 is free to go; 1 and 12 are held.
    assert driver.manager.evict(keys("1")) == Evicted(num_gone=1, num_kept=2)
    driver.end(client)
    served(driver, p("13"))
    # 12 goes; 1 stays, since 13 is below it and was not meant.
    assert driver.manager.evict(keys("12")) == Evicted(num_gone=1, num_kept=1)
    assert driver.manager.evict(keys("9")) == Evicted()
    driver.check()


# -- flush


def test_a_flush_clears_every_tier() -> None:
    """I2: tokens 1..9 on GPU and CPU; flush; match."""
    driver = new_driver(3, 6, block_size=4)
    served(driver, tokens(1, 9))
    served(driver, tokens(21, 32))
    driver.drain()
    served(driver, tokens(1, 5))  # one block of it is above again
    driver.drain()
    assert set(matched(driver, tokens(1, 9))) == {0, 1}
    assert driver.manager.flush()
    assert matched(driver, tokens(1, 9)) == ()
    assert readable(driver, 0) == readable(driver, 1) == set()
    assert [driver.manager.num_free_blocks(tier) for tier in (0, 1)] == [3, 6]
    assert driver.mirror.events[-1] == CacheCleared(reason="flush", version=0)


def test_a_flush_while_a_request_runs_changes_nothing() -> None:
    driver = new_driver(3)
    client = admitted(driver, p("12"))
    before = state_of(driver)
    assert not driver.manager.flush()
    assert state_of(driver) == before
    answer(driver, issued(driver, client))
    driver.end(client)
    assert driver.manager.flush()


def test_a_flush_while_a_copy_is_under_way_is_refused_and_after_it_succeeds() -> None:
    """H4, second run: no request comes any more; the copy ends, then a flush succeeds."""
    driver = new_driver(2, 2)
    served(driver, p("12"))
    waiting = driver.submit(p("34"))
    assert not driver.admit(waiting)
    driver.waiting.clear()
    before = state_of(driver)
    assert not driver.manager.flush()
    assert state_of(driver) == before
    driver.drain()
    assert driver.manager.flush()
    assert matched(driver, p("12")) == ()


def test_a_pinned_prefix_goes_with_a_flush_and_is_pinned_when_it_comes_again() -> None:
    driver = new_driver(2)
    served(driver, p("12"))
    driver.manager.pin_prefix(keys("12"))
    assert driver.manager.flush()
    assert matched(driver, p("12")) == ()
    served(driver, p("12"))
    refused(driver, p("3"))


# -- new weights


def test_a_store_of_old_weights_that_ends_late_is_not_matched() -> None:
    """I2: bump the weights with one store in flight, started before; done(h); match."""
    driver = new_driver(2, 2)
    served(driver, p("12"))
    assert not driver.admit(driver.submit(p("34")))
    assert driver.manager.bump_weight_version() == 1
    assert matched(driver, p("12")) == ()
    answer(driver, last_transfer(driver))
    driver.check()
    assert matched(driver, p("12")) == ()
    assert [driver.manager.num_free_blocks(tier) for tier in (0, 1)] == [2, 2]


def test_a_step_of_old_weights_finishes_on_its_data_and_leaves_nothing() -> None:
    driver = new_driver(6, block_size=2)
    client = admitted(driver, tokens(1, 6, block_size=2), num_output_tokens=4)
    forward = issued(driver, client)
    driver.manager.bump_weight_version()
    answer(driver, forward)
    driver.check()  # the attempt still has every block, with what belongs there
    for _ in range(3):
        answer(driver, issued(driver, client))
        driver.publish(client)
    assert matched(driver, tokens(1, 6, block_size=2)) == ()
    driver.end(client)
    assert driver.manager.num_free_blocks() == 6


def test_old_and_new_weights_side_by_side_share_nothing() -> None:
    driver = new_driver(4)
    old = admitted(driver, p("12"))
    answer(driver, issued(driver, old))
    driver.manager.bump_weight_version()
    new = admitted(driver, p("12"))
    assert new.attempt.num_hit_blocks == 0
    answer(driver, issued(driver, new))
    assert matched(driver, p("12")) == (0, 0)
    driver.end(old)
    driver.check()
    assert matched(driver, p("12")) == (0, 0)
    assert driver.manager.num_free_blocks() == 2


# -- size


def test_a_tier_in_use_grows_at_once() -> None:
    """B1.28: no block gets a second owner, no node id is doubled."""
    driver = new_driver(2, 1)
    client = admitted(driver, p("12"))
    refused(driver, p("34"))
    driver.manager.resize(0, 4, 0)
    driver.check()
    served(driver, p("34"))
    assert matched(driver, p("34")) == (0, 0)
    answer(driver, issued(driver, client))
    driver.end(client)


def test_free_blocks_go_at_once_and_held_ones_when_they_are_released() -> None:
    driver = new_driver(4)
    client = admitted(driver, p("123"))
    answer(driver, issued(driver, client))
    # 0, 1 and 2 are held, 3 is free: it goes, and 1 and 2 retire.
    assert sorted(client.attempt.table) == [0, 1, 2]
    resized = driver.manager.resize(0, 1, 0)
    pool = driver.cache.gpu.pool
    assert (resized.num_retiring, pool.capacity, pool.limit) == (2, 3, 1)
    driver.check()
    driver.end(client)
    driver.write_back_ahead()
    driver.check()
    assert (pool.capacity, pool.free, pool.retiring) == (1, [0], set())


def test_what_a_shrinking_tier_holds_moves_to_the_tier_below() -> None:
    driver = new_driver(4, 4)
    served(driver, p("12"))
    served(driver, p("34"))  # in blocks 2 and 3
    resized = driver.manager.resize(0, 2, 0)
    for op in resized.ops:
        driver.memory.start_transfer(op)
    driver.check()
    driver.drain()
    assert matched(driver, p("12")) == (0, 0)
    assert matched(driver, p("34")) == (1, 1)
    assert driver.cache.gpu.pool.capacity == 2


def shrunk(driver: Driver, tier: int, num_blocks: int) -> None:
    """Make a tier smaller and issue the copies that it takes."""
    for op in driver.manager.resize(tier, num_blocks, driver.now).ops:
        driver.memory.start_transfer(op)
    driver.check()


@pytest.mark.parametrize("mode", ["exclusive", "back"])
def test_a_third_tier_that_shrinks_drops_what_it_holds(mode: str) -> None:
    driver = new_driver(2, 2, 4, mode=mode)
    served(driver, p("12"))
    served(driver, p("45"))  # "12" is on the CPU
    for op in driver.manager.make_room_below(2, driver.now):
        driver.memory.start_transfer(op)
    driver.drain()
    assert matched(driver, p("12")) == (2, 2)
    shrunk(driver, 2, 1)
    assert len(matched(driver, p("12"))) <= 1
    assert driver.cache.tiers[2].pool.capacity == 1
    driver.close()


def test_a_tier_gets_its_size_after_a_failed_write_back_though_blocks_hang_below() -> None:
    driver = new_driver(4, 4)
    served(driver, p("12"))
    served(driver, p("34"))
    served(driver, p("5"))  # block 2 of the first is on the CPU, block 1 stays
    waiting = refused(driver, p("67"))
    answer(driver, last_transfer(driver), Outcome.FAILED)
    driver.waiting.remove(waiting)
    # "3" and "34" are dropped at once; "1" has a child below, and moves.
    shrunk(driver, 0, 1)
    driver.drain()
    driver.check()
    assert matched(driver, p("12")) == (1, 1)
    assert driver.cache.gpu.pool.capacity == 1
    driver.close()


def test_where_only_blocks_with_something_below_must_go_that_goes_first() -> None:
    driver = new_driver(3, 4)
    served(driver, p("12"))
    served(driver, p("3"))
    waiting = refused(driver, p("4"))  # block 2 of the first goes down
    answer(driver, last_transfer(driver))
    driver.waiting.remove(waiting)
    assert matched(driver, p("12")) == (0, 1)
    driver.cache.gpu.drop_next = True  # as after a failed write-back
    driver.manager.pin_prefix(keys("3"))
    shrunk(driver, 0, 1)
    assert matched(driver, p("12")) == ()
    driver.manager.unpin_prefix(keys("3"))
    driver.close()


def test_a_tier_that_shrinks_while_blocks_go_down_and_comes_back_has_every_id_once() -> None:
    driver = new_driver(4, 4)
    served(driver, p("1234"))
    assert not driver.admit(driver.submit(p("5678")))  # four blocks are on their way down
    driver.manager.resize(0, 1, 0)
    driver.check()
    driver.manager.resize(0, 3, 0)
    driver.check()
    driver.drain()
    pool = driver.cache.gpu.pool
    assert (sorted(pool.free), pool.capacity) == ([0, 1, 2], 3)


def test_a_block_set_aside_goes_when_its_op_has_settled() -> None:
    driver = new_driver(2, 2)
    served(driver, p("12"))
    assert not driver.admit(driver.submit(p("34")))
    store = last_transfer(driver)
    answer(driver, store, Outcome.TIMED_OUT)
    pool = driver.cache.tiers[1].pool
    driver.manager.resize(1, 1, 0)
    assert (pool.capacity, pool.num_quarantined) == (2, 2)
    driver.manager.resize(1, 2, 0)
    driver.manager.resize(1, 1, 0)
    driver.check()
    driver.come_to_rest(store)
    assert (pool.capacity, pool.free) == (1, [0])


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_takes_more_nodes_and_another_capacity(policy: str) -> None:
    driver = new_driver(2, 1, policy=policy)
    served(driver, p("12"))
    for num_blocks in (6, 3, 8, 1, 5):
        for op in driver.manager.resize(0, num_blocks, 0).ops:
            driver.memory.start_transfer(op)
        driver.drain()
        for letters in ("12", "345"[:num_blocks], "67"[:num_blocks], "1"):
            served(driver, p(letters[:num_blocks]))
        driver.check()


def test_impossible_sizes_are_refused() -> None:
    manager = new_driver(2).manager
    with pytest.raises(MisuseError, match="no tier 1"):
        manager.resize(1, 5, 0)
    with pytest.raises(MisuseError, match="1 block at least, not 0"):
        manager.resize(0, 0, 0)


def test_a_policy_that_has_not_declared_it_gets_no_more_nodes() -> None:
    class Rigid(FIFO):
        """Keeps lists by node, and says nothing about it."""

        def __init__(self, context: PolicyContext) -> None:
            super().__init__(context)
            context.on_resize.clear()

    manager = CacheManager(CacheConfig(block_size=1, tier_blocks=(4,)), Rigid, rng=Random(0))
    before = digest(manager)
    with pytest.raises(PolicyError, match="Rigid of tier 0 cannot take more than 4 blocks"):
        manager.resize(0, 5, 0)
    assert digest(manager) == before
    manager.resize(0, 2, 0)
    manager.resize(0, 4, 0)
    manager.check()
