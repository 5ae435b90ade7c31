"""Requests that do not come to their end in the usual way, in short stories.

See `stage` for what things cost: a step of n tokens takes 10 + n ns, a copy of a block 10 ns.
"""

from __future__ import annotations

import pytest

from kvsim.config import SchedulerConfig
from kvsim.core.ops import Cancel, Outcome
from kvsim.events import AttemptEnded, EndReason, RequestAdmitted, RequestEnded
from tests.unit.core.stage import WAIT, ask, engine, loading_beside_two, served

# -- clients that give up


def test_a_waiting_request_is_cancelled_at_once() -> None:
    stage = engine(ask(0, range(8)), ask(1, range(20, 28), cancelled_at=7), gpu=2).play()
    assert stage.statuses == {1: "cancelled", 0: "finished"}
    assert stage.records[1].ended_at == 7
    assert stage.records[1].admitted_at is None
    ends = [event for event in stage.events if isinstance(event, RequestEnded)]
    assert ends[0] == RequestEnded(at=7, request_id=1, status="cancelled")


def test_when_the_head_of_the_queue_gives_up_the_next_is_tried_at_once() -> None:
    stage = engine(
        ask(0, range(8), num_output_tokens=30),
        ask(1, range(20, 40), at=20, cancelled_at=60),
        ask(2, range(50, 54), at=21),
        gpu=11,
    ).play()
    # 0 has 10 blocks in the end, 8 + 29 tokens, so that 1 (5) does not fit beside it, but 2 does.
    record = stage.records[2]
    assert record.admitted_at is not None
    assert 60 <= record.admitted_at <= 60 + 11
    assert stage.statuses == {1: "cancelled", 2: "finished", 0: "finished"}


def test_a_loading_request_gives_its_blocks_back_when_its_copy_has_ended() -> None:
    stage = served(WAIT)
    stage.scheduler.cancel(2, 205)
    assert stage.statuses[2] == "cancelled"
    # Its private block is free, the target of the copy is not.
    assert stage.manager.num_free_blocks() == 1
    assert stage.manager.num_evictable_blocks == 0
    stage.answer(stage.transfer, at=210)
    # The copy is worth keeping.
    assert stage.manager.num_free_blocks() == 1
    assert stage.manager.num_evictable_blocks == 1
    assert not stage.scheduler.has_work()


def test_a_request_that_is_being_computed_is_cancelled_when_the_forward_ends() -> None:
    stage = engine(ask(0, range(8), num_output_tokens=9), ask(1, range(20, 24), at=2), gpu=4)
    stage.step(0)
    stage.scheduler.cancel(0, 1)
    stage.step(2)
    assert stage.statuses == {}
    assert stage.manager.num_free_blocks() == 2
    stage.answer(stage.forward, at=18)
    assert stage.statuses == {0: "cancelled"}
    assert stage.records[0].ended_at == 18
    # Its prompt is computed, and stays cached.
    assert stage.manager.match([tuple(range(4)), tuple(range(8))]) == (0, 0)
    assert stage.manager.num_evictable_blocks == 2


def test_a_decoding_request_is_cancelled_at_the_next_step() -> None:
    stage = engine(ask(0, range(8), num_output_tokens=100, cancelled_at=43), gpu=99).play()
    # As with an arrival: three steps of 11 from 18 on.
    assert stage.statuses == {0: "cancelled"}
    assert stage.records[0].ended_at == 51
    assert stage.records[0].num_made == 4


def test_a_request_that_ends_in_the_same_step_has_finished() -> None:
    stage = engine(ask(0, range(8)), gpu=9)
    stage.step(0)
    stage.scheduler.cancel(0, 1)
    stage.answer(stage.forward, at=18)
    assert stage.statuses == {0: "finished"}


def test_a_failed_forward_ends_a_cancelled_member_for_good() -> None:
    stage = engine(ask(0, range(8), num_output_tokens=9), gpu=9)
    stage.step(0)
    stage.scheduler.cancel(0, 1)
    stage.answer(stage.forward, Outcome.FAILED, at=18)
    assert stage.statuses == {0: "cancelled"}


def test_cancelling_is_idempotent_and_ignores_strangers() -> None:
    stage = engine(ask(0, range(8)), ask(1, range(8), at=50), gpu=9)
    stage.step(0)
    for _ in range(2):
        stage.scheduler.cancel(0, 1)
    stage.scheduler.cancel(77, 1)
    stage.answer(stage.forward, at=18)
    stage.scheduler.cancel(0, 20)
    stage.finish_all(50)
    assert stage.statuses == {0: "finished", 1: "finished"}


# -- failures


def test_the_members_of_a_failed_forward_try_again_in_their_order() -> None:
    stage = engine(
        ask(0, range(8), num_output_tokens=2),
        ask(1, range(20, 28), num_output_tokens=2),
        ask(2, range(40, 48), at=1),
        gpu=9,
    )
    stage.step(0)
    stage.answer(stage.forward, Outcome.FAILED, at=28)
    stage.step(28)
    # Nothing is left of the first try: what it wrote is not to be trusted.
    assert stage.slices()[2:] == [(0, 0, 8), (1, 0, 8), (2, 0, 8)]
    assert [piece.attempt for piece in stage.forward.prefill] == [1, 1, 0]
    stage.finish_all(50)
    assert [record.num_failures for record in stage.records.values()] == [1, 1, 0]


def test_a_preempted_request_does_not_overtake_an_older_one_whose_copy_failed() -> None:
    stage = loading_beside_two(num_output_tokens=9)
    load = stage.transfer
    stage.answer(stage.forward, at=210)
    stage.answer(load, Outcome.TIMED_OUT, at=210)
    # 2 waits again; of its two blocks one is free and one not yet. 3 takes that, 4 gives way.
    stage.step(211)
    assert stage.scheduler.num_preemptions == 1
    stage.rest(load, at=212)
    stage.finish_all(213)
    admitted = [e.request_id for e in stage.events if isinstance(e, RequestAdmitted)]
    assert admitted[5:7] == [2, 4]
    assert set(stage.statuses.values()) == {"finished"}


def test_a_request_that_fails_too_often_ends_as_failed() -> None:
    config = SchedulerConfig(max_attempts=3)
    stage = engine(ask(0, range(8)), ask(1, range(20, 28), at=99), gpu=9, scheduler=config)
    for at in range(3):
        stage.step(at)
        stage.answer(stage.forward, Outcome.FAILED, at=at)
    assert stage.statuses == {0: "failed"}
    assert stage.records[0].num_failures == 3
    assert stage.manager.num_free_blocks() == 9
    stage.finish_all(99)
    assert stage.statuses[1] == "finished"


def test_a_failed_run_is_computed_again_from_what_was_kept() -> None:
    stage = engine(ask(0, range(6), num_output_tokens=9), gpu=9)
    stage.step(0)
    stage.answer(stage.forward, at=16)
    stage.step(16)
    stage.answer(stage.forward, Outcome.FAILED, at=20)
    stage.step(20)
    # Block 0 is kept. The prompt's tail and the one token made are computed again.
    assert stage.slices() == [(0, 0, 6), (0, 4, 3)]
    stage.finish_all(21)
    assert stage.records[0].num_made == 9
    assert stage.records[0].first_token_at == 16


def test_full_blocks_of_output_outlive_a_failed_run() -> None:
    stage = engine(
        ask(0, range(4), num_output_tokens=14), ask(1, range(20, 24), num_output_tokens=5), gpu=9
    )
    for now in (0, 1):  # the prompts, and four steps, with which 1 is through
        stage.step(now)
        stage.answer(stage.forward, at=now)
    stage.step(2)
    stage.answer(stage.forward, Outcome.FAILED, at=2)
    stage.step(3)
    # 0 has made five tokens: with its prompt two blocks have their KV, and one token has not.
    assert stage.slices()[-1] == (0, 8, 1)
    stage.finish_all(4)
    assert stage.records[0].num_made == 14


def test_a_run_that_was_cancelled_before_its_first_step_has_lost_nothing() -> None:
    stage = engine(ask(0, range(6), num_output_tokens=9), ask(1, range(20, 24), at=17), gpu=9)
    stage.step(0)
    stage.answer(stage.forward, at=16)
    stage.step(16)
    assert stage.step(17) == [Cancel(op_id=stage.forward.op_id)]
    stage.answer(stage.forward, Outcome.CANCELLED, at=17)
    stage.step(17)
    assert stage.slices() == [(0, 0, 6), (1, 0, 4)]
    stage.finish_all(18)
    assert [record.num_failures for record in stage.records.values()] == [0, 0]


def test_a_run_is_cancelled_once() -> None:
    stage = engine(
        ask(0, range(6), num_output_tokens=9),
        ask(1, range(20, 24), at=17),
        ask(2, range(30, 34), at=18),
        gpu=9,
    )
    stage.step(0)
    stage.answer(stage.forward, at=16)
    stage.step(16)
    assert len(stage.step(17)) == 1
    assert stage.step(18) == []


@pytest.mark.parametrize("num_output_tokens", [1, 9])
def test_a_timed_out_forward_keeps_the_instance_until_it_has_settled(
    num_output_tokens: int,
) -> None:
    stage = engine(
        ask(0, range(6), num_output_tokens=num_output_tokens),
        ask(1, range(20, 24), at=5),
        gpu=9,
    )
    stage.step(0)
    if num_output_tokens > 1:
        stage.answer(stage.forward, at=4)
        stage.step(4)
    forward = stage.forward
    stage.answer(forward, Outcome.TIMED_OUT, at=4)
    assert stage.step(5) == []
    assert stage.scheduler.has_work()
    # It may still write what the request had private, and read the rest.
    assert stage.manager.num_free_blocks() + stage.manager.num_evictable_blocks < 9
    stage.rest(forward, at=30)
    assert stage.manager.num_free_blocks() + stage.manager.num_evictable_blocks == 9
    stage.step(30)
    assert {piece.request_id for piece in stage.forward.prefill} == {0, 1}
    stage.finish_all(31)
    assert stage.statuses == {0: "finished", 1: "finished"}


def test_a_block_computed_again_while_a_timed_out_copy_reads_it_below_can_be_evicted() -> None:
    stage = engine(
        ask(0, range(1, 9)),
        ask(1, range(21, 33), at=100),
        ask(2, range(1, 6), at=200),
        ask(3, range(40, 48), at=300),
        ask(4, range(1, 6), at=400),
        gpu=3,
        cpu=9,
        scheduler=WAIT,
    )
    for now in (0, 100, 100, 200, 200):
        stage.step(now)
        if not any(op.target.tier == 0 for op in stage.transfers):
            for op in list(stage.open.values()):
                stage.answer(op, at=now)
    load = stage.transfer
    stage.answer(load, Outcome.TIMED_OUT, at=220)
    for _ in range(2):  # the block of 1 that is left goes down, and 2 is computed
        stage.step(220)
        for op in list(stage.open.values()):
            if op is not load:
                stage.answer(op, at=220)
    assert stage.statuses[2] == "finished"
    # Block 0 of 2 is on both tiers now. 3 needs two blocks, one is free, and one not yet.
    stage.step(300)
    assert [piece.request_id for piece in stage.forward.prefill] == [3]
    stage.answer(stage.forward, at=318)
    stage.rest(load, at=320)
    stage.finish_all(400)
    assert stage.records[4].num_cpu_hit_blocks == 1


def test_deadlines_are_those_of_the_configuration() -> None:
    config = SchedulerConfig(decode_reserve_blocks=0, forward_timeout_ns=70, transfer_timeout_ns=90)
    stage = served(config)
    assert stage.forward.deadline_at == 200 + 70
    assert stage.transfer.deadline_at == 200 + 90


def test_an_attempt_that_ended_says_why() -> None:
    stage = engine(
        ask(0, range(6), num_output_tokens=5), ask(1, range(20, 26), num_output_tokens=5), gpu=4
    ).play()
    ends = [(e.request_id, e.reason) for e in stage.events if isinstance(e, AttemptEnded)]
    assert ends == [
        (1, EndReason.PREEMPTED),
        (0, EndReason.FINISHED),
        (1, EndReason.FINISHED),
    ]
