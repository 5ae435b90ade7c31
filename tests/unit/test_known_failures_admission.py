"""Faults reported of other systems: admission, deadlock, reserves, progress (H1 to H4).

A block is four tokens; a step of n tokens takes 10 + n ns, a copy of a block 10 ns.
"""

from __future__ import annotations

from kvsim.config import SchedulerConfig, SwapIn
from kvsim.core.ops import Forward
from tests.unit.core.stage import Engine, ask, engine

RESERVE_ONE = SchedulerConfig(decode_reserve_blocks=1)


# H1: a request larger than the pool blocks the queue for ever


def test_a_request_larger_than_the_pool_is_refused_and_those_behind_it_run() -> None:
    stage = engine(
        ask(0, range(1, 17)),  # 4 blocks of 3
        ask(1, range(31, 35)),
        ask(2, range(41, 50), num_output_tokens=8),  # 9 + 7 tokens: 4 blocks
        gpu=3,
    ).play()
    assert stage.statuses == {0: "refused", 1: "finished", 2: "refused"}
    assert stage.scheduler.num_preemptions == 0


# H2: two loads are admitted, and neither can finish


def two_loads() -> Engine:
    """Two prompts of six blocks, four of each on the CPU; both are asked for at 3000."""
    first, second = range(1, 25), range(101, 125)
    return engine(
        ask(0, first[:16]),
        ask(1, second[:16], at=1000),
        ask(2, range(201, 233), at=2000),  # takes the whole GPU
        ask(3, first, at=3000),
        ask(4, second, at=3000),
        gpu=8,
        cpu=16,
        swap_batch=4,
    )


def test_of_two_loads_that_do_not_fit_together_one_waits() -> None:
    stage = two_loads().play()
    first, second = stage.records[3], stage.records[4]
    assert (first.num_gpu_hit_blocks, first.num_cpu_hit_blocks) == (0, 4)
    assert (second.num_gpu_hit_blocks, second.num_cpu_hit_blocks) == (0, 4)
    # 8 - 6 < 6: the second holds nothing before the first has ended.
    assert first.ended_at is not None
    assert second.admitted_at is not None
    assert second.admitted_at >= first.ended_at
    assert set(stage.statuses.values()) == {"finished"}


def test_a_request_that_has_loaded_runs_though_the_head_of_the_queue_is_blocked() -> None:
    stage = engine(
        ask(0, range(1, 9)),
        ask(1, range(101, 117), at=1000),
        ask(2, range(1, 10), at=2000),  # loads; three blocks
        ask(3, range(201, 217), at=2001),  # needs all four
        gpu=4,
        cpu=16,
        swap_batch=4,
        scheduler=SchedulerConfig(decode_reserve_blocks=0, swap_in=SwapIn.WAIT),
    ).play()
    loaded, head = stage.records[2], stage.records[3]
    assert loaded.num_cpu_hit_blocks == 2
    assert loaded.ended_at is not None
    assert head.admitted_at is not None
    assert loaded.ended_at <= head.admitted_at
    assert set(stage.statuses.values()) == {"finished"}


# H3: a prompt is admitted into the room that decoders need next, and all preempt each other


def test_a_reserve_for_decoding_keeps_a_prompt_out() -> None:
    stage = engine(
        ask(0, range(1, 9), num_output_tokens=5),
        ask(1, range(11, 19), num_output_tokens=5),
        ask(2, range(21, 29), at=1),
        gpu=6,
        scheduler=RESERVE_ONE,
    ).play()
    # 8 + 4 tokens are three blocks each: 6 - 3 - 3 < 2.
    assert stage.scheduler.num_preemptions == 0
    assert stage.records[2].admitted_at == stage.records[0].ended_at == stage.records[1].ended_at


def test_without_a_reserve_requests_do_not_preempt_each_other_for_ever() -> None:
    requests = [ask(i, range(20 * i, 20 * i + 8), num_output_tokens=9) for i in range(3)]
    stage = engine(*requests, gpu=6).play()
    # Each needs 8 + 8 tokens, four blocks, and has two: the last two give way, once or twice.
    assert set(stage.statuses.values()) == {"finished"}
    assert stage.records[0].num_preemptions == 0
    assert 1 <= stage.scheduler.num_preemptions <= 4


def test_a_request_with_room_left_asks_for_no_block() -> None:
    # 5 tokens in two blocks leave three slots; two more tokens get their KV.
    stage = engine(ask(0, range(5), num_output_tokens=3), gpu=9).play()
    tables = [member.block_ids for forward in stage.forwards for member in forward.joined]
    assert [len(table) for table in tables] == [2]
    assert not any(forward.grown for forward in stage.forwards)


def test_a_reserve_is_given_back_on_every_way_out() -> None:
    for outcome in ("finished", "cancelled"):
        stage = engine(
            ask(0, range(8), num_output_tokens=50),
            gpu=99,
            scheduler=SchedulerConfig(decode_reserve_blocks=5),
        )
        stage.step(0)
        assert stage.manager.num_free_blocks() == 99 - 2 - 5
        if outcome == "cancelled":
            stage.scheduler.cancel(0, 1)
        stage.finish_all()
        assert stage.statuses == {0: outcome}
        assert stage.manager.num_free_blocks() + stage.manager.num_evictable_blocks == 99


def test_a_reserve_is_not_larger_than_what_the_request_can_need() -> None:
    stage = engine(
        ask(0, range(8), num_output_tokens=2),
        gpu=3,
        scheduler=SchedulerConfig(decode_reserve_blocks=50),
    ).play()
    assert stage.statuses == {0: "finished"}


# H4: nothing moves unless somebody new arrives


def test_a_request_is_admitted_when_the_copy_that_holds_its_room_has_ended() -> None:
    # The blocks of 0 go down from 100 to 120, for 1 who gives up at 101. 2 comes at 110.
    stage = engine(
        ask(0, range(8)),
        ask(1, range(20, 28), at=100, cancelled_at=101),
        ask(2, range(40, 48), at=110),
        gpu=2,
        cpu=2,
    ).play()
    assert stage.records[2].admitted_at == 120
    assert stage.statuses == {0: "finished", 1: "cancelled", 2: "finished"}


def test_an_idle_run_takes_the_last_completion() -> None:
    stage = engine(
        ask(0, range(8)), ask(1, range(20, 28), at=100, cancelled_at=101), gpu=2, cpu=2
    ).play()
    assert [op.finished_at for op in stage.answers] == [18, 120]
    assert stage.manager.num_free_blocks() == 2
    assert stage.manager.num_free_blocks(1) == 0


def test_waiting_requests_go_on_though_none_arrives_any_more() -> None:
    requests = [ask(i, range(20 * i, 20 * i + 8), num_output_tokens=5) for i in range(9)]
    stage = engine(*requests, gpu=5, cpu=4).play()
    assert set(stage.statuses.values()) == {"finished"}
    # Never two turns in one instant without an op between them.
    for turn in stage.turns:
        assert turn.answers or any(isinstance(op, Forward) for op in turn.commands)
