"""ARC."""

from __future__ import annotations

from kvsim.core.ports import RemoveReason
from kvsim.policies.arc import ARC
from tests.unit.policies.context import access, new_context
from tests.unit.policies.play import Play


def arc(capacity: int) -> Play:
    return Play(ARC(new_context(capacity=capacity)))


def test_blocks_seen_once_go_first_while_nothing_is_known() -> None:
    # The target of T1 is 0, so T1 gives victims while it has any.
    play = arc(4)
    play.enter(1, 2, 3)
    play.hit(1)
    assert play.evict(3) == [2, 3, 1]


def test_a_ghost_of_the_recent_queue_raises_its_target() -> None:
    # 1 is hit and moves to T2; 2 leaves T1 and comes back: target 1, and 2 is in T2. T1 = {3} is
    # not above its target, so the next victim is the oldest of T2: 1.
    play = arc(3)
    play.enter(1, 2, 3)
    play.hit(1)
    assert play.evict() == [2]
    play.enter(2)
    assert play.evict() == [1]
    # Now 1 is a ghost of T2: it lowers the target to 0 again, and 3 goes before T2's 2 and 1.
    play.enter(1)
    assert play.evict(3) == [3, 2, 1]


def test_no_more_is_remembered_than_twice_the_tier() -> None:
    # 9 blocks pass through a tier of 2. T1 and its ghosts have at most 2, so of the first seven
    # none is remembered: 1 is new, enters T1, and goes before 9.
    play = arc(2)
    play.enter(1, 2)
    for node in range(3, 10):
        play.evict()
        play.enter(node)
    assert play.known == {8, 9}
    assert play.evict() == [8]
    play.enter(1)
    assert play.evict(2) == [9, 1]


def test_a_demoted_block_is_a_ghost_like_a_dropped_one() -> None:
    # 1 moves down and is fetched again: it is in T2, and the target of T1 = {2, 3, 4} is 1. So T1
    # gives 2 and 3 before it is 1's turn. Were 1 new, it would go between them.
    play = arc(4)
    play.enter(1, 2)
    assert play.evict(reason=RemoveReason.DEMOTED) == [1]
    play.enter(1, 3, 4)
    assert play.evict(3) == [2, 3, 1]


def test_a_victim_that_could_not_leave_goes_back_to_its_queue() -> None:
    # 1 was chosen from T1, 2 from T2; neither is a request's news, so the target stays 0.
    play = arc(4)
    play.enter(1, 2, 3)
    play.hit(2)
    assert play.evict(3) == [1, 3, 2]
    for node in (2, 1):
        play.policy.on_insert([node], 0, None)
        play.policy.on_evictable(node)
        play.known.add(node)
    assert play.evict(2) == [1, 2]


def test_a_block_that_is_taken_away_leaves_no_ghost() -> None:
    play = arc(2)
    play.enter(1, 2)
    play.policy.on_remove([1], RemoveReason.DETACHED)
    play.enter(1)
    assert play.evict(2) == [2, 1]


def test_a_new_block_that_another_request_hits_is_counted_at_once() -> None:
    # 1 is computed by one request and hit by a second before the first lets go of it.
    play = arc(2)
    play.policy.on_insert([1], 0, access(0))
    play.policy.on_hit([1], 0, access(1))
    play.policy.on_release([1], access(0))
    play.policy.on_release([1], access(1))
    play.policy.on_evictable(1)
    play.known.add(1)
    play.enter(2)
    assert play.evict(2) == [2, 1]
