"""The clairvoyant policy."""

from __future__ import annotations

import pytest

from kvsim.errors import PolicyError
from kvsim.policies.belady import Belady
from kvsim.types import NEVER
from tests.unit.policies.context import access, new_context, victims_of


def test_the_block_needed_latest_goes_first() -> None:
    policy = Belady(new_context())
    for node, next_use in {1: 20, 2: 30, 3: 10}.items():
        policy.on_insert([node], 0, access(node, next_use_at=[next_use]))
        policy.on_evictable(node)
    assert victims_of(policy, 3, [1, 2, 3]) == [2, 1, 3]


def test_a_block_never_needed_again_goes_before_all_others() -> None:
    policy = Belady(new_context())
    for node, next_use in {1: 20, 2: NEVER}.items():
        policy.on_insert([node], 0, access(node, next_use_at=[next_use]))
        policy.on_evictable(node)
    assert victims_of(policy, 1, [1, 2]) == [2]


def test_of_blocks_needed_at_the_same_time_the_deepest_goes_first() -> None:
    # 1 - 2 - 3 are needed together by request 5. A tie is no reason to spare the child: 3 is the
    # leaf, then 2 is bare and no less late, then 1.
    policy = Belady(new_context())
    policy.on_insert([1, 2, 3], 0, access(1, next_use_at=[5, 5, 5]))
    policy.on_evictable(3)
    policy.on_insert([4], 0, access(2, next_use_at=[5]))
    policy.on_evictable(4)
    victims = victims_of(policy, 4, [1, 2, 3, 4], parent={3: 2, 2: 1})
    assert [node for node in victims if node != 4] == [3, 2, 1]


def test_a_hit_looks_ahead_again() -> None:
    policy = Belady(new_context())
    for node, next_use in {1: 3, 2: 4}.items():
        policy.on_insert([node], 0, access(node, next_use_at=[next_use]))
        policy.on_evictable(node)
    policy.on_pinned(1)
    policy.on_hit([1], 0, access(3, next_use_at=[9]))
    policy.on_evictable(1)
    assert victims_of(policy, 2, [1, 2]) == [1, 2]


def test_a_piece_of_a_path_looks_at_its_own_depth() -> None:
    # Blocks 2 and 3 of the path, at depths 1 and 2, are needed at 6 and 8.
    policy = Belady(new_context())
    policy.on_insert([2, 3], 1, access(1, next_use_at=[4, 6, 8]))
    assert policy.rank[2:4] == [NEVER - 6, NEVER - 8]


def test_blocks_of_output_tokens_are_never_needed_again() -> None:
    policy = Belady(new_context())
    policy.on_insert([1, 2], 0, access(1, next_use_at=[4]))
    assert policy.rank[1:3] == [NEVER - 4, 0]


def test_a_demoted_block_keeps_its_next_use() -> None:
    shared: dict[str, object] = {}
    above, below = (Belady(new_context(tier=tier, shared=shared)) for tier in (0, 1))
    above.on_insert([1, 2], 0, access(1, next_use_at=[4, 7]))
    below.on_insert([2, 1], 0, None)
    assert below.rank[1:3] == [NEVER - 4, NEVER - 7]


def test_a_trace_without_next_uses_is_refused_with_the_remedy() -> None:
    policy = Belady(new_context())
    with pytest.raises(PolicyError, match="load the trace with next uses"):
        policy.on_insert([1], 0, access(1))
