"""Policies in the per-block form, behind the batch form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsim.core.ports import RemoveReason
from kvsim.errors import PolicyError
from kvsim.policies.adapter import PerBlockAdapter
from tests.unit.policies.context import access, new_context, victims_of

if TYPE_CHECKING:
    from kvsim.core.ports import AccessInfo
    from kvsim.types import BlockKey


class Recorder:
    """Writes down each call, and chooses what it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.choices: list[BlockKey | None] = []

    def on_insert(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        """Note it."""
        self.calls.append(("insert", key, depth, info.request_index))

    def on_hit(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        """Note it."""
        self.calls.append(("hit", key, depth, info.request_index))

    def on_evictable(self, key: BlockKey) -> None:
        """Note it."""
        self.calls.append(("evictable", key))

    def on_pinned(self, key: BlockKey) -> None:
        """Note it."""
        self.calls.append(("pinned", key))

    def on_remove(self, key: BlockKey, reason: RemoveReason) -> None:
        """Note it."""
        self.calls.append(("remove", key, reason))

    def choose_victim(self, now: int) -> BlockKey | None:
        """Return the next choice."""
        del now
        return self.choices.pop(0) if self.choices else None


def adapted() -> tuple[PerBlockAdapter, Recorder]:
    """Return a recorder behind its adapter."""
    recorder = Recorder()
    return PerBlockAdapter(recorder, new_context()), recorder


def test_a_request_is_told_leaf_first_with_the_depth_of_each_block() -> None:
    adapter, recorder = adapted()
    adapter.on_insert([1, 2], 0, access(7))
    adapter.on_hit([1, 2], 0, access(8))
    adapter.on_insert([3, 4], 2, access(8))
    assert recorder.calls == [
        ("insert", "k2", 1, 7),
        ("insert", "k1", 0, 7),
        ("hit", "k2", 1, 8),
        ("hit", "k1", 0, 8),
        ("insert", "k4", 3, 8),
        ("insert", "k3", 2, 8),
    ]


def test_a_demoted_block_comes_with_what_is_known_of_its_last_access() -> None:
    shared: dict[str, object] = {}
    above, below = Recorder(), Recorder()
    upper = PerBlockAdapter(above, new_context(tier=0, shared=shared))
    lower = PerBlockAdapter(below, new_context(tier=1, shared=shared))
    upper.on_insert([1, 2], 0, access(7))
    upper.on_hit([1], 0, access(8))
    lower.on_insert([2, 1], 0, None)  # in victim order: it is leaf first already
    assert below.calls == [("insert", "k2", 1, 7), ("insert", "k1", 0, 8)]


def test_removals_are_told_one_by_one_with_their_reason() -> None:
    adapter, recorder = adapted()
    adapter.on_insert([1, 2], 0, access())
    recorder.calls.clear()
    adapter.on_remove([2, 1], RemoveReason.PROMOTED)
    assert recorder.calls == [("remove", f"k{n}", RemoveReason.PROMOTED) for n in (2, 1)]


def test_victims_are_asked_for_one_at_a_time_and_a_bared_parent_can_be_the_next() -> None:
    # 1 - 2: the parent becomes evictable in the middle of the call.
    adapter, recorder = adapted()
    adapter.on_insert([1, 2], 0, access())
    adapter.on_evictable(2)
    recorder.calls.clear()
    recorder.choices = ["k2", "k1"]
    assert victims_of(adapter, 2, [1, 2], parent={2: 1}) == [2, 1]
    assert recorder.calls == [("pinned", "k2"), ("evictable", "k1"), ("pinned", "k1")]


def test_fewer_victims_than_asked_for_are_right_when_there_are_no_more() -> None:
    adapter, recorder = adapted()
    adapter.on_insert([1], 0, access())
    adapter.on_evictable(1)
    recorder.choices = ["k1"]
    assert victims_of(adapter, 5, [1]) == [1]


def test_choosing_nothing_while_something_is_evictable_is_a_fault() -> None:
    adapter, _ = adapted()
    adapter.on_insert([1], 0, access())
    adapter.on_evictable(1)
    with pytest.raises(PolicyError, match="None while 1 blocks are evictable"):
        victims_of(adapter, 1, [1])


def test_choosing_a_pinned_block_is_a_fault() -> None:
    adapter, recorder = adapted()
    adapter.on_insert([1], 0, access())
    adapter.on_evictable(1)
    adapter.on_pinned(1)
    recorder.choices = ["k1"]
    with pytest.raises(PolicyError, match="'k1', which is pinned"):
        victims_of(adapter, 1, [1])


def test_choosing_a_block_that_has_left_is_a_fault() -> None:
    adapter, recorder = adapted()
    adapter.on_insert([1, 2], 0, access())
    adapter.on_evictable(2)
    adapter.on_remove([2], RemoveReason.DETACHED)
    recorder.choices = ["k2"]
    with pytest.raises(PolicyError, match="'k2', which is not in the tier"):
        victims_of(adapter, 1, [1])
