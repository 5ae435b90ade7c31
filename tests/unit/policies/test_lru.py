"""Least recently used: which moment is a use, and what a path is."""

from __future__ import annotations

import pytest

from kvsim.core.ports import RemoveReason
from kvsim.policies.lru import LRU, Stamp
from tests.unit.policies.context import access, new_context, victims_of


def lru(stamp: Stamp = Stamp.RELEASE) -> LRU:
    """Return a policy."""
    return LRU(new_context(), stamp=stamp)


def insert(policy: LRU, *nodes: int) -> None:
    """Let blocks without parents enter and become evictable, each by a request of its own."""
    for node in nodes:
        policy.on_insert([node], 0, access(node))
        policy.on_release([node], access(node))
        policy.on_evictable(node)


def test_the_block_used_longest_ago_goes_first() -> None:
    policy = lru()
    insert(policy, 3, 1, 2)
    assert victims_of(policy, 2, [1, 2, 3]) == [3, 1]


@pytest.mark.parametrize(
    ("stamp", "first"),
    [(Stamp.RELEASE, 2), (Stamp.ADMIT, 1)],  # 1 came before 2 and left after it
)
def test_the_stamp_says_whether_coming_or_going_counts(stamp: Stamp, first: int) -> None:
    policy = lru(stamp)
    for node in (1, 2):
        policy.on_insert([node], 0, access(node))
    for node in (2, 1):
        policy.on_release([node], access(node))
        policy.on_evictable(node)
    assert victims_of(policy, 1, [1, 2]) == [first]


@pytest.mark.parametrize("stamp", Stamp)
def test_a_hit_makes_a_block_young(stamp: Stamp) -> None:
    policy = lru(stamp)
    insert(policy, 1, 2)
    policy.on_pinned(1)
    policy.on_hit([1], 0, access(3))
    policy.on_release([1], access(3))
    policy.on_evictable(1)
    assert victims_of(policy, 2, [1, 2]) == [2, 1]


@pytest.mark.parametrize("stamp", Stamp)
def test_a_path_is_used_as_a_whole_and_goes_from_its_end(stamp: Stamp) -> None:
    # 1 - 2 - 3 is one path, 4 is younger than all of it: 3, 2 and 1 go, then 4.
    policy = lru(stamp)
    policy.on_insert([1, 2, 3], 0, access(1))
    policy.on_release([1, 2, 3], access(1))
    policy.on_evictable(3)
    insert(policy, 4)
    assert victims_of(policy, 3, [1, 2, 3, 4], parent={3: 2, 2: 1}) == [3, 2, 1]


def test_a_parent_that_was_used_again_outlives_other_leaves() -> None:
    # 1 - 2; then 3; then 1 is hit alone. 2 is oldest, then 3, then 1.
    policy = lru()
    policy.on_insert([1, 2], 0, access(1))
    policy.on_release([1, 2], access(1))
    policy.on_evictable(2)
    insert(policy, 3)
    policy.on_hit([1], 0, access(4))
    policy.on_release([1], access(4))
    assert victims_of(policy, 3, [1, 2, 3], parent={2: 1}) == [2, 3, 1]


def test_a_demoted_batch_keeps_the_order_it_left_in() -> None:
    policy = LRU(new_context(tier=1))
    policy.on_insert([5, 2, 4], 0, None)
    for node in (2, 4, 5):
        policy.on_evictable(node)
    assert victims_of(policy, 3, [2, 4, 5]) == [5, 2, 4]


def test_a_removed_block_is_not_chosen() -> None:
    policy = lru()
    insert(policy, 1, 2)
    policy.on_remove([1], RemoveReason.DETACHED)
    assert victims_of(policy, 2, [1, 2]) == [2]
