"""What a router is told; that it is the index of every tier is shown by the property machines."""

from __future__ import annotations

import json

import pytest

import kvsim
from kvsim.analysis.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    KvEventStream,
    Parents,
    json_line,
)
from kvsim.errors import UserError
from kvsim.events import BlocksRemoved, BlocksStored, CacheCleared, Event, RemoveCause
from tests.unit.stories import back_from_below, three_prompts


def told(*events: Event, mediums: tuple[str, ...] = ("GPU", "CPU")) -> list[KvEvent]:
    stream = KvEventStream(mediums, Parents(three_prompts().requests), 4)
    return [each for event in events for each in stream.take(event, 7)]


def test_a_key_is_told_to_be_stored_with_the_key_before_it() -> None:
    assert told(BlocksStored(0, ("a", "b"), (0, 1)), BlocksStored(0, ("c",), (2,))) == [
        BlockStored(0, 7, ("a", "b"), None, (), 4, "GPU"),
        BlockStored(1, 7, ("c",), "b", (), 4, "GPU"),
    ]


def test_pieces_of_several_paths_are_told_one_by_one() -> None:
    # Of three_prompts: abc and ad.
    events = told(BlocksStored(1, ("a", "b", "d"), (0, 1, 2)))
    assert [(each.block_hashes, each.parent_block_hash) for each in events
            if isinstance(each, BlockStored)] == [(("a", "b"), None), (("d",), "a")]  # fmt: skip


def test_output_blocks_follow_their_own_request() -> None:
    parents = Parents(three_prompts().requests)
    # Request 2 is ad: its first output block is at position 2, behind d.
    assert parents.get(("output", 2, 2)) == "d"
    assert parents.get(("output", 2, 3)) == ("output", 2, 2)
    assert parents.get(("output", 9, 3)) is None


def test_nothing_is_said_while_another_copy_is_in_the_same_medium() -> None:
    # I4: two copies of one key, both in host memory; only the last one's end is told.
    events = told(
        BlocksStored(0, ("a",), (0,)),
        BlocksStored(1, ("a",), (5,)),
        BlocksRemoved(0, ("a",), RemoveCause.EVICTED),
        BlocksRemoved(1, ("a",), RemoveCause.EVICTED),
        mediums=("HOST", "HOST"),
    )
    assert events == [
        BlockStored(0, 7, ("a",), None, (), 4, "HOST"),
        BlockRemoved(1, 7, ("a",), "HOST"),
    ]


def test_a_block_that_moves_down_and_up_again_is_told_in_both_directions() -> None:
    result = kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=3, events=True)
    seen = [
        (type(each).__name__, "".join(map(str, each.block_hashes)), each.medium)
        for each in result.kv_events()
        if not isinstance(each, AllBlocksCleared)
    ]
    assert seen == [
        ("BlockStored", "abc", "GPU"),
        ("BlockStored", "abc", "CPU"),  # driven down by def
        ("BlockRemoved", "cba", "GPU"),
        ("BlockStored", "def", "GPU"),
        ("BlockRemoved", "fed", "GPU"),  # dropped: below is no room for it
        ("BlockStored", "abc", "GPU"),  # wanted again
        ("BlockRemoved", "cba", "CPU"),
    ]
    assert [each.sequence for each in result.kv_events()] == list(range(7))


def test_a_flush_is_told_and_forgets_all() -> None:
    events = told(
        BlocksStored(0, ("a",), (0,)), CacheCleared("flush", 1), BlocksStored(0, ("a",), (0,))
    )
    assert [type(each) for each in events] == [BlockStored, AllBlocksCleared, BlockStored]
    assert [each.sequence for each in events] == [0, 1, 2]


def test_a_parent_is_told_before_its_child_over_all_mediums() -> None:
    result = kvsim.replay("sample:chat", limit=150, gpu_blocks=260, cpu_blocks=300, events=True)
    there: dict[object, int] = {}
    for event in result.kv_events():
        if isinstance(event, BlockStored):
            assert event.parent_block_hash is None or there[event.parent_block_hash]
            for key in event.block_hashes:
                there[key] = there.get(key, 0) + 1
        elif isinstance(event, BlockRemoved):
            for key in event.block_hashes:
                there[key] -= 1
    assert there


def test_a_line_has_the_names_that_routers_know() -> None:
    line = json_line(BlockStored(3, 7, (b"\x01\xff", ("output", 1, 2)), "x", (), 4, "GPU"))
    assert json.loads(line) == {
        "type": "BlockStored",
        "sequence": 3,
        "at_ns": 7,
        "block_hashes": ["01ff", "output:1:2"],
        "parent_block_hash": "x",
        "token_ids": [],
        "block_size": 4,
        "medium": "GPU",
    }
    assert json.loads(json_line(AllBlocksCleared(4, None)))["type"] == "AllBlocksCleared"


def test_an_instant_run_has_events_without_times() -> None:
    result = kvsim.replay(three_prompts(), gpu_blocks=5, instant=True, events=True)
    assert {event.at_ns for event in result.kv_events()} == {None}


def test_events_must_have_been_kept() -> None:
    with pytest.raises(UserError, match="events=True"):
        kvsim.replay(three_prompts(), gpu_blocks=5).kv_events()
