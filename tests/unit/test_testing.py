"""What users test their policies with: it lets good ones pass and finds bad ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.ports import RemoveReason
from kvsim.errors import InvariantError
from kvsim.events import BlocksRemoved, BlocksStored, RemoveCause
from kvsim.policies.lru import LRU
from kvsim.testing import (
    CheckedPolicy,
    EventMirror,
    Prompt,
    cache_configs,
    digest,
    make_request,
    prompts,
)
from kvsim.types import PartialRule
from tests.unit.policies.context import access, new_context, peel_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.config import CacheConfig

# -- CheckedPolicy, against the core


def checked() -> CheckedPolicy:
    """Return a wrapped policy that knows the nodes 1 and 2, of which it may choose 1."""
    policy = CheckedPolicy(LRU(new_context()), is_ranked=True)
    policy.on_insert([1, 2], 0, access())
    policy.on_release([1, 2], access())
    policy.on_evictable(1)
    return policy


def test_the_core_may_not_speak_of_nodes_that_are_not_there() -> None:
    policy = checked()
    with pytest.raises(InvariantError, match=r"on_hit of \[3\]: not known"):
        policy.on_hit([3], 0, access())
    with pytest.raises(InvariantError, match=r"on_release of \[1, 3\]: not known"):
        policy.on_release([1, 3], access())
    with pytest.raises(InvariantError, match=r"on_evictable of \[3\]: not known"):
        policy.on_evictable(3)
    with pytest.raises(InvariantError, match=r"on_pinned of \[3\]: not known"):
        policy.on_pinned(3)
    with pytest.raises(InvariantError, match=r"on_remove of \[3\]: not known"):
        policy.on_remove([3], RemoveReason.PROMOTED)


def test_the_core_may_not_insert_a_node_twice() -> None:
    with pytest.raises(InvariantError, match=r"on_insert of \[2\]: known already"):
        checked().on_insert([2], 0, access())
    with pytest.raises(InvariantError, match=r"on_insert of \[3, 3\]: named twice"):
        checked().on_insert([3, 3], 0, access())


def test_a_victim_is_obeyed_before_the_next_is_asked_for() -> None:
    policy = checked()
    assert policy.choose_victims(1, peel_of({}, [1, 2]), 0) == [1]
    with pytest.raises(InvariantError, match="not reported as removed"):
        policy.choose_victims(1, peel_of({}, [2]), 0)
    with pytest.raises(InvariantError, match=r"on_evictable of \[1\]: a victim"):
        policy.on_evictable(1)
    policy.on_remove([1], RemoveReason.EVICTED)
    assert policy.known == {2}


def test_only_victims_are_evicted() -> None:
    with pytest.raises(InvariantError, match="not evicted"):
        checked().on_remove([1], RemoveReason.EVICTED)


# -- EventMirror


def stored(*keys: str) -> BlocksStored:
    """Return the news that blocks can be read in tier 0."""
    return BlocksStored(tier=0, keys=keys, block_ids=tuple(range(len(keys))))


def removed(*keys: str) -> BlocksRemoved:
    """Return the news that blocks cannot be read in tier 0 any more."""
    return BlocksRemoved(tier=0, keys=keys, cause=RemoveCause.EVICTED)


def test_the_mirror_follows_what_can_be_read() -> None:
    mirror = EventMirror(2)
    for event in (stored("a", "b"), removed("a"), stored("c")):
        mirror.emit(event)
    assert mirror.readable == [{"b", "c"}, set()]
    assert len(mirror.events) == 3


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([stored("a"), stored("a")], "stored twice"),
        ([stored("a", "a")], "stored twice"),
        ([removed("a")], "removed without being there"),
        ([stored("a"), removed("a"), removed("a")], "removed without being there"),
    ],
)
def test_the_mirror_refuses_events_that_do_not_fit(
    events: Sequence[BlocksStored | BlocksRemoved], problem: str
) -> None:
    mirror = EventMirror(1)
    for event in events[:-1]:
        mirror.emit(event)
    with pytest.raises(InvariantError, match=problem):
        mirror.emit(events[-1])


# -- digest


class Thing:
    """Has state in slots."""

    __slots__ = ("friend", "items")

    def __init__(self) -> None:
        self.items: dict[str, list[int]] = {"a": [1, 2]}
        self.friend: Thing | None = None


def test_a_digest_changes_with_any_state_that_can_be_reached() -> None:
    thing = Thing()
    thing.friend = Thing()
    thing.friend.friend = thing
    before = digest(thing)
    assert digest(thing) == before
    thing.friend.items["a"][1] = 3
    assert digest(thing) != before


def test_a_digest_leaves_out_what_it_is_told_to() -> None:
    thing, other = Thing(), Thing()
    thing.friend = other
    before = digest(thing, without=[other])
    other.items.clear()
    assert digest(thing, without=[other]) == before


def test_a_digest_tells_a_bytearray_from_its_change() -> None:
    marks = bytearray(3)
    before = digest([marks])
    marks[1] = 1
    assert digest([marks]) != before


# -- strategies and requests


@pytest.mark.parametrize(
    ("partial", "sizes"), [(PartialRule.NEVER, [4, 4]), (PartialRule.COUNT, [4, 4, 3])]
)
def test_a_request_has_a_key_for_each_block_that_counts(
    partial: PartialRule, sizes: list[int]
) -> None:
    # 3 blocks of 4 tokens, 3 tokens in the last one: 11 tokens.
    request = make_request(5, Prompt((0, 1, 0), 3), block_size=4, partial=partial)
    assert request.num_input_tokens == 11
    letters = [(0,), (0, 1), (0, 1, 0)]
    assert list(request.block_keys) == list(zip(letters, sizes, strict=False))


@given(prompts(max_blocks=4, max_tail_tokens=2), st.integers(1, 3))
def test_next_uses_never_fall_along_a_path(prompt: Prompt, block_size: int) -> None:
    request = make_request(0, prompt, block_size=block_size)
    assert request.next_use_at is not None
    assert list(request.next_use_at) == sorted(request.next_use_at)
    assert len(request.next_use_at) == len(request.block_keys)


@given(cache_configs(max_gpu_blocks=3, max_cpu_blocks=2, max_disk_blocks=4))
def test_caches_are_as_small_as_asked_for(config: CacheConfig) -> None:
    gpu, cpu, *disk = config.tier_blocks
    assert 1 <= gpu <= 3
    # A disk needs a tier above it.
    assert len(disk) <= cpu <= 2
    assert all(1 <= blocks <= 4 for blocks in disk)


@given(cache_configs(max_disk_blocks=0))
def test_caches_have_no_third_tier_where_none_is_asked_for(config: CacheConfig) -> None:
    assert len(config.tier_blocks) == 2
