"""Random replacement."""

from __future__ import annotations

from collections import Counter

from kvsim.core.ports import RemoveReason
from kvsim.policies.random_choice import RandomChoice
from tests.unit.policies.context import new_context
from tests.unit.policies.play import Play


def test_every_evictable_block_is_drawn_about_as_often() -> None:
    # 3,000 draws of one out of three: 1,000 each, standard deviation sqrt(3000 * 1/3 * 2/3) = 26.
    play = Play(RandomChoice(new_context()))
    play.enter(1, 2, 3)
    drawn = Counter[int]()
    for _ in range(3_000):
        (victim,) = play.evict()
        drawn[victim] += 1
        play.enter(victim)
    assert set(drawn) == {1, 2, 3}
    assert all(abs(count - 1_000) < 5 * 26 for count in drawn.values())


def test_the_same_seed_draws_the_same() -> None:
    orders = []
    for _ in range(2):
        play = Play(RandomChoice(new_context()))
        play.enter(*range(1, 20))
        orders.append(play.evict(19))
    assert orders[0] == orders[1] != sorted(orders[0])


def test_what_is_in_use_or_gone_is_not_drawn() -> None:
    play = Play(RandomChoice(new_context()))
    play.enter(1, 2, 3, 4)
    play.policy.on_evictable(4)  # said twice
    play.policy.on_pinned(2)
    play.policy.on_pinned(2)  # idempotent
    play.policy.on_remove([3], RemoveReason.DETACHED)
    assert sorted(play.evict(4)) == [1, 4]
