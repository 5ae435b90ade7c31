"""Least frequently used, with counts that die with the block and counts that survive."""

from __future__ import annotations

import pytest

from kvsim.core.ports import RemoveReason
from kvsim.policies.lfu import LFU, PersistentLFU
from tests.unit.policies.context import access, new_context, victims_of
from tests.unit.policies.play import Play

BOTH = pytest.mark.parametrize("policy", [LFU, PersistentLFU])


@BOTH
def test_the_block_with_the_fewest_uses_goes_first(policy: type[LFU]) -> None:
    play = Play(policy(new_context()))
    play.enter(1, 2, 3)
    play.hit(1, 1, 3)  # uses: 3, 1, 2
    assert play.evict(3) == [2, 3, 1]


@BOTH
def test_of_equals_the_one_with_the_oldest_use_goes(policy: type[LFU]) -> None:
    play = Play(policy(new_context()))
    play.enter(1, 2, 3)
    play.hit(2, 1, 3)
    assert play.evict(3) == [2, 1, 3]


@pytest.mark.parametrize(("policy", "first"), [(LFU, 1), (PersistentLFU, 2)])
def test_what_the_two_forms_know_of_a_block_that_comes_back(policy: type[LFU], first: int) -> None:
    # 1 is used three times and leaves; when it is back it has one use, or four; 2 has two.
    play = Play(policy(new_context()))
    play.enter(1)
    play.hit(1, 1)
    assert play.evict() == [1]
    play.enter(1, 2)
    play.hit(2)
    assert play.evict() == [first]


@BOTH
def test_a_block_keeps_its_uses_on_its_way_down_and_up(policy: type[LFU]) -> None:
    shared: dict[str, object] = {}
    above, below = (policy(new_context(tier=tier, shared=shared)) for tier in (0, 1))
    play = Play(above)
    play.enter(1, 2)
    play.hit(1, 1)
    for node in (1, 2):
        above.on_pinned(node)
        above.on_remove([node], RemoveReason.DEMOTED)
        below.on_insert([node], 0, None)
        below.on_evictable(node)
    # 1 has three uses, 2 has one, whatever the order in which they came down.
    assert victims_of(below, 1, [1, 2]) == [2]
    below.on_hit([1], 0, access(5))
    below.on_pinned(1)
    below.on_remove([1], RemoveReason.PROMOTED)
    play.enter(1)  # the fourth use
    play.enter(3)
    play.hit(3, 3)  # three uses
    assert play.evict(2) == [3, 1]
