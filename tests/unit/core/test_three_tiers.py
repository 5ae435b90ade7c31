"""A third tier below the CPU's: it takes configuration and nothing else. Computed by hand.

Blocks of one token; a letter is a block, `p("12")` a prompt of two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsim.core.ops import Outcome
from tests.property.story import (
    admitted,
    answer,
    issued,
    last_transfer,
    matched,
    new_driver,
    p,
    readable,
    served,
)

if TYPE_CHECKING:
    from tests.property.driver import Driver

A, AB, ABC, D, DE, F = (1,), (1, 2), (1, 2, 3), (4,), (4, 5), (6,)


def tiers(driver: Driver) -> tuple[set[tuple[int, ...]], ...]:
    """Return what is readable in each tier."""
    return tuple(readable(driver, tier) for tier in range(3))


def make_room(driver: Driver, num_blocks: int) -> None:
    """Let the CPU tier write to the disk until so many blocks are free."""
    for op in driver.manager.make_room_below(num_blocks, driver.now):
        driver.memory.start_transfer(op)
    driver.drain()
    driver.check()


def on_disk() -> Driver:
    """Return a driver with "12" on the disk, "45" on the CPU, "6" on the GPU; 2 + 2 + 4 blocks."""
    driver = new_driver(2, 2, 4)
    served(driver, p("12"))
    served(driver, p("45"))
    assert tiers(driver) == ({D, DE}, {A, AB}, set())
    make_room(driver, 2)
    served(driver, p("66"))
    assert tiers(driver) == ({F, (6, 6)}, {D, DE}, {A, AB})
    return driver


def test_what_the_cpu_writes_ahead_of_need_is_on_the_disk() -> None:
    assert matched(on_disk(), p("12")) == (2, 2)


def test_a_hit_on_the_disk_comes_up_to_the_gpu_and_leaves_it() -> None:
    # The CPU has no room for "66": its "45" has none below itself, and goes. "12" comes up.
    driver = on_disk()
    served(driver, p("12"))
    assert tiers(driver) == ({A, AB}, {F, (6, 6)}, set())


def test_hits_are_counted_by_the_tier_that_they_come_from() -> None:
    # "1" was hit again since, so it is on the GPU; "12" on the CPU; "123" on the disk.
    driver = new_driver(3, 3, 3)
    served(driver, p("123"))
    served(driver, p("444"))
    make_room(driver, 1)
    assert tiers(driver)[1:] == ({A, AB}, {ABC})
    served(driver, p("1"))
    assert matched(driver, p("123")) == (0, 1, 2)
    client = driver.submit(p("123"))
    while not driver.admit(client):
        driver.drain()
    attempt = client.attempt
    assert (attempt.num_hit_blocks, attempt.num_reload_blocks, attempt.num_disk_blocks) == (3, 2, 1)
    assert len(attempt.own_transfers) == 2
    answer(driver, issued(driver, client))
    driver.end(client)


def test_where_the_cpu_has_no_room_in_time_its_victims_are_dropped_and_nothing_waits() -> None:
    # Nothing is written ahead: "12" makes way on the CPU for "45", and is in no tier.
    driver = new_driver(2, 2, 4)
    for prompt in (p("12"), p("45"), p("66")):
        served(driver, prompt)
    assert tiers(driver) == ({F, (6, 6)}, {D, DE}, set())


def test_what_hangs_below_a_dropped_block_goes_before_it() -> None:
    # "12" is on the CPU, "123" on the disk. Both CPU blocks make way: "123" would be out of reach.
    driver = new_driver(3, 2, 4)
    served(driver, p("123"))
    served(driver, p("444"))
    assert tiers(driver)[1:] == ({A, AB}, set())  # two of three found room
    make_room(driver, 1)
    assert tiers(driver)[1:] == ({A}, {AB})
    served(driver, p("556"))
    low, disk = readable(driver, 1), readable(driver, 2)
    assert A not in low
    assert AB not in disk
    assert matched(driver, p("12")) == ()


def test_a_hit_on_the_cpu_while_it_is_being_written_to_the_disk_keeps_it_there() -> None:
    driver = new_driver(2, 2, 4)
    served(driver, p("12"))
    served(driver, p("4"))
    assert tiers(driver)[:2] == ({A, D}, {AB})
    (write,) = driver.manager.make_room_below(2, driver.now)
    driver.memory.start_transfer(write)
    driver.check()
    client = driver.submit(p("12"))
    while not driver.admit(client):
        for op in driver.answerable:
            if op.transfer is not None and op.transfer.source.tier == 0:
                answer(driver, op)
    # The copy up reads the CPU's block, whatever becomes of the copy to the disk.
    up = last_transfer(driver)
    assert up.transfer is not None
    assert up.transfer.source.tier == 1
    driver.drain()
    assert AB in readable(driver, 0)
    assert AB not in readable(driver, 1) | readable(driver, 2)
    driver.end(client)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT])
def test_a_write_to_the_disk_that_fails_leaves_the_block_on_the_cpu(outcome: Outcome) -> None:
    driver = new_driver(2, 2, 4)
    served(driver, p("12"))
    served(driver, p("45"))
    (write,) = driver.manager.make_room_below(2, driver.now)
    driver.memory.start_transfer(write)
    answer(driver, last_transfer(driver), outcome)
    assert matched(driver, p("12")) == (1, 1)
    driver.drain()
    assert tiers(driver) == ({D, DE}, {A, AB}, set())
    served(driver, p("12"))


def test_a_block_is_written_through_every_tier() -> None:
    driver = new_driver(4, 4, 4, mode="through")
    served(driver, p("12"))
    for _ in range(2):  # to the CPU, and from there to the disk
        driver.write_back_ahead()
        driver.drain()
    driver.check()
    assert tiers(driver) == ({A, AB}, {A, AB}, {A, AB})


def test_an_inclusive_disk_keeps_what_came_up_from_it() -> None:
    driver = new_driver(2, 2, 4, mode="through")
    for prompt in (p("12"), p("45"), p("12")):
        served(driver, prompt)
        for _ in range(2):
            driver.write_back_ahead()
            driver.drain()
    driver.check()
    # "12" came from the disk, and is written to the CPU again on its way.
    assert tiers(driver) == ({A, AB}, {A, AB}, {A, AB, D, DE})


def test_the_cpu_keeps_more_room_than_a_batch() -> None:
    # GPU mark 2, batch 2; CPU of 40: a quarter is 10, 16 batches are 32: 2 + 10.
    driver = new_driver(8, 40, 8, watermark=2, batch=2)
    config = driver.config
    assert (config.low_watermark_of(0), config.low_watermark_of(1)) == (2, 12)
    admitted(driver, p("1"))
