"""Making room: what goes, what stays, what is refused. Known faults of other systems, each small.

Blocks of 4 tokens; `tokens(1, 12)` is a prompt of token ids 1 to 12, three blocks.
"""

from __future__ import annotations

import pytest

from kvsim.core.manager import Blocked
from kvsim.core.ops import Outcome
from kvsim.testing import Prompt, digest
from tests.property.driver import POLICIES, Driver
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

EVERY_POLICY = pytest.mark.parametrize("policy", sorted(POLICIES))
A0, A1, A2 = (1,), (1, 5), (1, 5, 9)  # the blocks of tokens(1, 12), by their letters
D0, D1 = (21,), (21, 25)  # the blocks of tokens(21, 28)


def small(gpu: int, cpu: int = 0, *, policy: str = "lru") -> Driver:
    """Return a driver with blocks of four tokens."""
    return new_driver(gpu, cpu, block_size=4, policy=policy)


# -- the order of eviction


@EVERY_POLICY
def test_a_suffix_goes_before_its_prefix(policy: str) -> None:
    driver = small(3, policy=policy)
    served(driver, tokens(1, 12))
    served(driver, tokens(31, 34))
    assert readable(driver, 0) == {A0, A1, (31,)}
    assert matched(driver, tokens(1, 13)) == (0, 0)


@EVERY_POLICY
def test_a_prefix_that_is_hit_outlives_its_suffix_below(policy: str) -> None:
    # A[0] and A[1] are on the CPU, which has room for one more. Two blocks of D come down: they
    # take that and the block of A[1]. A[0] was used just as long ago, but has a child.
    driver = small(2, 3, policy=policy)
    served(driver, tokens(1, 8))
    served(driver, tokens(21, 28))
    assert readable(driver, 1) == {A0, A1}
    served(driver, tokens(41, 48))
    assert A1 not in readable(driver, 1)
    assert A0 in readable(driver, 1)


def test_only_the_end_of_a_chain_leaves_the_lower_tier() -> None:
    # A's three blocks fill the CPU tier. One block comes down: only A[2] goes for it.
    driver = small(4, 3)
    served(driver, tokens(1, 12))
    served(driver, tokens(41, 56))
    assert readable(driver, 1) == {A0, A1, A2}
    refused(driver, tokens(61, 64))  # evicts one block, which goes down
    answer(driver, last_transfer(driver))
    assert matched(driver, tokens(1, 13)) == (1, 1)


def test_a_chain_is_freed_in_one_call_from_leaf_to_root() -> None:
    driver = small(3)
    served(driver, tokens(1, 12))
    admitted(driver, tokens(21, 32))
    assert readable(driver, 0) == set()


def test_least_recently_used_counts_from_the_release() -> None:
    # A is admitted first and released last, so D goes.
    driver = small(3)
    first = admitted(driver, tokens(1, 4))
    served(driver, tokens(21, 24))
    answer(driver, issued(driver, first))
    driver.end(first)
    admitted(driver, tokens(31, 38))
    assert readable(driver, 0) == {A0}


# -- how much goes


def test_no_more_is_evicted_than_what_is_short() -> None:
    # 10 blocks, 8 of them cached. 5 wanted, 2 free: 3 go, not 5 and not 8.
    driver = small(10)
    for first in range(8):
        served(driver, tokens(100 + 4 * first, 103 + 4 * first))
    assert driver.manager.num_free_blocks() == 2
    admitted(driver, tokens(1, 20))
    assert len(readable(driver, 0)) == 5
    assert driver.manager.num_free_blocks() == 0


def test_free_blocks_are_used_before_any_is_evicted() -> None:
    driver = small(4)
    served(driver, tokens(1, 8))
    admitted(driver, tokens(21, 28))
    assert readable(driver, 0) == {A0, A1}


def test_evicting_from_an_empty_cache_ends_at_once() -> None:
    driver = new_driver(2, 2, watermark=3)
    driver.write_back_ahead()
    assert driver.answerable == []
    assert driver.manager.num_free_blocks() == 2


def test_asking_for_more_than_there_is_takes_all_there_is_and_ends() -> None:
    driver = new_driver(10, 10, watermark=100, batch=100)
    served(driver, Prompt((1, 2, 3), 1))
    served(driver, Prompt((1, 2, 4, 5), 1))
    driver.write_back_ahead()
    transfer = last_transfer(driver).transfer
    assert transfer is not None
    assert len(transfer.source_ids) == 5
    driver.write_back_ahead()
    assert len(driver.answerable) == 1
    driver.close()


# -- refusals


def test_a_refusal_takes_nothing() -> None:
    # 3 blocks: A holds 2, Q wants 2.
    driver = small(3)
    admitted(driver, tokens(1, 8))
    refused(driver, tokens(21, 28))
    assert driver.manager.num_free_blocks() == 1


def test_a_refusal_evicts_nothing() -> None:
    # 4 blocks: A holds 2, one is cached, one free. Q wants 3, and even with the cached one only 2
    # can be had.
    driver = small(4)
    served(driver, tokens(41, 44))
    admitted(driver, tokens(1, 8))
    client = driver.submit(tokens(21, 32))
    events, state = len(driver.mirror.events), digest(driver.manager, without=[driver.mirror])
    assert driver.manager.admit(client.attempt, 9) == Blocked(shortfall_blocks=1)
    assert digest(driver.manager, without=[driver.mirror]) == state
    assert len(driver.mirror.events) == events
    assert readable(driver, 0) == {(41,)}


def test_own_hits_do_not_count_as_room() -> None:
    # 6 blocks: 2 of A cached, X runs in one, 3 free. Q wants 6, hits 2, needs 4 more: 3 free and
    # nothing else to evict.
    driver = small(6)
    served(driver, tokens(1, 8))
    other = admitted(driver, tokens(91, 94))
    client = refused(driver, tokens(1, 24))
    driver.end(other)
    assert driver.admit(client)
    assert client.attempt.num_hit_blocks == 2
    driver.check()


def test_growth_is_all_or_nothing() -> None:
    driver = small(4)
    client = admitted(driver, tokens(1, 8))
    assert not driver.grow(client, 3)
    assert len(client.attempt.table) == 2
    assert driver.grow(client, 2)
    assert len(set(client.attempt.table)) == 4
    driver.check()


# -- two tiers


def test_a_reload_takes_a_gpu_block_and_both_tiers_add_up() -> None:
    # 3 GPU and 2 CPU blocks. D needs 2 of which 1 is free: A[1] goes down. Q hits A[0] above and
    # A[1] below and needs 2 blocks: the one to reload and a new one. Below, A[1] is being read,
    # so there is room for one of D's, and D[1] is worth nothing without D[0].
    driver = small(3, 2)
    served(driver, tokens(1, 8))
    served(driver, tokens(21, 28))
    assert (readable(driver, 0), readable(driver, 1)) == ({A0, D0, D1}, {A1})
    client = driver.submit(tokens(1, 9))
    while not driver.admit(client):
        driver.drain()
    assert readable(driver, 1) == {A1, D0}
    assert (client.attempt.num_hit_blocks, client.attempt.num_reload_blocks) == (2, 1)
    assert driver.manager.num_free_blocks(0) == driver.manager.num_free_blocks(1) == 0
    answer(driver, issued(driver, client))
    assert readable(driver, 1) == {D0}
    driver.end(client)
    driver.check()


def test_a_block_below_is_never_without_the_one_above_it() -> None:
    # Two blocks want to go down, there is room for one: the parent gets it.
    driver = small(2, 1)
    served(driver, tokens(1, 8))
    served(driver, tokens(21, 28))
    assert readable(driver, 1) == {A0}
    assert matched(driver, tokens(1, 9)) == (1,)


def test_no_lower_tier_is_plain_eviction() -> None:
    driver = small(2, 0)
    served(driver, tokens(1, 8))
    served(driver, tokens(21, 28))
    assert matched(driver, tokens(1, 9)) == ()


def test_a_lower_tier_that_is_busy_is_not_waited_for() -> None:
    # The one CPU block is being read by a reload: what has to make room is dropped, at once.
    driver = small(2, 1)
    served(driver, tokens(1, 4))
    served(driver, tokens(21, 28))
    assert readable(driver, 1) == {A0}
    reader = driver.submit(tokens(1, 4))
    assert driver.admit(reader) or driver.admit(reader)
    reload = last_transfer(driver)
    assert reload.transfer is not None
    assert reload.transfer.target.tier == 0
    served_blocks = readable(driver, 0)
    other = admitted(driver, tokens(31, 34))  # drops what is left of D, without a transfer
    assert readable(driver, 0) < served_blocks
    assert driver.answerable == [reload]
    answer(driver, reload)
    answer(driver, issued(driver, other))
    driver.end(other)
    driver.end(reader)
    refused(driver, tokens(51, 58))  # now there is room below
    write_back = last_transfer(driver)
    assert write_back.transfer is not None
    assert write_back.transfer.target.tier == 1
    driver.drain()
    driver.check()


def test_a_slot_below_that_is_being_written_is_not_given_to_another_block() -> None:
    driver = small(2, 1)
    served(driver, tokens(1, 4))
    served(driver, tokens(21, 24))
    refused(driver, tokens(31, 34))
    first = last_transfer(driver)
    refused(driver, tokens(41, 48))  # wants a second block to go down: there is no slot
    assert driver.answerable == [first]
    answer(driver, first)
    assert readable(driver, 1) == {A0}
    driver.close()


def test_write_backs_go_in_batches_ahead_of_need() -> None:
    driver = new_driver(6, 6, watermark=3, batch=2)
    served(driver, Prompt((1, 2, 3, 4, 5), 1))  # 1 block free, 3 wanted
    driver.write_back_ahead()
    transfer = last_transfer(driver).transfer
    assert transfer is not None
    assert len(transfer.source_ids) == 2
    driver.write_back_ahead()  # 1 free and 2 leaving: enough
    assert len(driver.answerable) == 1
    driver.close()


def test_the_unaligned_end_of_a_prompt_is_private_and_comes_back() -> None:
    driver = small(8)
    client = admitted(driver, tokens(1, 10))
    answer(driver, issued(driver, client, 5))
    assert readable(driver, 0) == {A0}
    answer(driver, issued(driver, client, 5))
    driver.end(client)
    assert readable(driver, 0) == {A0, A1}
    assert driver.manager.num_free_blocks() == 6

    served(driver, tokens(61, 63))  # shorter than a block
    assert readable(driver, 0) == {A0, A1}
    assert matched(driver, tokens(61, 63)) == ()

    aborted = admitted(driver, tokens(71, 80))
    answer(driver, issued(driver, aborted, 5))
    driver.end(aborted)
    assert readable(driver, 0) == {A0, A1, (71,)}
    assert driver.manager.num_free_blocks() == 5


def test_a_request_that_only_reads_takes_no_block() -> None:
    # A fully matched prompt computes its last token without writing: its KV is there.
    driver = small(2)
    served(driver, tokens(1, 8))
    client = admitted(driver, tokens(1, 8))
    forward = issued(driver, client)
    assert forward.writes == set()
    answer(driver, forward)
    assert driver.manager.num_free_blocks() == 0
    assert readable(driver, 0) == {A0, A1}


def test_after_a_failed_write_back_blocks_are_dropped_rather_than_moved() -> None:
    # A broken link must not stop the instance.
    driver = small(1, 1)
    served(driver, tokens(1, 4))
    client = refused(driver, tokens(21, 24))
    answer(driver, last_transfer(driver), Outcome.FAILED)
    assert driver.admit(client)
    assert driver.answerable == []
    assert readable(driver, 0) == readable(driver, 1) == set()
