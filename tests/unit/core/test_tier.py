"""Pools of block ids: free + held + quarantined == capacity, always."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.tier import BlockPool
from kvsim.errors import InvariantError, MisuseError


def test_a_pool_hands_out_each_block_once() -> None:
    pool = BlockPool(4)
    assert sorted(pool.take(3) + pool.take(1)) == [0, 1, 2, 3]
    assert pool.free == []
    assert pool.num_held == 4


def test_the_block_given_back_last_is_taken_first() -> None:
    pool = BlockPool(3)
    pool.take(3)
    pool.give([0])
    pool.give([2])
    assert pool.take(1) == [2]


def test_taking_nothing_takes_nothing() -> None:
    assert BlockPool(2).take(0) == []


def test_too_large_a_demand_changes_nothing() -> None:
    pool = BlockPool(3)
    pool.take(1)
    with pytest.raises(MisuseError, match="3 blocks asked for, 2 free of 3"):
        pool.take(3)
    assert len(pool.free) == 2


def test_a_block_named_twice_is_not_freed_twice() -> None:
    pool = BlockPool(3)
    block, _ = pool.take(2)
    with pytest.raises(MisuseError, match="named twice"):
        pool.give([block, block])
    assert len(pool.free) == 1
    pool.give([block])
    assert len(pool.free) == 2


def test_more_blocks_than_are_held_cannot_come_back() -> None:
    pool = BlockPool(3)
    (block,) = pool.take(1)
    with pytest.raises(MisuseError, match="2 blocks come back, 1 of 3 are held"):
        pool.give([block, block + 1])
    with pytest.raises(MisuseError, match="2 blocks come back, 1 of 3 are held"):
        pool.give_dropped([block, block + 1])
    assert len(pool.free) == 2


def test_a_quarantined_block_is_neither_free_nor_held() -> None:
    pool = BlockPool(4)
    taken = pool.take(3)
    pool.quarantine(5, taken[:2])
    assert (len(pool.free), pool.num_held, pool.num_quarantined) == (1, 1, 2)
    pool.check(owned=taken[2:])


def test_blocks_leave_quarantine_when_their_own_op_has_settled() -> None:
    pool = BlockPool(4)
    taken = pool.take(3)
    pool.quarantine(5, taken[:1])
    pool.quarantine(6, taken[1:2])
    pool.quarantine(5, taken[2:])
    assert pool.unquarantine(6) == taken[1:2]
    assert pool.unquarantine(7) == []
    assert pool.num_quarantined == 2
    assert pool.unquarantine(5) == [taken[0], taken[2]]
    pool.check(owned=[])


def test_only_held_blocks_can_be_quarantined() -> None:
    pool = BlockPool(4)
    (block,) = pool.take(1)
    with pytest.raises(MisuseError, match="named twice"):
        pool.quarantine(5, [block, block])
    with pytest.raises(MisuseError, match="2 blocks come back, 1 of 4 are held"):
        pool.quarantine(5, [block, block + 1])


def test_check_notices_a_lost_block_and_a_block_with_two_owners() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.check(owned=[block])
    for owned in ([], [block, block], [1 - block]):
        with pytest.raises(InvariantError, match="not the 2 of the pool, each once"):
            pool.check(owned)


def test_check_notices_a_wrong_count_of_quarantined_blocks() -> None:
    pool = BlockPool(2)
    pool.quarantine(1, pool.take(1))
    pool.num_quarantined += 1
    with pytest.raises(InvariantError, match="2 quarantined, 1 found"):
        pool.check(owned=[])


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "hold", "rest"]), st.integers(0, 3))))
def test_no_block_is_ever_lost_or_doubled(steps: list[tuple[str, int]]) -> None:
    pool = BlockPool(6)
    owned: list[int] = []
    for what, n in steps:
        if what == "take" and n <= len(pool.free):
            owned += pool.take(n)
        elif what == "give":
            pool.give(owned[:n])
            del owned[:n]
        elif what == "hold":
            pool.quarantine(n, owned[:n])
            del owned[:n]
        elif what == "rest":
            pool.unquarantine(n)
        pool.check(owned)
    assert len(pool.free) + len(owned) + pool.num_quarantined == 6


def test_a_block_that_is_retiring_is_owned_and_not_held() -> None:
    # All 4 are taken; ids 2 and 3 are to go: 2 held, 2 retiring, 4 in all.
    pool = BlockPool(4)
    pool.take(4)
    pool.resize(2)
    assert (pool.num_held, len(pool.retiring), pool.num_owned) == (2, 2, 4)
