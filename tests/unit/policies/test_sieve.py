"""SIEVE."""

from __future__ import annotations

from kvsim.core.ports import RemoveReason
from kvsim.policies.sieve import SIEVE
from tests.unit.policies.context import access, new_context, victims_of
from tests.unit.policies.play import Play


def test_the_hand_spares_what_was_hit_and_goes_on_from_where_it_was() -> None:
    # 1 is spared and its mark cleared, 2 goes; the hand goes on: 3, spared 4; then round: 1, 4.
    play = Play(SIEVE(new_context()))
    play.enter(1, 2, 3, 4)
    play.hit(1, 4, 4)
    assert play.evict() == [2]
    assert play.evict(3) == [3, 1, 4]


def test_at_the_newest_block_the_hand_turns_before_others_enter() -> None:
    # 1 is spared, 2 goes and was the newest: the hand is back at 1 when 3 enters.
    play = Play(SIEVE(new_context()))
    play.enter(1, 2)
    play.hit(1)
    assert play.evict() == [2]
    play.enter(3)
    assert play.evict() == [1]


def test_what_is_in_use_is_passed_and_keeps_its_mark() -> None:
    # The hand takes 2 and is past 1 when that is let go of: 3 comes first, then 1 is spared once.
    play = Play(SIEVE(new_context()))
    play.enter(1, 2, 3, 4)
    play.policy.on_pinned(1)
    play.policy.on_hit([1], 0, access(5))
    assert play.evict() == [2]
    play.policy.on_evictable(1)
    assert play.evict(3) == [3, 4, 1]


def test_a_child_enters_before_its_parent() -> None:
    # 1 - 2, then 3: the hand takes 2, and 1 is the next ahead of it.
    policy = SIEVE(new_context())
    policy.on_insert([1, 2], 0, access(1))
    policy.on_evictable(2)
    policy.on_insert([3], 0, access(2))
    policy.on_evictable(3)
    assert victims_of(policy, 3, [1, 2, 3], parent={2: 1}) == [2, 1, 3]


def test_a_demoted_batch_keeps_the_order_it_left_in() -> None:
    policy = SIEVE(new_context(tier=1))
    policy.on_insert([5, 2, 4], 0, None)
    for node in (2, 4, 5):
        policy.on_evictable(node)
    assert victims_of(policy, 3, [2, 4, 5]) == [5, 2, 4]


def test_a_block_that_is_taken_away_is_not_chosen() -> None:
    play = Play(SIEVE(new_context()))
    play.enter(1, 2)
    play.policy.on_remove([1], RemoveReason.DETACHED)
    assert play.evict(2) == [2]


def test_hits_alone_do_not_make_the_heaps_grow_for_ever() -> None:
    # 6 blocks, of which the hand has passed the first three; 5,000 hits leave stale entries in
    # both heaps. The marks stand for the order: all are spared once, then the hand goes on at 4.
    play = Play(SIEVE(new_context()))
    play.enter(1, 2, 3, 7, 4, 5, 6)
    play.hit(1, 2, 3)
    assert play.evict() == [7]
    for i in range(5_000):
        play.hit(1 + i % 6)
    heaps = (play.policy._ahead, play.policy._behind)  # type: ignore[attr-defined]  # noqa: SLF001
    assert max(map(len, heaps)) <= 65
    assert play.evict(6) == [4, 5, 6, 1, 2, 3]
