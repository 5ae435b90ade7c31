"""Sequences in which a bug was found once, each as a short story.

All blocks have one token: `p("001")` is a prompt of three blocks that shares two with `p("000")`.
The driver asserts what every step promises, and `close` that nothing is left behind.
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
    new_driver,
    p,
    push_down,
    refused,
)

if TYPE_CHECKING:
    from tests.property.client import Client
    from tests.property.driver import Driver
    from tests.property.memory import OpenOp

FAILED, TIMED_OUT = Outcome.FAILED, Outcome.TIMED_OUT


def test_a_forward_that_fails_before_its_reload_leaves_no_node_without_a_copy() -> None:
    driver = new_driver(4, 2)
    driver.serve(p("0"))
    push_down(driver)
    client = admitted(driver, p("00"))
    forward = issued(driver, client)  # fills the second block, waits for the copy of the first
    answer(driver, forward, FAILED)
    driver.close()


def test_room_is_made_in_one_call_after_a_failed_write_back() -> None:
    driver = new_driver(2, 2, watermark=2)
    driver.serve(p("00"))
    driver.serve(p("1"))
    driver.write_back_ahead()
    answer(driver, last_transfer(driver), TIMED_OUT)
    driver.close()  # admits a request of the size of the GPU tier


def test_an_attempt_whose_forward_waited_for_a_failed_copy_does_not_copy_again() -> None:
    driver = new_driver(4, 2)
    driver.serve(p("0"))
    push_down(driver)
    client = admitted(driver, p("00"))
    copy = last_transfer(driver)
    forward = issued(driver, client)
    answer(driver, copy, FAILED)
    answer(driver, forward, FAILED)
    assert client.attempt.no_reload == {((0,), 1)}
    assert driver.admit(client)
    assert driver.answerable == []  # nothing is copied: both blocks are computed
    answer(driver, issued(driver, client))
    driver.close()


def test_an_attempt_whose_forward_fails_before_its_copy_does_not_copy_again() -> None:
    # The backend may report the Forward first, although the copy failed first.
    driver = new_driver(4, 2)
    driver.serve(p("0"))
    push_down(driver)
    client = admitted(driver, p("00"))
    copy = last_transfer(driver)
    answer(driver, issued(driver, client), FAILED)
    answer(driver, copy, FAILED)
    assert client.attempt.no_reload == {((0,), 1)}
    assert driver.admit(client)
    assert driver.answerable == []
    driver.close()


def test_a_late_copy_may_settle_before_the_forward_that_waited_for_it() -> None:
    driver = new_driver(4, 2)
    driver.serve(p("0"))
    push_down(driver)
    client = admitted(driver, p("00"))
    copy = last_transfer(driver)
    forward = issued(driver, client)
    answer(driver, copy, TIMED_OUT)
    driver.come_to_rest(copy)
    driver.check()
    answer(driver, forward, FAILED)
    driver.close()


def test_a_postponed_failure_is_taken_when_its_forward_comes_to_rest() -> None:
    driver = new_driver(4, 2)
    driver.serve(p("0"))
    push_down(driver)
    client = admitted(driver, p("00"))
    copy = last_transfer(driver)
    forward = issued(driver, client)
    answer(driver, copy, FAILED)
    answer(driver, forward, TIMED_OUT)
    driver.come_to_rest(forward)
    assert not driver.manager.has_open_ops
    driver.close()


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_copy_that_fails_under_another_ones_copy_takes_it_along(outcome: Outcome) -> None:
    driver = new_driver(6, 3)
    driver.serve(p("00"))
    push_down(driver)
    driver.end(admitted(driver, p("0")))
    upper = last_transfer(driver)
    driver.end(admitted(driver, p("00")))  # joins the first copy, orders that of the second block
    lower = last_transfer(driver)
    answer(driver, upper, TIMED_OUT)
    answer(driver, lower, outcome)
    driver.close()


def _computing_while_copied(driver: Driver) -> tuple[Client, OpenOp, OpenOp]:
    """A must compute "0" (its copy failed), B has it copied up again meanwhile."""
    driver.serve(p("0"))
    push_down(driver)
    first = admitted(driver, p("000"))
    answer(driver, last_transfer(driver), FAILED)
    assert driver.admit(first)
    admitted(driver, p("0"))
    copy = last_transfer(driver)
    return first, issued(driver, first, 1), copy


def test_a_block_computed_while_its_copy_comes_up_is_not_read_before_it_is_there() -> None:
    driver = new_driver(6, 4)
    first, forward, copy = _computing_while_copied(driver)
    assert not driver.answer(forward)  # it waits for the copy, though it does not need it
    answer(driver, copy)
    answer(driver, forward)
    issued(driver, first)
    driver.close()


def test_an_attempt_is_not_ended_in_its_forward_by_a_copy_that_it_duplicates() -> None:
    driver = new_driver(6, 4)
    _, forward, copy = _computing_while_copied(driver)
    answer(driver, copy, FAILED)
    answer(driver, forward, FAILED)
    driver.close()


def test_a_detached_block_outlives_its_parent_without_touching_the_next_owner_of_its_id() -> None:
    driver = new_driver(8, 2)
    driver.serve(p("1110"))
    first, second = driver.submit(p("00100")), driver.submit(p("001111"))
    assert not driver.admit(first)  # a write-back of the leaf
    assert not driver.admit(second)  # and one of its parent
    leaf, parent = driver.answerable
    answer(driver, leaf, TIMED_OUT)  # the leaf stays without its parent: detached
    answer(driver, parent)
    admitted(driver, p("0"))
    assert driver.admit(first)  # drops the parent from the CPU tier
    issued(driver, first)  # new nodes with the ids that have become free
    driver.close()


def test_a_block_whose_copy_below_is_still_read_is_evicted_without_a_write_back() -> None:
    driver = new_driver(2, 2)
    driver.serve(p("0"))
    push_down(driver)
    driver.end(admitted(driver, p("0")))
    stuck = last_transfer(driver)
    answer(driver, stuck, TIMED_OUT)  # it still reads the copy below
    driver.end(admitted(driver, p("0")))
    answer(driver, last_transfer(driver))  # the same block is up now
    push_down_client = driver.submit(p("9"))
    driver.admit(push_down_client)
    driver.check()
    driver.close()


def test_a_twin_stays_above_when_its_descendants_do() -> None:
    driver = new_driver(5, 2, watermark=1)
    driver.serve(p("0"))
    push_down(driver)
    driver.end(admitted(driver, p("0")))
    stuck = last_transfer(driver)
    answer(driver, stuck, TIMED_OUT)  # it still reads the copy below
    client = admitted(driver, p("0000"))
    answer(driver, issued(driver, client))  # the same block again, and three below it
    driver.end(client)
    driver.write_back_ahead()  # the leaf, to the last block of the CPU tier
    refused(driver, p("1111"))  # its ancestors cannot go: it would be out of reach
    driver.close()
