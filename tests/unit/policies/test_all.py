"""What every policy must do, whatever its order."""

from __future__ import annotations

import pytest

from kvsim.core.ports import RemoveReason
from kvsim.policies import POLICIES, policy_factory
from tests.unit.policies.context import access, new_context, victims_of

EVERY_POLICY = pytest.mark.parametrize("policy", sorted(POLICIES))


@EVERY_POLICY
def test_what_is_in_use_is_never_chosen_and_nothing_is_chosen_where_all_is(policy: str) -> None:
    made = policy_factory(policy)[1](new_context())
    for node in (1, 2, 3):
        made.on_insert([node], 0, access(node, next_use_at=[9]))
        made.on_release([node], access(node))
        made.on_evictable(node)
    made.on_pinned(1)
    made.on_pinned(1)  # idempotent
    victims = victims_of(made, 3, [1, 2, 3])
    assert sorted(victims) == [2, 3]
    made.on_remove(victims, RemoveReason.DEMOTED)
    assert victims_of(made, 3, [1]) == []
    made.on_evictable(1)
    assert victims_of(made, 3, [1]) == [1]


@EVERY_POLICY
def test_a_batch_that_comes_from_above_can_be_chosen_and_go_up_again(policy: str) -> None:
    shared: dict[str, object] = {}
    above, below = (
        policy_factory(policy)[1](new_context(tier=tier, shared=shared)) for tier in (0, 1)
    )
    info = access(1, next_use_at=[5, 6, 7])
    above.on_insert([1, 2, 3], 0, info)
    above.on_release([1, 2, 3], info)
    above.on_evictable(3)
    victims = victims_of(above, 3, [1, 2, 3], parent={3: 2, 2: 1})
    assert victims == [3, 2, 1]
    above.on_remove(victims, RemoveReason.DEMOTED)
    below.on_insert(victims, 0, None)
    below.on_evictable(3)
    again = access(5, next_use_at=[8])
    below.on_hit([1], 0, again)
    below.on_pinned(1)
    below.on_remove([1], RemoveReason.PROMOTED)
    above.on_insert([1], 0, again)
    assert victims_of(below, 3, [2, 3], parent={3: 2}) == [3, 2]
