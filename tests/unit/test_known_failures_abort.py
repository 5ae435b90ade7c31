"""Faults reported of other systems: ends in the middle of something (D1, D6, E1, E2, E4, E5).

A block is four tokens; a step of n tokens takes 10 + n ns, a copy of a block 10 ns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsim.config import SchedulerConfig, SwapIn
from kvsim.core.ops import Completion, Forward, Outcome
from kvsim.events import AttemptEnded, BlocksStored, EndReason, RequestAdmitted
from tests.unit.core.stage import Engine, ask, engine

if TYPE_CHECKING:
    from collections.abc import Callable

OVERLAP = SchedulerConfig(decode_reserve_blocks=0)
WAIT = SchedulerConfig(decode_reserve_blocks=0, swap_in=SwapIn.WAIT)
CHUNKS_OF_FIVE = SchedulerConfig(decode_reserve_blocks=0, token_budget=5, max_running=4)


def loading(scheduler: SchedulerConfig = WAIT, *, num_output_tokens: int = 1) -> Engine:
    """Return an engine whose request 2 (tokens 1..9) has hit two blocks of request 0 on the CPU.

    They are on their way into two of its three blocks, which are all the GPU has. Request 3
    needs two blocks, and comes at 210.
    """
    stage = engine(
        ask(0, range(1, 9)),
        ask(1, range(21, 33), at=100),
        ask(2, range(1, 10), at=200, num_output_tokens=num_output_tokens),
        ask(3, range(41, 49), at=210),
        gpu=3,
        cpu=2,
        scheduler=scheduler,
    )
    stage.step(0)
    stage.answer(stage.forward)
    for _ in range(2):
        stage.step(100)
        if any(not isinstance(op, Forward) for op in stage.open.values()):
            stage.answer(stage.transfer, at=100)
    stage.step(100)
    stage.answer(stage.forward, at=100)
    stage.step(200)
    assert stage.transfer.target.tier == 0
    return stage


def is_all_given_back(stage: Engine) -> bool:
    """Whether every GPU block is free or may be evicted, and no op is open."""
    manager = stage.manager
    num_blocks = manager.num_free_blocks() + manager.num_evictable_blocks
    return num_blocks == manager.config.tier_blocks[0] and not manager.has_open_ops


# D1: a copy reads a block that is not written yet


def test_a_block_that_is_being_computed_is_not_written_back() -> None:
    stage = engine(ask(0, range(8)), ask(1, range(20, 28), at=8), gpu=2, cpu=2)
    stage.step(0)
    # 1 wants the room of 0 while that computes: nothing can go yet.
    assert stage.step(8) == []
    stage.answer(stage.forward, at=18)
    (transfer,) = stage.step(18)
    assert transfer == stage.transfer


def test_no_copy_begins_before_its_blocks_are_computed_and_no_step_before_its_copies() -> None:
    requests = [ask(i, range(1, 9) if i % 2 else range(21, 29), at=3 * i) for i in range(9)]
    stage = engine(*requests, gpu=2, cpu=8).play()
    done = {each.op_id: each for each in stage.answers if isinstance(each, Completion)}
    forwards = [done[forward.op_id] for forward in stage.forwards]
    assert stage.transfers
    for transfer in stage.transfers:
        began_at = done[transfer.op_id].started_at
        # Every block in the tiers was written by a Forward that had ended by then, or by a copy.
        assert not any(f.started_at < began_at < f.finished_at for f in forwards) or (
            transfer.source.tier == 1
        )
    for forward in stage.forwards:
        for op_id in forward.after:
            assert done[forward.op_id].finished_at > done[op_id].finished_at


# D6: pins and quotas are not returned on every way out


def finish(stage: Engine) -> None:
    stage.finish_all(200)


def give_up_before_admission(stage: Engine) -> None:
    stage.step(210)
    stage.scheduler.cancel(3, 211)
    stage.finish_all(212)


def give_up_while_loading(stage: Engine) -> None:
    stage.scheduler.cancel(2, 205)
    stage.finish_all(206)


def give_up_while_computed(stage: Engine) -> None:
    stage.answer(stage.transfer, at=205)
    stage.step(205)
    stage.scheduler.cancel(2, 206)
    stage.finish_all(207)


def lose_the_copy(stage: Engine) -> None:
    stage.answer(stage.transfer, Outcome.FAILED, at=205)
    stage.finish_all(206)


def lose_the_forward(stage: Engine) -> None:
    stage.answer(stage.transfer, at=205)
    stage.step(205)
    stage.answer(stage.forward, Outcome.FAILED, at=206)
    stage.finish_all(207)


def miss_the_deadline_of_the_copy(stage: Engine) -> None:
    load = stage.transfer
    stage.answer(load, Outcome.TIMED_OUT, at=205)
    stage.step(206)
    stage.rest(load, at=300)
    stage.finish_all(301)


def miss_the_deadline_of_the_forward(stage: Engine) -> None:
    stage.answer(stage.transfer, at=205)
    stage.step(205)
    forward = stage.forward
    stage.answer(forward, Outcome.TIMED_OUT, at=206)
    stage.step(207)
    stage.rest(forward, at=300)
    stage.finish_all(301)


@pytest.mark.parametrize(
    "leave",
    [
        finish,
        give_up_before_admission,
        give_up_while_loading,
        give_up_while_computed,
        lose_the_copy,
        lose_the_forward,
        miss_the_deadline_of_the_copy,
        miss_the_deadline_of_the_forward,
    ],
)
@pytest.mark.parametrize("num_output_tokens", [1, 3])
def test_every_way_out_gives_back_all_that_was_held(
    leave: Callable[[Engine], None], num_output_tokens: int
) -> None:
    stage = loading(num_output_tokens=num_output_tokens)
    leave(stage)
    assert stage.records.keys() == {0, 1, 2, 3}
    assert is_all_given_back(stage)
    assert not stage.scheduler.has_work()


def test_a_refused_request_holds_nothing() -> None:
    stage = engine(ask(0, range(99)), gpu=3).play()
    assert stage.manager.num_free_blocks() == 3


def test_a_request_that_failed_too_often_holds_nothing() -> None:
    stage = engine(ask(0, range(9)), gpu=3, scheduler=SchedulerConfig(max_attempts=1))
    stage.step(0)
    stage.answer(stage.forward, Outcome.FAILED)
    assert stage.statuses == {0: "failed"}
    assert is_all_given_back(stage)


# E1: a request comes back while an op of its earlier attempt is open


def test_a_request_comes_back_while_its_earlier_copy_is_under_way() -> None:
    stage = loading(OVERLAP)
    load = stage.transfer
    stage.answer(stage.forward, Outcome.FAILED, at=205)
    stage.step(205)
    # The second attempt hits what the first one's copy will bring, and waits for it.
    assert stage.forward.prefill[0].attempt == 1
    assert stage.forward.after == (load.op_id,)
    stage.answer(load, at=220)
    stage.answer(stage.forward, at=231)
    assert stage.statuses[2] == "finished"
    stage.finish_all(232)
    assert is_all_given_back(stage)


# E2: a request ends during its load, and the end of the load is not noticed


def test_the_targets_of_a_load_are_held_until_it_has_ended() -> None:
    stage = loading()
    stage.scheduler.cancel(2, 205)
    assert stage.manager.num_free_blocks() == 1
    assert stage.step(210) == []  # 3 needs two blocks
    stage.answer(stage.transfer, at=220)
    stage.finish_all(220)
    assert stage.statuses == {0: "finished", 1: "finished", 2: "cancelled", 3: "finished"}
    assert is_all_given_back(stage)


def test_a_load_may_end_before_or_after_its_request_in_one_instant() -> None:
    for ends_first in (True, False):
        stage = loading()
        if ends_first:
            stage.answer(stage.transfer, at=205)
        stage.scheduler.cancel(2, 205)
        if not ends_first:
            stage.answer(stage.transfer, at=205)
        assert stage.manager.num_free_blocks() == 1
        assert stage.manager.num_evictable_blocks == 2
        stage.finish_all(210)
        assert stage.statuses[3] == "finished"


# E4: a resumed request computes its prompt again, but not the tokens it has made


def preempted() -> Engine:
    """Request 1 has a prompt of 6 tokens and made 3 more when it had to give way; CPU 4."""
    return engine(
        ask(0, range(6), num_output_tokens=5),
        ask(1, range(20, 26), num_output_tokens=5),
        gpu=4,
        cpu=4,
    ).play()


def test_a_resumed_request_covers_the_tokens_it_had_made() -> None:
    stage = preempted()
    # 9 tokens: 8 in two full blocks, which are found, and one that is computed.
    assert stage.slices()[-1] == (1, 8, 1)
    assert stage.records[1].num_rematched_blocks == 2
    # That makes token 4, so it decodes one more: 10 tokens attended to.
    last = stage.forwards[-1]
    assert [(m.request_id, m.attempt, m.num_tokens) for m in last.joined] == [(1, 1, 9)]
    assert (last.num_steps, last.context_tokens) == (1, 10)
    assert stage.records[1].num_made == 5


def test_nothing_of_a_preempted_request_is_stored_before_it_resumes() -> None:
    stage = preempted()
    is_out, stored = False, []
    for event in stage.events:
        if isinstance(event, AttemptEnded) and event.reason is EndReason.PREEMPTED:
            is_out = True
        elif isinstance(event, RequestAdmitted) and event.request_id == 1:
            is_out = False
        elif isinstance(event, BlocksStored) and is_out and event.tier == 0:
            stored += [key for key in event.keys if key in {("output", 1, 1), tuple(range(20, 24))}]
    assert stored == []


# E5: a request ends after a chunk, and leaves a corrupt prefix


@pytest.mark.parametrize("is_shared", [True, False])
def test_the_blocks_of_a_prompt_given_up_half_way_are_good_or_gone(is_shared: bool) -> None:
    requests = [ask(0, range(1, 13)), ask(2, range(61, 69), at=40)]
    if is_shared:
        requests.insert(1, ask(1, [1, 2, 3, 4, 50], num_output_tokens=4, at=30))
    stage = engine(*requests, gpu=4, scheduler=CHUNKS_OF_FIVE)
    stage.step(0)
    stage.answer(stage.forward, at=15)  # tokens 0 to 4: block 0 is full
    stage.step(15)
    stage.scheduler.cancel(0, 16)
    stage.answer(stage.forward, at=30)  # tokens 5 to 9: block 1 is full
    assert stage.statuses == {0: "cancelled"}
    key = (1, 2, 3, 4)
    (stored,) = [e for e in stage.events if isinstance(e, BlocksStored) and key in e.keys]
    block_id = stored.block_ids[stored.keys.index(key)]
    stage.step(30)
    if is_shared:
        assert stage.forward.prefill[0].block_ids[0] == block_id
        assert stage.slices()[-1] == (1, 4, 1)
        stage.answer(stage.forward, at=41)
        stage.step(41)
        # 2 gets the other two blocks: one free, one of the prompt that was given up.
        assert [piece.request_id for piece in stage.forward.prefill] == [2]
        assert block_id not in stage.forward.prefill[0].block_ids
        assert stage.manager.match([key]) == (0,)
    stage.finish_all(42)
    assert stage.statuses[2] == "finished"
    assert is_all_given_back(stage)
