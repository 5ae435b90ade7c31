"""What an answer changes: done, failed, cancelled, too late. Known faults of other systems, small.

Blocks of 4 tokens; `tokens(1, 12)` is a prompt of token ids 1 to 12, three blocks. The driver's
model of the memory compares what every block holds with what its key says, at each step.
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
    readable,
    refused,
    served,
    tokens,
)

if TYPE_CHECKING:
    from tests.property.client import Client
    from tests.property.driver import Driver

DONE, FAILED, CANCELLED, TIMED_OUT = Outcome
A0, A1, A2 = (1,), (1, 5), (1, 5, 9)  # the blocks of tokens(1, 12), by their letters


def small(gpu: int, cpu: int = 0) -> Driver:
    """Return a driver with blocks of four tokens."""
    return new_driver(gpu, cpu, block_size=4)


def below(driver: Driver, last: int) -> None:
    """Bring tokens 1 to `last` to the CPU tier and leave the GPU tier empty."""
    served(driver, tokens(1, last))
    gpu = driver.config.tier_blocks[0]
    other = driver.submit(tokens(101, 100 + 4 * gpu))
    while not driver.admit(other):
        driver.drain()
    driver.end(other)
    driver.check()
    assert readable(driver, 0) == set()


# -- forwards


def test_blocks_are_readable_when_the_forward_that_writes_them_is_done() -> None:
    driver = small(4)
    client = admitted(driver, tokens(1, 8))
    forward = issued(driver, client)
    assert readable(driver, 0) == set()
    assert matched(driver, tokens(1, 8)) == (0, 0)  # whoever matches now waits for the op
    joiner = admitted(driver, tokens(1, 9))
    assert joiner.attempt.after == (forward.op_id,)
    assert joiner.attempt.num_joined_blocks == 2
    answer(driver, forward)
    assert readable(driver, 0) == {A0, A1}


@pytest.mark.parametrize("outcome", [FAILED, CANCELLED])
def test_a_failed_forward_leaves_nothing_in_the_tree(outcome: Outcome) -> None:
    driver = small(4)
    client = admitted(driver, tokens(1, 8))
    answer(driver, issued(driver, client), outcome)
    assert matched(driver, tokens(1, 8)) == ()
    assert driver.manager.num_free_blocks() == 4
    assert client.attempt.number == 1
    driver.close()


def test_who_waited_for_a_failed_forward_tries_again() -> None:
    driver = small(4)
    first = admitted(driver, tokens(1, 4))
    forward = issued(driver, first)
    joiner = admitted(driver, tokens(1, 8))
    bystander = admitted(driver, tokens(41, 44))
    answer(driver, forward, FAILED)
    assert driver.waiting == [first, joiner]
    assert driver.running == [bystander]
    driver.close()


def test_a_timed_out_forward_keeps_its_blocks_until_it_has_settled() -> None:
    # A late write must land in blocks that nobody else has.
    driver = small(4)
    client = admitted(driver, tokens(1, 8))
    forward = issued(driver, client)
    answer(driver, forward, TIMED_OUT)
    assert matched(driver, tokens(1, 8)) == ()
    assert driver.manager.num_free_blocks() == 2
    other = refused(driver, tokens(21, 32))
    driver.come_to_rest(forward)
    assert driver.manager.num_free_blocks() == 4
    assert driver.admit(other)
    driver.close()


def test_a_timed_out_forward_keeps_what_it_may_still_read() -> None:
    driver = small(4)
    served(driver, tokens(1, 8))
    client = admitted(driver, tokens(1, 9))
    forward = issued(driver, client)
    answer(driver, forward, TIMED_OUT)
    refused(driver, tokens(21, 32))  # A is cached, but not to be evicted
    assert readable(driver, 0) == {A0, A1}
    driver.come_to_rest(forward)
    driver.close()


def test_blocks_of_a_request_that_ends_in_its_forward_come_back_when_that_has_ended() -> None:
    # The next step was dispatched before the last one's output ended the request.
    driver = small(2)
    client = admitted(driver, tokens(1, 8))
    forward = issued(driver, client)
    client.is_cancelled = True
    other = refused(driver, tokens(21, 28))
    answer(driver, forward)
    assert driver.running == []
    assert driver.admit(other)
    driver.close()


def test_a_chunk_of_an_aborted_prompt_stays_for_whoever_holds_it() -> None:
    # A computes one of three chunks, Q pins that block, A is aborted, Z takes what is free.
    driver = small(4)
    client = admitted(driver, tokens(1, 12))
    answer(driver, issued(driver, client, 4))
    holder = admitted(driver, tokens(1, 4, 50))
    driver.end(client)
    other = admitted(driver, tokens(61, 68))
    answer(driver, issued(driver, other))
    assert A0 in readable(driver, 0)  # and its content is right: the driver looks
    answer(driver, issued(driver, holder))
    driver.close()


def test_a_chunk_of_an_aborted_prompt_that_nobody_holds_is_cached() -> None:
    driver = small(4)
    client = admitted(driver, tokens(1, 12))
    answer(driver, issued(driver, client, 4))
    driver.end(client)
    assert readable(driver, 0) == {A0}
    assert driver.manager.num_free_blocks() == 3
    admitted(driver, tokens(61, 76))
    assert readable(driver, 0) == set()
    driver.close()


def test_equal_prompts_in_one_forward_leave_one_copy() -> None:
    driver = small(4)
    first, second = admitted(driver, tokens(1, 8)), admitted(driver, tokens(1, 8))
    assert driver.join(first)
    forward = issued(driver, second)
    assert driver.manager.num_duplicate_blocks == 2
    assert driver.manager.num_free_blocks() == 0
    answer(driver, forward)
    assert driver.manager.num_free_blocks() == 2
    assert first.attempt.table == second.attempt.table
    driver.close()


def test_full_blocks_of_output_are_found_again_by_their_own_request() -> None:
    # 6 prompt tokens and 3 made: 9 known, KV of 8, two full blocks. Preempted and resumed, both
    # are hit and one token is left to compute.
    driver = small(4)
    client = admitted(driver, tokens(1, 6), num_output_tokens=6)
    answer(driver, issued(driver, client))
    for _ in range(2):
        answer(driver, issued(driver, client))
    assert (client.num_made, client.num_kv) == (3, 8)
    driver.publish(client)
    driver.preempt(client)
    assert driver.admit(client)
    assert client.attempt.num_hit_blocks == 2
    assert client.num_known - client.num_kv == 1
    driver.close()


# -- copies up


def loading(driver: Driver) -> tuple[Client, Client]:
    """Begin copies of A[0] and, for another request, of A[1]; return both clients."""
    below(driver, 8)
    return admitted(driver, tokens(1, 4)), admitted(driver, tokens(1, 8))


def test_a_copy_up_is_moved_not_doubled() -> None:
    driver = small(4, 2)
    below(driver, 8)
    client = admitted(driver, tokens(1, 8))
    assert readable(driver, 0) == set()
    assert client.attempt.after == (last_transfer(driver).op_id,)
    answer(driver, last_transfer(driver))
    assert (readable(driver, 0), readable(driver, 1)) == ({A0, A1}, set())


def test_a_failed_load_is_no_hit() -> None:
    driver = small(4, 2)
    below(driver, 8)
    client = admitted(driver, tokens(1, 9))
    answer(driver, last_transfer(driver), FAILED)
    assert readable(driver, 0) == set()
    assert driver.waiting == [client]
    assert driver.admit(client)
    assert client.attempt.num_hit_blocks == 0  # it computes what could not be copied
    answer(driver, issued(driver, client))
    assert (readable(driver, 0), readable(driver, 1)) == ({A0, A1}, set())
    driver.close()


def test_what_was_loaded_before_a_failed_load_stays_a_hit() -> None:
    driver = small(5, 2)
    first, second = loading(driver)
    upper, lower = driver.answerable
    answer(driver, upper)
    answer(driver, lower, FAILED)
    assert driver.running == [first]
    assert driver.admit(second)
    assert second.attempt.num_hit_blocks == 1
    driver.close()


def test_a_failed_load_takes_along_what_was_loaded_below_it() -> None:
    # A[1] arrived on the GPU, but A[0], which leads to it, did not.
    driver = small(5, 2)
    loading(driver)
    upper, lower = driver.answerable
    answer(driver, lower)
    answer(driver, upper, FAILED)
    assert driver.running == []
    assert A1 not in readable(driver, 0)
    driver.close()


def test_an_abort_during_a_load_frees_its_blocks_when_the_load_has_ended() -> None:
    # 3 blocks: A loads into two and has a third. Aborted, one is free at once.
    driver = small(3, 2)
    below(driver, 8)
    client = admitted(driver, tokens(1, 9))
    load = last_transfer(driver)
    driver.end(client)
    assert driver.manager.num_free_blocks() == 1
    other = refused(driver, tokens(21, 28))
    answer(driver, load)
    while not driver.admit(other):
        driver.drain()
    driver.close()


def test_a_load_that_ends_before_the_abort_in_one_tick_is_the_same() -> None:
    driver = small(3, 2)
    below(driver, 8)
    client = admitted(driver, tokens(1, 9))
    answer(driver, last_transfer(driver))
    driver.end(client)
    other = driver.submit(tokens(21, 28))
    while not driver.admit(other):
        driver.drain()
    driver.close()


def test_a_late_load_cannot_write_into_a_block_of_another_request() -> None:
    driver = small(2, 2)
    below(driver, 8)
    admitted(driver, tokens(1, 8))
    load = last_transfer(driver)
    answer(driver, load, TIMED_OUT)
    assert driver.manager.num_free_blocks() == 0
    refused(driver, tokens(21, 24))
    assert readable(driver, 1) == {A0, A1}  # nothing is lost below
    driver.come_to_rest(load)
    assert driver.manager.num_free_blocks() == 2
    driver.close()


# -- copies down


def test_a_block_hit_on_its_way_down_stays_and_its_new_copy_goes() -> None:
    driver = small(2, 2)
    served(driver, tokens(1, 8))
    refused(driver, tokens(21, 28))
    write_back = last_transfer(driver)
    client = admitted(driver, tokens(1, 4))
    answer(driver, write_back)
    assert (readable(driver, 0), readable(driver, 1)) == ({A0}, {A1})
    assert client.attempt.table == [driver.cache.gpu.copies.block[client.attempt.path[0]]]
    driver.close()


def test_a_shared_prefix_hit_while_the_chain_is_stored_leaves_nothing_out_of_reach() -> None:
    driver = small(8, 8)
    served(driver, tokens(1, 12))
    refused(driver, tokens(101, 132))
    write_back = last_transfer(driver)
    sharer = admitted(driver, tokens(1, 4, 21))
    answer(driver, write_back)
    assert matched(driver, tokens(1, 13)) == (0, 1, 1)
    driver.end(sharer)
    driver.close()


def test_a_request_waits_for_the_blocks_of_a_store() -> None:
    driver = small(2, 2)
    served(driver, tokens(1, 8))
    other = refused(driver, tokens(21, 28))
    write_back = last_transfer(driver)
    refused(driver, tokens(31, 34))  # its source blocks are not free yet
    answer(driver, write_back)
    assert driver.admit(other)
    assert readable(driver, 1) == {A0, A1}
    driver.close()


def test_a_preempted_request_may_come_back_before_its_store_has_ended() -> None:
    driver = small(4, 2)
    client = admitted(driver, tokens(1, 8), num_output_tokens=3)
    answer(driver, issued(driver, client))
    driver.preempt(client)
    refused(driver, tokens(21, 36))
    store = last_transfer(driver)
    assert driver.admit(client)
    assert client.attempt.number == 1
    answer(driver, store)
    answer(driver, issued(driver, client))
    driver.end(client)
    assert (readable(driver, 0), readable(driver, 1)) == ({A0, A1}, set())
    driver.close()


@pytest.mark.parametrize("outcome", [FAILED, CANCELLED])
def test_a_failed_store_leaves_the_block_where_it_was(outcome: Outcome) -> None:
    driver = small(2, 2)
    served(driver, tokens(1, 8))
    refused(driver, tokens(21, 28))
    answer(driver, last_transfer(driver), outcome)
    assert (readable(driver, 0), readable(driver, 1)) == ({A0, A1}, set())
    assert driver.manager.num_free_blocks(1) == 2
    driver.close()


def test_a_late_store_keeps_source_and_target_until_it_has_settled() -> None:
    driver = small(2, 2)
    served(driver, tokens(1, 8))
    other = refused(driver, tokens(21, 28))
    store = last_transfer(driver)
    answer(driver, store, TIMED_OUT)
    assert readable(driver, 0) == {A0, A1}
    assert driver.manager.num_free_blocks(1) == 0
    assert not driver.admit(other)
    driver.come_to_rest(store)
    assert driver.manager.num_free_blocks(1) == 2
    assert driver.admit(other)
    driver.close()
