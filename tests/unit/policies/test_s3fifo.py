"""S3-FIFO."""

from __future__ import annotations

import pytest

from kvsim.core.ports import RemoveReason
from kvsim.errors import ConfigError
from kvsim.policies.s3fifo import S3FIFO
from tests.unit.policies.context import new_context
from tests.unit.policies.play import Play


def s3fifo(capacity: int = 10) -> Play:
    """Return a policy whose small queue has a tenth of the room."""
    return Play(S3FIFO(new_context(capacity=capacity)))


def test_while_the_tier_fills_all_but_the_small_queue_go_to_main() -> None:
    # Small has room for one: 1. The other nine are in main, and have room there, so 1 goes first.
    play = s3fifo()
    play.enter(*range(1, 11))
    assert play.evict(2) == [1, 2]


def test_two_hits_lead_from_the_small_queue_to_main() -> None:
    # 1 is promoted; main has ten then, one too many, but the small queue is empty first: main
    # gives the oldest without a hit, 2.
    play = s3fifo()
    play.enter(*range(1, 11))
    play.hit(1, 1)
    assert play.evict() == [2]


def test_one_hit_does_not() -> None:
    play = s3fifo()
    play.enter(*range(1, 11))
    play.hit(1)
    assert play.evict() == [1]


def test_main_gives_a_block_another_round_for_each_hit_up_to_three() -> None:
    # Small: 1. Main: 2 with three hits (of five), 3 with one, 4 with none. After 1 and 4, 3 goes
    # in the second round and 2 in the fourth.
    play = Play(S3FIFO(new_context(capacity=4), small_fraction=0.25))
    play.enter(1, 2, 3, 4)
    play.hit(2, 2, 2, 2, 2, 3)
    assert play.evict(4) == [1, 4, 3, 2]


def test_a_ghost_that_comes_back_goes_to_main() -> None:
    # 1 leaves the small queue and comes back to main, which is one over its nine then and gives 2.
    # 11 is in the small queue and goes next, before all of main.
    play = s3fifo()
    play.enter(*range(1, 11))
    assert play.evict() == [1]
    play.enter(1, 11)
    assert play.evict(2) == [2, 11]


def test_no_more_ghosts_are_kept_than_there_is_room_for() -> None:
    # One ghost: of 1 and 2, which leave the small queue, only 2. Back they go to small and main;
    # main has room, so 1 goes first.
    play = Play(S3FIFO(new_context(capacity=4), small_fraction=0.5, ghost_fraction=0.25))
    play.enter(1, 2, 3, 4)
    assert play.evict(2) == [1, 2]
    play.enter(2, 1)
    assert play.evict() == [3]  # main, with 3, 4 and 2, is one over its size
    assert play.evict() == [1]


def test_where_main_is_in_use_a_block_promoted_to_it_is_the_one_that_goes() -> None:
    # 1 is back in main, which is one over its three and all in use; 5 is promoted, and alone there.
    play = Play(S3FIFO(new_context(capacity=4), small_fraction=0.25))
    play.enter(1, 2, 3, 4)
    assert play.evict() == [1]
    play.enter(1, 5)
    play.hit(5, 5)
    for node in (1, 2, 3, 4):
        play.policy.on_pinned(node)
    assert play.evict(2) == [5]


def test_a_victim_that_could_not_leave_is_not_seen_again() -> None:
    play = s3fifo()
    play.enter(*range(1, 11))
    assert play.evict() == [1]
    play.policy.on_insert([1], 0, None)
    play.policy.on_evictable(1)
    play.known.add(1)
    assert play.evict() == [1]  # from the small queue


def test_a_block_that_is_taken_away_leaves_no_ghost() -> None:
    play = s3fifo()
    play.enter(*range(1, 11))
    play.evict()  # 1; from now on all that is new goes to the small queue
    play.enter(11)
    play.policy.on_remove([11], RemoveReason.DETACHED)
    play.enter(11)
    assert play.evict() == [11]


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ({"small_fraction": 1.0}, "small_fraction must be between 0 and 1, not 1.0"),
        ({"ghost_fraction": -1.0}, "ghost_fraction must be at least 0, not -1.0"),
    ],
)
def test_sizes_that_are_none_are_refused(sizes: dict[str, float], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        S3FIFO(new_context(), **sizes)  # type: ignore[arg-type]
