"""LengthAware, in both readings."""

from __future__ import annotations

import pytest

from kvsim.core.ports import RemoveReason
from kvsim.policies.length_aware import First, LengthAware
from tests.unit.policies.context import access, new_context, victims_of


@pytest.mark.parametrize(
    ("first", "victims"),
    # Node: (uses, depth) = 1: (1, 0), 2: (2, 5), 3: (1, 3), 4: (1, 3) and used later than 3.
    [(First.USES, [3, 4, 1, 2]), (First.DEPTH, [2, 3, 4, 1])],
)
def test_few_uses_and_great_depth_lead_out(first: First, victims: list[int]) -> None:
    policy = LengthAware(new_context(), first=first)
    for node, depth in ((1, 0), (2, 5), (3, 3), (4, 3)):
        policy.on_insert([node], depth, access(node))
        policy.on_release([node], access(node))
    policy.on_hit([2], 5, access(5))
    policy.on_release([2], access(5))
    for node in (1, 2, 3, 4):
        policy.on_evictable(node)
    assert victims_of(policy, 4, [1, 2, 3, 4]) == victims


def test_a_demoted_block_keeps_its_depth() -> None:
    shared: dict[str, object] = {}
    above, below = (LengthAware(new_context(tier=tier, shared=shared)) for tier in (0, 1))
    above.on_insert([1, 2, 3], 0, access(1))
    above.on_release([1, 2, 3], access(1))
    above.on_remove([3, 2, 1], RemoveReason.DEMOTED)
    below.on_insert([1, 3, 2], 0, None)
    for node in (1, 2, 3):
        below.on_evictable(node)
    assert victims_of(below, 3, [1, 2, 3]) == [3, 2, 1]
