"""What a policy hears, and in which order."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.config import CacheConfig
from kvsim.core.instant import replay_instantly
from kvsim.core.manager import CacheManager
from kvsim.hitrate import replay
from kvsim.policies.lru import LRU
from tests.property.lab import BLOCK_SIZE, traces
from tests.unit.stories import trace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.core.ports import AccessInfo, EvictionPolicy, Peel, PolicyContext, RemoveReason
    from kvsim.trace import Trace

Call = tuple[object, ...]


class Recorder:
    """LRU that writes down each call, by the keys of its blocks."""

    def __init__(self, context: PolicyContext, calls: list[Call]) -> None:
        self._lru = LRU(context)
        self._key_of = context.key_of
        self._calls = calls

    def on_insert(self, nodes: Sequence[int], depth: int, info: AccessInfo | None) -> None:
        """Write down."""
        self._calls.append(("insert", self._keys(nodes), depth, info))
        self._lru.on_insert(nodes, depth, info)

    def on_hit(self, nodes: Sequence[int], depth: int, info: AccessInfo) -> None:
        """Write down."""
        self._calls.append(("hit", self._keys(nodes), depth, info))
        self._lru.on_hit(nodes, depth, info)

    def on_release(self, path: Sequence[int], info: AccessInfo) -> None:
        """Write down."""
        self._calls.append(("release", self._keys(path), info))
        self._lru.on_release(path, info)

    def on_evictable(self, node: int) -> None:
        """Write down."""
        self._calls.append(("evictable", self._key_of[node]))
        self._lru.on_evictable(node)

    def on_pinned(self, node: int) -> None:
        """Write down."""
        self._calls.append(("pinned", self._key_of[node]))
        self._lru.on_pinned(node)

    def on_remove(self, nodes: Sequence[int], reason: RemoveReason) -> None:
        """Write down."""
        self._calls.append(("remove", self._keys(nodes), reason))
        self._lru.on_remove(nodes, reason)

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[int]:
        """Write down."""
        self._calls.append(("choose", n, now))
        return self._lru.choose_victims(n, peel, now)

    def _keys(self, nodes: Sequence[int]) -> list[object]:
        return [self._key_of[node] for node in nodes]


def recorded() -> tuple[list[Call], Callable[[PolicyContext], EvictionPolicy]]:
    """Return a list, and a policy maker that fills it."""
    calls: list[Call] = []
    return calls, lambda context: Recorder(context, calls)


def names_of(calls: list[Call]) -> list[object]:
    """Return the calls without what is known of the access."""
    return [call[:2] for call in calls]


def test_the_calls_of_a_request_come_in_a_fixed_order() -> None:
    # In 3 blocks: ab, c; then ax wants one more than there is: a is not evictable (b hangs below
    # it), so nothing is pinned; b, the oldest leaf, goes; a is hit, x comes.
    calls, policy = recorded()
    replay(trace_of(("ab", 8), ("c", 4), ("ax", 8)), policy, 3)
    assert names_of(calls) == [
        ("insert", ["a", "b"]), ("release", ["a", "b"]), ("evictable", "b"),
        ("insert", ["c"]), ("release", ["c"]), ("evictable", "c"),
        ("choose", 1), ("remove", ["b"]),
        ("hit", ["a"]), ("insert", ["x"]), ("release", ["a", "x"]), ("evictable", "x"),
    ]  # fmt: skip


def test_the_last_block_found_is_pinned_before_room_is_made() -> None:
    calls, policy = recorded()
    replay(trace_of(("a", 4), ("b", 4), ("ax", 8)), policy, 2)
    assert names_of(calls)[6:] == [
        ("pinned", "a"), ("choose", 1), ("remove", ["b"]),
        ("hit", ["a"]), ("insert", ["x"]), ("release", ["a", "x"]), ("evictable", "x"),
    ]  # fmt: skip


@given(trace=traces(max_requests=30), capacity=st.integers(6, 12))
def test_a_policy_hears_from_the_lab_what_it_hears_from_the_core(
    trace: Trace, capacity: int
) -> None:
    from_lab, lab_policy = recorded()
    replay(trace, lab_policy, capacity)
    from_core, core_policy = recorded()
    config = CacheConfig(block_size=BLOCK_SIZE, tier_blocks=(capacity,))
    manager = CacheManager(config, core_policy, rng=Random(0))
    assert len(list(replay_instantly(manager, trace.requests))) == trace.num_requests
    assert from_lab == from_core


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_of_a_path_that_is_too_long_a_policy_hears_the_first_blocks_only(capacity: int) -> None:
    calls, policy = recorded()
    replay(trace_of(("abcd", 16)), policy, capacity)
    assert calls[0][1] == ["a", "b", "c", "d"][:capacity]
