"""2Q."""

from __future__ import annotations

import pytest

from kvsim.core.ports import RemoveReason
from kvsim.errors import ConfigError
from kvsim.policies.two_queue import TwoQueue
from tests.unit.policies.context import new_context
from tests.unit.policies.play import Play


def test_hits_while_a_block_is_new_count_for_nothing() -> None:
    # A1in has room for 2 of 8 and holds 3: the first in is the first out, hit or not.
    play = Play(TwoQueue(new_context(capacity=8)))
    play.enter(1, 2, 3)
    play.hit(1, 1)
    assert play.evict() == [1]


def test_what_comes_back_soon_is_kept_by_last_use() -> None:
    # 1 and 2 leave and come back as seen again; of them 1 was used last. A1in is at its size with
    # 3 and 4, so they stay.
    play = Play(TwoQueue(new_context(capacity=8)))
    play.enter(1, 2, 3, 4)
    assert play.evict(2) == [1, 2]
    play.enter(1, 2)
    play.hit(1)
    assert play.evict(2) == [2, 1]


def test_no_more_ghosts_are_kept_than_asked_for() -> None:
    # One ghost: of 1 and 2 only 2. When both are back, 1 is new and over the size of A1in (0), so
    # it goes before 2.
    play = Play(TwoQueue(new_context(capacity=3), out_fraction=0.4))
    play.enter(1, 2)
    assert play.evict(2) == [1, 2]
    play.enter(2, 1)
    assert play.evict(2) == [1, 2]


def test_a_block_that_comes_back_without_a_request_has_not_been_seen_again() -> None:
    # A victim that could not leave is removed and inserted again. A1in has no room: new goes first.
    play = Play(TwoQueue(new_context(capacity=3)))
    play.enter(1)
    assert play.evict() == [1]
    play.policy.on_insert([1], 0, None)
    play.policy.on_evictable(1)
    play.known.add(1)
    play.enter(2)
    assert play.evict(2) == [1, 2]


def test_a_block_that_is_taken_away_leaves_no_ghost() -> None:
    play = Play(TwoQueue(new_context(capacity=3)))
    play.enter(1)
    play.policy.on_remove([1], RemoveReason.DETACHED)
    play.enter(1, 2)  # both are new
    assert play.evict(2) == [1, 2]


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ({"in_fraction": 0.0}, "in_fraction must be between 0 and 1, not 0.0"),
        ({"out_fraction": -1.0}, "out_fraction must be at least 0, not -1.0"),
    ],
)
def test_sizes_that_are_none_are_refused(sizes: dict[str, float], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        TwoQueue(new_context(), **sizes)
