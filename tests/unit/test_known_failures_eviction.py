"""Faults reported of other systems, and of the prototype: making room, and what is kept alive.

A block is four tokens; a step of n tokens takes 10 + n ns, a copy of a block 10 ns.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from kvsim.config import SchedulerConfig
from kvsim.core.manager import Deferred
from kvsim.core.sequence import Sequence
from kvsim.events import BlocksRemoved, RemoveCause, RequestEnded
from tests.unit.core.stage import ask, engine

if TYPE_CHECKING:
    from kvsim.core.ops import Transfer
    from kvsim.types import BlockKey


def test_what_fits_below_is_kept_when_more_is_evicted() -> None:
    # Four blocks have to go, two fit below: the two nearest the root.
    stage = engine(
        ask(0, range(1, 17)),
        ask(1, range(21, 37), at=100),
        ask(2, range(1, 13), at=1000),
        gpu=4,
        cpu=2,
    ).play()
    first = stage.transfers[0]
    assert len(first.source_ids) == 2
    gone = next(e for e in stage.events if isinstance(e, BlocksRemoved))
    assert gone.cause is RemoveCause.EVICTED
    assert set(gone.keys) == {tuple(range(1, 13)), tuple(range(1, 17))}
    assert stage.records[2].num_cpu_hit_blocks == 2


def test_room_is_made_for_a_second_request_while_that_for_the_first_is_being_made() -> None:
    stage = engine(ask(0, range(1, 17)), gpu=4, cpu=8).play()
    manager = stage.manager
    waiting = [Sequence(ask(i, range(20 * i, 20 * i + 8)), 4) for i in (1, 2)]
    ops: list[Transfer] = []
    for sequence in waiting:
        outcome = manager.admit(sequence.new_attempt(0), 100)
        assert isinstance(outcome, Deferred)
        ops += outcome.ops
        manager.check()
    # Each asked for two blocks; the two leaving for the first count for the second as well, but
    # then it is the first's turn: the second is turned away again, and has two more evicted.
    assert [len(op.source_ids) for op in ops] == [2]
    held = waiting[0].new_attempt(0)
    held.num_wanted_blocks = 4
    outcome = manager.admit(held, 101)
    assert isinstance(outcome, Deferred)
    assert [len(op.source_ids) for op in outcome.ops] == [2]


def test_a_matched_block_is_not_evicted_for_its_own_request_when_its_branch_goes() -> None:
    # Block 1..4 (n) has two children: 5..8 on the CPU, and 50..53 above, which is older than
    # request 3's block. Request 4 hits n above and 5..8 below, and needs three blocks, one of
    # which is free. With 50..53 gone, n has no child above and is the oldest: it must stay.
    stage = engine(
        ask(0, range(1, 9)),
        ask(1, range(60, 72), at=100),
        ask(2, [1, 2, 3, 4, 50, 51, 52, 53], at=200),
        ask(3, range(80, 84), at=300),
        ask(4, range(1, 14), at=400),
        gpu=4,
        cpu=9,
        swap_batch=3,
    ).play()
    record = stage.records[4]
    assert (record.num_gpu_hit_blocks, record.num_cpu_hit_blocks) == (1, 1)
    assert stage.slices()[-1] == (4, 8, 5)
    since = [isinstance(e, RequestEnded) and e.request_id == 3 for e in stage.events].index(True)
    removed = [e for e in stage.events[since:] if isinstance(e, BlocksRemoved) and e.tier == 0]
    keys = [key for event in removed for key in event.keys]
    assert (1, 2, 3, 4, 50, 51, 52, 53) in keys
    assert (1, 2, 3, 4) not in keys


def test_a_small_budget_does_not_shrink_a_hit() -> None:
    config = SchedulerConfig(token_budget=2, max_running=2, decode_reserve_blocks=0)
    stage = engine(ask(0, range(1, 9)), ask(1, range(1, 9), at=900), gpu=4, scheduler=config).play()
    assert stage.slices()[-1] == (1, 7, 1)
    assert len(set(stage.forwards[-1].prefill[0].block_ids)) == 2
    assert stage.manager.num_free_blocks() == stage.manager.num_evictable_blocks == 2


class Keys(list["BlockKey"]):
    """A list that can be watched."""


def test_nothing_keeps_a_request_that_has_ended() -> None:
    watched = []
    requests = []
    for i in range(9):
        request = ask(i, range(1, 30), num_output_tokens=9, at=30 * i)
        keys = Keys(request.block_keys)
        watched.append(weakref.ref(keys))
        requests.append(replace(request, block_keys=keys))
    del request, keys
    config = SchedulerConfig(token_budget=12, max_running=3, decode_reserve_blocks=0)
    stage = engine(*requests, gpu=20, cpu=20, scheduler=config)
    requests.clear()
    stage.play()
    assert len(stage.records) == 9
    # The caller lets go of the records; the blocks stay cached.
    stage.scheduler.ended.clear()
    gc.collect()
    assert [reference() for reference in watched] == [None] * 9
    assert stage.manager.num_evictable_blocks > 0
