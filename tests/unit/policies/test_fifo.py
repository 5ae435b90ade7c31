"""First in, first out."""

from __future__ import annotations

from kvsim.policies.fifo import FIFO
from tests.unit.policies.context import access, new_context, victims_of


def test_hits_change_nothing() -> None:
    policy = FIFO(new_context())
    for node in (1, 2):
        policy.on_insert([node], 0, access(node))
        policy.on_evictable(node)
    policy.on_hit([1], 0, access(3))
    policy.on_release([1], access(3))
    assert victims_of(policy, 1, [1, 2]) == [1]


def test_a_parent_is_older_than_its_children_and_yet_outlives_them() -> None:
    # 1 - 2, then 3. 2 is the oldest leaf; bared, 1 is older still and goes before 3.
    policy = FIFO(new_context())
    policy.on_insert([1, 2], 0, access(1))
    policy.on_evictable(2)
    policy.on_insert([3], 0, access(2))
    policy.on_evictable(3)
    assert victims_of(policy, 3, [1, 2, 3], parent={2: 1}) == [2, 1, 3]


def test_a_block_that_comes_back_is_the_youngest() -> None:
    policy = FIFO(new_context())
    for node in (1, 2, 1):
        policy.on_insert([node], 0, access(node))
        policy.on_evictable(node)
    assert victims_of(policy, 2, [1, 2]) == [2, 1]
