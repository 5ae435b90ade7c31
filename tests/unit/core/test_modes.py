"""How tiers work together: exclusive or inclusive, written back or through. Computed by hand.

Blocks of one token; a letter is a block, `p("12")` a prompt of two.
"""

from __future__ import annotations

import pytest

from kvsim.config import CacheConfig, Preempt, TierInclusion, WritePolicy
from kvsim.core.ops import Outcome
from kvsim.errors import ConfigError
from tests.property.driver import POLICIES, Driver
from tests.property.story import (
    admitted,
    answer,
    issued,
    last_transfer,
    matched,
    new_driver,
    p,
    push_down,
    readable,
    refused,
    served,
)

A, AB, C, CD, E = (1,), (1, 2), (3,), (3, 4), (5,)
INCLUSIVE = pytest.mark.parametrize("mode", ["back", "through", "selective"])


def num_transfers(driver: Driver) -> int:
    """Return how many copies were ordered so far."""
    return sum(type(event).__name__ == "TransferIssued" for event in driver.mirror.events)


def written(driver: Driver) -> None:
    """Let what is due be written through, and everything end."""
    driver.write_back_ahead()
    driver.drain()
    driver.check()


# -- what is up stays below


def test_a_copy_up_takes_its_source_along_where_tiers_are_exclusive() -> None:
    # GPU 2, CPU 4. "12" is pushed down by "34", and comes up again for the third request.
    driver = new_driver(2, 4)
    for prompt in (p("12"), p("34"), p("12")):
        served(driver, prompt)
    assert (readable(driver, 0), readable(driver, 1)) == ({A, AB}, {C, CD})


def test_a_copy_up_keeps_its_source_where_tiers_are_inclusive() -> None:
    driver = new_driver(2, 4, mode="back")
    for prompt in (p("12"), p("34"), p("12")):
        served(driver, prompt)
    assert (readable(driver, 0), readable(driver, 1)) == ({A, AB}, {A, AB, C, CD})


def test_a_victim_that_is_below_leaves_without_a_copy() -> None:
    # Three copies so far: "12" down, "34" down, "12" up. The next request finds its two blocks at
    # once, since "12" is below; exclusive tiers must copy it down first.
    driver = new_driver(2, 4, mode="back")
    for prompt in (p("12"), p("34"), p("12")):
        served(driver, prompt)
    assert num_transfers(driver) == 3
    admitted(driver, p("56"))
    assert num_transfers(driver) == 3
    assert matched(driver, p("12")) == (1, 1)


def test_a_victim_without_a_copy_below_is_written_back() -> None:
    driver = new_driver(2, 4, mode="back")
    served(driver, p("12"))
    refused(driver, p("34"))
    answer(driver, last_transfer(driver))
    assert (readable(driver, 0), readable(driver, 1)) == (set(), {A, AB})


def test_a_block_that_leaves_the_lower_tier_may_stay_above() -> None:
    # GPU 3, CPU 1. "1" is written through, then "3" takes its place below: "1" is still above.
    driver = new_driver(3, 1, mode="through")
    served(driver, p("1"))
    written(driver)
    assert readable(driver, 1) == {A}
    served(driver, p("3"))
    written(driver)
    assert (readable(driver, 0), readable(driver, 1)) == ({A, C}, {C})


def test_a_victim_is_written_back_in_any_mode_if_a_child_of_it_is_below() -> None:
    # Nothing has been written through yet. "12" is swapped out, "1" stays for "13", which ends.
    # Then all five blocks are wanted: "13" is dropped, but "1" goes down to its child.
    driver = new_driver(5, 4, mode="through")
    client = admitted(driver, p("12"), num_output_tokens=3)
    answer(driver, issued(driver, client))
    other = admitted(driver, p("13"))
    answer(driver, issued(driver, other))
    driver.preempt(client, how=Preempt.SWAP)
    driver.end(other)
    driver.drain()
    assert (readable(driver, 0), readable(driver, 1)) == ({A, (1, 3)}, {AB})
    refused(driver, p("45678"))
    driver.drain()
    assert (readable(driver, 0), readable(driver, 1)) == (set(), {A, AB})


# -- written through


def test_a_block_is_copied_down_when_it_is_written() -> None:
    driver = new_driver(4, 4, mode="through")
    served(driver, p("12"))
    assert readable(driver, 1) == set()
    written(driver)
    assert (readable(driver, 0), readable(driver, 1)) == ({A, AB}, {A, AB})
    assert num_transfers(driver) == 1


def test_nothing_is_copied_down_before_the_forward_that_writes_it_is_done() -> None:
    driver = new_driver(4, 4, mode="through")
    client = admitted(driver, p("12"))
    forward = issued(driver, client)
    driver.write_back_ahead()
    assert num_transfers(driver) == 0
    answer(driver, forward)
    driver.write_back_ahead()
    assert num_transfers(driver) == 1


def test_a_block_is_not_evicted_while_it_is_being_written_through() -> None:
    # GPU 2, both blocks being written. Q waits for that, and not a moment longer.
    driver = new_driver(2, 2, mode="through")
    served(driver, p("12"))
    driver.write_back_ahead()
    client = refused(driver, p("34"))
    assert readable(driver, 0) == {A, AB}
    answer(driver, last_transfer(driver))
    assert driver.admit(client)
    assert readable(driver, 1) == {A, AB}


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELLED, Outcome.TIMED_OUT])
def test_a_write_that_fails_loses_only_its_target(outcome: Outcome) -> None:
    driver = new_driver(4, 4, mode="through")
    served(driver, p("12"))
    driver.write_back_ahead()
    answer(driver, last_transfer(driver), outcome)
    driver.drain()
    assert (readable(driver, 0), readable(driver, 1)) == ({A, AB}, set())
    assert driver.manager.num_free_blocks(1) == 4
    # The next request that wants it is a new occasion; the link is not taken for broken.
    served(driver, p("12"))
    written(driver)
    assert readable(driver, 1) == {A, AB}


def test_a_victim_that_was_not_written_is_dropped() -> None:
    # Nothing is ever written here, and nobody waits for a copy.
    driver = new_driver(2, 4, mode="through")
    served(driver, p("12"))
    admitted(driver, p("34"))
    assert num_transfers(driver) == 0
    assert matched(driver, p("12")) == ()


def test_what_finds_no_room_below_is_skipped_and_counted() -> None:
    # CPU 1: of "12" only the first block finds room. The other waits for its next hit.
    driver = new_driver(4, 1, mode="through")
    served(driver, p("12"))
    written(driver)
    assert readable(driver, 1) == {A}
    assert driver.manager.num_skipped_writes == 1
    assert not driver.manager.has_writes_due


@pytest.mark.parametrize("num_hits", [1, 2, 3])
def test_selective_writes_after_so_many_hits(num_hits: int) -> None:
    driver = new_driver(4, 4, mode="selective", hits=num_hits)
    served(driver, p("1"))
    for _ in range(num_hits):
        written(driver)
        assert readable(driver, 1) == set()
        served(driver, p("1"))
    written(driver)
    assert readable(driver, 1) == {A}


def test_a_block_that_comes_back_is_hit_anew() -> None:
    # GPU 1: "1" is hit once, evicted, and computed again: with two hits needed it has none.
    driver = new_driver(1, 2, mode="selective", hits=2)
    for prompt in (p("1"), p("1"), p("3"), p("1"), p("1")):
        served(driver, prompt)
        written(driver)
    assert readable(driver, 1) == set()
    served(driver, p("1"))
    written(driver)
    assert readable(driver, 1) == {A}


# -- recency in both tiers


def test_a_hit_above_refreshes_the_copy_below() -> None:
    # GPU 3, CPU 2: "1" and "3" are in both tiers, "1" is hit again. "5" then pushes out, below,
    # what was used longest ago: "3". Without the refresh it would be "1".
    driver = new_driver(3, 2, mode="through")
    for prompt in (p("1"), p("3"), p("1"), p("5")):
        served(driver, prompt)
        written(driver)
    assert (readable(driver, 0), readable(driver, 1)) == ({A, C, E}, {A, E})


@pytest.mark.parametrize("policy", sorted(POLICIES))
@INCLUSIVE
def test_every_policy_serves_inclusive_tiers(policy: str, mode: str) -> None:
    driver = new_driver(3, 4, 5, mode=mode, policy=policy)
    for prompt in ("12", "34", "12", "156", "34", "7", "12", "34", "156", "7"):
        served(driver, p(prompt))
        written(driver)
    # The last one is above, and whatever is there has its whole prefix somewhere.
    assert matched(driver, p("7")) == (0,)


# -- preemption by swap


def test_a_swapped_request_leaves_the_gpu_at_once() -> None:
    # GPU 4, CPU 4. Preempted by recompute, the blocks of "12" stay; swapped, they go down.
    for how, num_copies in ((Preempt.RECOMPUTE, 0), (Preempt.SWAP, 1)):
        driver = new_driver(4, 4)
        client = admitted(driver, p("12"), num_output_tokens=3)
        answer(driver, issued(driver, client))
        driver.preempt(client, how=how)
        driver.check()
        assert num_transfers(driver) == num_copies
        driver.drain()
        assert matched(driver, p("12")) == (num_copies, num_copies)


def test_a_swap_takes_nothing_that_others_refer_to_or_that_has_children() -> None:
    # "12" is preempted; "1" is also the parent of "13", which another request holds.
    driver = new_driver(5, 4)
    client = admitted(driver, p("12"), num_output_tokens=3)
    answer(driver, issued(driver, client))
    other = admitted(driver, p("13"))
    answer(driver, issued(driver, other))
    driver.preempt(client, how=Preempt.SWAP)
    driver.drain()
    assert (readable(driver, 0), readable(driver, 1)) == ({A, (1, 3)}, {AB})


def test_a_swap_drops_no_more_below_than_it_needs() -> None:
    # "56" fills the CPU. Of "12" only the second block goes down: "1" is the parent of "13".
    driver = new_driver(5, 2)
    served(driver, p("56"))
    push_down(driver)
    client = admitted(driver, p("12"), num_output_tokens=3)
    answer(driver, issued(driver, client))
    other = admitted(driver, p("13"))
    answer(driver, issued(driver, other))
    driver.preempt(client, how=Preempt.SWAP)
    driver.drain()
    driver.check()
    assert readable(driver, 1) == {AB, (5,)}


def test_a_swap_leaves_on_the_gpu_what_finds_no_room_below() -> None:
    # CPU 1: the deepest block goes, the one above it stays, cached like any other.
    driver = new_driver(4, 1)
    client = admitted(driver, p("12"), num_output_tokens=3)
    answer(driver, issued(driver, client))
    driver.preempt(client, how=Preempt.SWAP)
    driver.drain()
    assert (readable(driver, 0), readable(driver, 1)) == ({A}, {AB})


def test_a_swap_copies_nothing_that_is_below() -> None:
    driver = new_driver(4, 4, mode="through")
    client = admitted(driver, p("12"), num_output_tokens=3)
    answer(driver, issued(driver, client))
    written(driver)
    driver.preempt(client, how=Preempt.SWAP)
    assert num_transfers(driver) == 1
    assert (readable(driver, 0), readable(driver, 1)) == (set(), {A, AB})


def test_what_was_swapped_out_comes_up_at_an_ordinary_admission() -> None:
    driver = new_driver(4, 4)
    client = admitted(driver, p("12"), num_output_tokens=3)
    answer(driver, issued(driver, client))
    driver.preempt(client, how=Preempt.SWAP)
    driver.drain()
    assert driver.admit(client)
    assert client.attempt.num_reload_blocks == 2
    answer(driver, issued(driver, client))
    driver.end(client)


# -- sharing what is being computed


def test_a_block_that_is_being_computed_is_a_hit_unless_it_is_not_shared() -> None:
    for shares, num_hits, num_duplicates in ((True, 2, 0), (False, 0, 2)):
        driver = new_driver(6, share_in_flight=shares)
        first, second = driver.submit(p("12")), driver.submit(p("123"))
        assert driver.admit(first)
        assert driver.join(first)
        assert driver.admit(second)
        assert driver.join(second)
        driver.check()
        assert second.attempt.num_hit_blocks == second.attempt.num_joined_blocks == num_hits
        answer(driver, driver.issue())
        assert driver.manager.num_duplicate_blocks == num_duplicates
        assert readable(driver, 0) == {A, AB, (1, 2, 3)}
        assert second.attempt.table[:2] == first.attempt.table


def test_a_block_on_its_way_up_is_shared_in_any_case() -> None:
    driver = new_driver(5, 4, share_in_flight=False)
    served(driver, p("12"))
    served(driver, p("34567"))
    first = driver.submit(p("12"))
    while not driver.admit(first):
        driver.drain()
    second = admitted(driver, p("12"))
    assert (first.attempt.num_reload_blocks, second.attempt.num_joined_blocks) == (2, 2)


# -- what makes no sense


@pytest.mark.parametrize("policy", [WritePolicy.THROUGH, WritePolicy.SELECTIVE])
def test_exclusive_tiers_cannot_be_written_through(policy: WritePolicy) -> None:
    with pytest.raises(ConfigError, match=f"^write_policy '{policy}' keeps a block in two tiers"):
        CacheConfig(tier_blocks=(2, 2), write_policy=policy)


@pytest.mark.parametrize("policy", [WritePolicy.BACK, WritePolicy.THROUGH])
def test_hits_count_for_the_selective_policy_only(policy: WritePolicy) -> None:
    with pytest.raises(ConfigError, match=f"^write_through_hits is .*'selective', not '{policy}'"):
        CacheConfig(
            tier_inclusion=TierInclusion.INCLUSIVE, write_policy=policy, write_through_hits=2
        )


def test_no_hit_at_all_is_not_selective() -> None:
    with pytest.raises(ConfigError, match="write_through_hits must be an integer of at least 1"):
        CacheConfig(
            tier_inclusion=TierInclusion.INCLUSIVE,
            write_policy=WritePolicy.SELECTIVE,
            write_through_hits=0,
        )


def test_a_tier_needs_one_above_it() -> None:
    with pytest.raises(ConfigError, match=r"^disk_blocks of 4 need a tier above .* cpu_blocks"):
        CacheConfig(tier_blocks=(2, 0, 4))
    with pytest.raises(ConfigError, match="tier_blocks must name 1 to 3 tiers"):
        CacheConfig(tier_blocks=(2, 2, 2, 2))
