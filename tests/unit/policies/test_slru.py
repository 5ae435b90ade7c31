"""Segmented LRU."""

from __future__ import annotations

import pytest

from kvsim.core.ports import RemoveReason
from kvsim.errors import ConfigError
from kvsim.policies.slru import SLRU
from tests.unit.policies.context import new_context
from tests.unit.policies.play import Play


def test_what_was_hit_outlives_what_was_not() -> None:
    play = Play(SLRU(new_context()))
    play.enter(1, 2, 3)
    play.hit(1)
    assert play.evict(3) == [2, 3, 1]


def test_the_oldest_protected_block_makes_room_as_the_newest_on_probation() -> None:
    # Room for 2 protected of 4. 1, 2 and 3 are hit: 1 goes back on probation, behind 4.
    play = Play(SLRU(new_context(capacity=4), protected_fraction=0.5))
    play.enter(1, 2, 3, 4)
    play.hit(1, 2, 3)
    assert play.evict(4) == [4, 1, 2, 3]


def test_a_protected_block_in_use_can_lose_its_protection_and_is_no_victim_for_that() -> None:
    play = Play(SLRU(new_context(capacity=2), protected_fraction=0.5))
    play.enter(1, 2)
    play.hit(1)
    play.policy.on_pinned(1)
    play.hit(2)  # 1 is on probation now, but in use
    assert play.evict(2) == [2]
    play.policy.on_evictable(1)
    assert play.evict() == [1]


def test_a_block_that_is_taken_away_is_forgotten() -> None:
    play = Play(SLRU(new_context(capacity=2), protected_fraction=0.5))
    play.enter(1, 2)
    play.hit(1)
    play.policy.on_remove([1], RemoveReason.DETACHED)
    play.hit(2)  # the one protected place is free
    assert play.evict(2) == [2]


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_a_share_that_is_none_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match="protected_fraction must be between 0 and 1"):
        SLRU(new_context(), protected_fraction=fraction)
