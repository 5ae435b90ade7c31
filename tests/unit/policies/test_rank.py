"""The lazy heap behind policies with a rank per block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from kvsim.policies.lru import LRU
from kvsim.policies.rank import RankPolicy
from tests.unit.policies.context import access, new_context, victims_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import AccessInfo
    from kvsim.types import NodeId


class ByRank(RankPolicy):
    """Leaves the ranks to the test."""

    __slots__ = ()

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Change nothing."""

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        """Change nothing."""

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        """Change nothing."""


def ranked(ranks: dict[int, int]) -> ByRank:
    """Return a policy to which these nodes are evictable."""
    policy = ByRank(new_context())
    for node, rank in ranks.items():
        policy.rank[node] = rank
        policy.on_evictable(node)
    return policy


def test_the_smallest_rank_goes_first_and_ties_by_node() -> None:
    policy = ranked({3: 5, 1: 7, 4: 5, 2: 6})
    assert victims_of(policy, 4, [1, 2, 3, 4]) == [3, 4, 2, 1]


def test_no_more_are_chosen_than_asked_for_and_no_more_than_there_are() -> None:
    policy = ranked({1: 1, 2: 2, 3: 3})
    assert victims_of(policy, 0, [1, 2, 3]) == []
    assert victims_of(policy, 2, [1, 2, 3]) == [1, 2]
    assert victims_of(policy, 9, [3]) == [3]
    assert victims_of(policy, 9, [3]) == []


def test_a_pinned_block_is_never_a_victim() -> None:
    policy = ranked({1: 1, 2: 2})
    policy.on_pinned(1)
    policy.on_pinned(1)  # idempotent
    assert victims_of(policy, 2, [1, 2]) == [2]


def test_an_entry_of_an_old_rank_does_not_count() -> None:
    policy = ranked({1: 1, 2: 2})
    policy.on_pinned(1)
    policy.rank[1] = 9
    policy.on_evictable(1)
    assert victims_of(policy, 2, [1, 2]) == [2, 1]


def test_a_block_listed_twice_is_chosen_once() -> None:
    policy = ranked({1: 1, 2: 2})
    policy.on_evictable(1)
    assert victims_of(policy, 3, [1, 2]) == [1, 2]


def test_a_bared_parent_waits_for_smaller_leaves() -> None:
    # 1 - 2 with ranks 5 and 1, and the leaf 3 with rank 3: 2, then 3, then 1.
    policy = ranked({2: 1, 3: 3})
    policy.rank[1] = 5
    assert victims_of(policy, 3, [1, 2, 3], parent={2: 1}) == [2, 3, 1]


def test_a_bared_parent_that_is_not_taken_stays_listed() -> None:
    policy = ranked({2: 1})
    policy.rank[1] = 1
    assert victims_of(policy, 1, [1, 2], parent={2: 1}) == [2]
    assert victims_of(policy, 1, [1]) == [1]


def test_hits_alone_do_not_make_the_heap_grow_for_ever() -> None:
    # 5 blocks, hit and released 10,000 times, never a victim: each leaves a stale entry. The heap
    # is rebuilt when it is more than 4 times as long as the list, but not below 65 entries.
    policy = LRU(new_context())
    for round_index in range(10_000):
        node = 1 + round_index % 5
        policy.on_pinned(node)
        policy.on_release([node], access(round_index))
        policy.on_evictable(node)
    assert len(policy._heap) <= 65  # noqa: SLF001  (its length is the point)
    # The last five uses were of 1, 2, 3, 4, 5 in this order.
    assert victims_of(policy, 5, [1, 2, 3, 4, 5]) == [1, 2, 3, 4, 5]


@given(
    st.lists(
        st.tuples(st.sampled_from(["list", "pin", "take"]), st.integers(1, 9), st.integers(0, 4)),
        max_size=120,
    )
)
def test_the_heap_chooses_what_a_search_would(steps: list[tuple[str, int, int]]) -> None:
    policy, listed = ByRank(new_context()), dict[int, int]()
    for what, node, number in steps:
        if what == "list":
            policy.on_pinned(node)
            listed[node] = policy.rank[node] = number
            policy.on_evictable(node)
        elif what == "pin":
            listed.pop(node, None)
            policy.on_pinned(node)
        else:
            wanted = sorted(listed, key=lambda each: (listed[each], each))[:number]
            assert victims_of(policy, number, list(listed)) == wanted
            for each in wanted:
                del listed[each]
