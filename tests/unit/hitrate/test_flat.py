"""Replays without the prefix rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsim.errors import ConfigError, PolicyError
from kvsim.hitrate.flat import flat_replay
from kvsim.policies.lru import LRU
from kvsim.testing import PerBlockLRU
from tests.unit.policies.test_against_oracles import trace_of

if TYPE_CHECKING:
    from kvsim.core.ports import Peel
    from kvsim.types import NodeId

# Blocks are named by the prompt up to them. With 3 blocks and LRU:
#   ab     misses a, ab;             holds a, ab
#   c      misses;                   holds a, ab, c
#   abd    hits a, ab, misses abd;   c goes: a, ab, abd
#   c      misses;                   a goes: ab, abd, c
#   ab     misses a (ab goes), misses ab (abd goes)
PROMPTS = ["ab", "c", "abd", "c", "ab"]


def test_hits_are_counted_block_by_block() -> None:
    hits = flat_replay(trace_of(PROMPTS), "lru", 3)
    assert hits.policy == "lru"
    assert hits.capacity_blocks == 3
    assert hits.num_references == 9
    assert hits.block_hits == (0, 0, 2, 0, 0)
    assert hits.num_block_hits == 2
    assert hits.block_hit_rate == 2 / 9


def test_a_block_is_hit_although_its_prefix_is_gone() -> None:
    # FIFO with 3 blocks: a, x and ab enter in this order (a is hit on the way), y pushes a out. In
    # the last prompt a misses and pushes x out, and ab is there: a hit, but not a leading one.
    hits = flat_replay(trace_of(["a", "x", "ab", "y", "ab"]), "fifo", 3)
    assert hits.block_hits == (0, 0, 1, 0, 1)
    assert hits.leading_hits == (0, 0, 1, 0, 0)
    assert hits.num_leading_hits == 1


def test_the_depth_of_a_block_is_its_place_in_the_prompt() -> None:
    # LengthAware, 2 blocks: abc enters when a and ab are there, equal in use; the deeper one goes.
    # Of the second prompt a is hit; ab misses, and pushes abc out, which was used less than a.
    hits = flat_replay(trace_of(["abc", "abc"]), "length-aware", 2)
    assert hits.block_hits == (0, 1)


def test_of_blocks_of_one_prompt_the_one_that_is_wanted_last_goes() -> None:
    # Belady, 2 blocks: when abc enters, ab goes, wanted after a; when ab comes back, a is wanted
    # never again and goes, so abc is hit.
    hits = flat_replay(trace_of(["abc", "abc"]), "belady", 2)
    assert hits.block_hits == (0, 2)
    assert hits.leading_hits == (0, 1)


def test_a_trace_without_blocks_has_no_hits() -> None:
    hits = flat_replay(trace_of([]), "lru", 3)
    assert hits.num_references == 0
    assert hits.block_hit_rate == 0.0


@pytest.mark.parametrize("policy", [LRU, PerBlockLRU])
def test_a_policy_of_your_own_is_replayed_like_a_named_one(policy: type[LRU]) -> None:
    named, own = (flat_replay(trace_of(PROMPTS), each, 3) for each in ("lru", policy))
    assert own.block_hits == named.block_hits


@pytest.mark.parametrize("capacity", [0, -1, 2.0, True, "3"])
def test_a_capacity_that_is_none_is_refused(capacity: int) -> None:
    with pytest.raises(ConfigError, match="capacity_blocks must be an integer of at least 1"):
        flat_replay(trace_of(PROMPTS), "lru", capacity)


class TakesNothing(LRU):
    """Finds no victim."""

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        return []


class TakesTheNewcomer(LRU):
    """Takes a block that is in use."""

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        victims: list[NodeId] = []
        peel(3, n, self.rank, -1, victims)
        return victims


def test_a_policy_that_takes_nothing_or_what_is_in_use_is_found() -> None:
    with pytest.raises(PolicyError, match=r"returned \[\] when asked for 1 of 2 evictable"):
        flat_replay(trace_of(PROMPTS), TakesNothing, 2)
    # Nodes are given out from 1 on, so the third block is node 3.
    with pytest.raises(PolicyError, match="took node 3 as a victim, which is not evictable"):
        flat_replay(trace_of(PROMPTS), TakesTheNewcomer, 2)
