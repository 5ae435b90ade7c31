"""The scheduler in short stories.

See `stage` for what things cost: a step of n tokens takes 10 + n ns, a copy of a block 10 ns.
"""

from __future__ import annotations

from kvsim.config import SchedulerConfig, SwapIn
from kvsim.core.ops import Cancel, Completion
from kvsim.events import AttemptEnded, RequestRefused
from tests.unit.core.stage import OVERLAP, WAIT, ask, engine, loading_beside_two, served

# -- batches


def test_a_request_makes_its_first_token_after_its_prompt_and_the_rest_in_one_run() -> None:
    stage = engine(ask(0, range(8), num_output_tokens=3), gpu=4).play()
    record = stage.records[0]
    # The prompt: 10 + 8 = 18. Then two steps of 10 + 1.
    assert (record.admitted_at, record.first_token_at, record.ended_at) == (0, 18, 40)
    assert stage.statuses == {0: "finished"}
    assert [forward.num_steps for forward in stage.forwards] == [1, 2]
    assert stage.scheduler.num_forwards == 2


def test_a_request_joins_the_batch_of_one_that_decodes() -> None:
    stage = engine(
        ask(0, range(8), num_output_tokens=3),
        ask(1, range(20, 24), num_output_tokens=2, at=5),
        gpu=8,
    ).play()
    # 0: prompt until 18. Then one step for both: 10 + 4 + 1 = 15, until 33: 1 has its first token.
    # Each needs one more: 10 + 2 = 12.
    assert [record.first_token_at for record in stage.records.values()] == [18, 33]
    assert [record.ended_at for record in stage.records.values()] == [45, 45]
    assert [(f.num_decodes, f.context_tokens) for f in stage.forwards] == [(0, 0), (1, 9), (2, 15)]


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks() -> None:
    config = SchedulerConfig(token_budget=6, max_running=4)
    stage = engine(ask(0, range(14)), gpu=8, scheduler=config).play()
    assert stage.slices() == [(0, 0, 6), (0, 6, 6), (0, 12, 2)]
    assert stage.records[0].first_token_at == 16 + 16 + 12


def test_decoding_members_take_their_tokens_off_the_budget_first() -> None:
    config = SchedulerConfig(token_budget=6, max_running=4)
    stage = engine(
        ask(0, range(6), num_output_tokens=9), ask(1, range(20, 30)), gpu=8, scheduler=config
    ).play()
    # 0 takes the whole first budget; from then on its next token leaves 5.
    assert stage.slices() == [(0, 0, 6), (1, 0, 5), (1, 5, 5)]


def test_no_more_run_at_a_time_than_allowed() -> None:
    config = SchedulerConfig(max_running=2)
    requests = [ask(i, range(9 * i, 9 * i + 5), num_output_tokens=2) for i in range(5)]
    stage = engine(*requests, gpu=99, scheduler=config).play()
    # Two at a time, each pair in two steps: 10 + 10, then 10 + 2. The last: 10 + 5, then 10 + 1.
    assert [record.ended_at for record in stage.records.values()] == [32, 32, 64, 64, 90]


def test_a_member_gets_its_blocks_when_it_needs_them() -> None:
    stage = engine(ask(0, range(4), num_output_tokens=10), gpu=9).play()
    # 4 + 9 tokens have KV: 4 blocks, of which the prompt takes 1.
    assert [len(member.block_ids) for f in stage.forwards for member in f.joined] == [4]
    assert stage.records[0].ended_at == 14 + 9 * 11


def test_a_run_is_cut_where_blocks_are_missing() -> None:
    # 1 holds 2 blocks until it ends, so 0 can have 1 more at first: 4 more tokens.
    stage = engine(
        ask(0, range(4), num_output_tokens=8),
        ask(1, range(20, 28), num_output_tokens=1, at=1),
        gpu=4,
        scheduler=SchedulerConfig(decode_reserve_blocks=0, max_running=1, token_budget=8),
    ).play()
    assert stage.statuses == {0: "finished", 1: "finished"}
    assert [f.num_steps for f in stage.forwards] == [1, 7, 1]


def test_the_number_of_ops_does_not_depend_on_the_number_of_output_tokens() -> None:
    few = engine(ask(0, range(8), num_output_tokens=10), gpu=999).play()
    many = engine(ask(0, range(8), num_output_tokens=3000), gpu=999).play()
    assert len(few.answers) == len(many.answers) == 2
    assert len(few.turns) == len(many.turns)


def test_an_arrival_ends_a_run_at_its_next_step() -> None:
    stage = engine(
        ask(0, range(8), num_output_tokens=11), ask(1, range(20, 24), at=43), gpu=9
    ).play()
    # The run of 10 steps begins at 18; 43 is in its third step, which ends at 18 + 33 = 51.
    run = stage.forwards[1]
    assert run.num_steps == 10
    assert Cancel(op_id=run.op_id) in stage.commands
    (answer,) = [each for each in stage.answers if each.op_id == run.op_id]
    assert isinstance(answer, Completion)
    assert (answer.finished_at, answer.steps_done) == (51, 3)
    # Then 4 tokens of 1 and one of 0, and the other six steps of 0.
    assert stage.records[1].first_token_at == 51 + 15
    assert stage.records[0].ended_at == 66 + 6 * 11


def test_an_arrival_does_not_end_a_run_when_no_more_may_run() -> None:
    config = SchedulerConfig(max_running=1)
    stage = engine(
        ask(0, range(8), num_output_tokens=11),
        ask(1, range(20, 24), at=43),
        gpu=9,
        scheduler=config,
    ).play()
    assert not any(isinstance(command, Cancel) for command in stage.commands)
    assert stage.records[1].admitted_at == stage.records[0].ended_at


def test_one_that_cannot_be_admitted_does_not_cut_runs_again_and_again() -> None:
    stage = engine(
        ask(0, range(8), num_output_tokens=5),
        ask(1, range(20, 28), at=20),
        ask(2, range(40, 48), at=21),
        gpu=3,
    ).play()
    assert sum(isinstance(command, Cancel) for command in stage.commands) == 1
    assert stage.records[1].admitted_at == stage.records[0].ended_at


# -- copies up


def test_a_request_computes_behind_the_layers_of_its_copies() -> None:
    times = {}
    for config in (OVERLAP, WAIT):
        stage = engine(
            ask(0, range(1, 9)),
            ask(1, range(21, 29), at=100),
            ask(2, range(1, 6), at=200),
            gpu=2,
            cpu=8,
            scheduler=config,
        ).play()
        record = stage.records[2]
        assert (record.num_gpu_hit_blocks, record.num_cpu_hit_blocks) == (0, 1)
        times[config.swap_in] = record.first_token_at
    # Two blocks go down until 220; one comes up until 230, a layer every 2 ns; the step takes 11.
    # Overlap: the first layer waits until 222, and the rest follows: 222 + 11.
    assert times == {SwapIn.OVERLAP: 233, SwapIn.WAIT: 241}


def test_an_overlapping_request_names_its_copies_and_a_waiting_one_does_not() -> None:
    overlapping = served(OVERLAP)
    assert overlapping.forward.after == (overlapping.transfer.op_id,)
    waiting = served(WAIT)
    assert len(waiting.open) == 1
    waiting.answer(waiting.transfer, at=210)
    waiting.step(210)
    assert waiting.forward.after == ()


def test_others_run_while_a_request_waits_for_its_copies() -> None:
    stage = loading_beside_two(num_output_tokens=1)
    load = stage.transfer
    stage.answer(stage.forward, at=210)
    assert stage.statuses.keys() == {0, 1, 3, 4}
    stage.answer(load, at=220)
    stage.step(220)
    assert stage.slices()[-1] == (2, 4, 1)


# -- blocks for decoding


def test_the_last_admitted_gives_way_and_goes_on_where_it_was() -> None:
    stage = engine(
        ask(0, range(6), num_output_tokens=5), ask(1, range(20, 26), num_output_tokens=5), gpu=4
    ).play()
    # Two blocks each. After 3 tokens each holds the KV of 8 and needs a third block: 1 gives way.
    # 0 takes one of its blocks, the deeper one; so 1 computes again from token 4 to 8.
    assert stage.slices() == [(0, 0, 6), (1, 0, 6), (1, 4, 5)]
    assert [record.num_preemptions for record in stage.records.values()] == [0, 1]
    assert stage.statuses == {0: "finished", 1: "finished"}
    assert stage.records[1].first_token_at == 10 + 12


def test_what_a_preempted_request_finds_again_is_not_a_hit() -> None:
    stage = engine(
        ask(0, range(6), num_output_tokens=5), ask(1, range(20, 26), num_output_tokens=5), gpu=4
    ).play()
    record = stage.records[1]
    assert (record.num_gpu_hit_blocks, record.num_cpu_hit_blocks) == (0, 0)
    assert record.num_rematched_blocks == 1
    assert record.num_attempts == 2


def test_a_preempted_request_finds_its_output_on_the_cpu() -> None:
    stage = engine(
        ask(0, range(6), num_output_tokens=5),
        ask(1, range(20, 26), num_output_tokens=5),
        gpu=4,
        cpu=4,
    ).play()
    # As above, but the block that 0 takes is written back: 8 of its 9 tokens are found.
    assert stage.slices() == [(0, 0, 6), (1, 0, 6), (1, 8, 1)]
    assert stage.records[1].num_rematched_blocks == 2


def test_a_member_that_is_the_last_admitted_gives_way_itself() -> None:
    # 1 is full first, having less room: 4 + 1 tokens of 8, and 0 has 5 of 8 at that time.
    stage = engine(
        ask(0, range(5), num_output_tokens=9), ask(1, range(20, 27), num_output_tokens=5), gpu=4
    ).play()
    assert [record.num_preemptions for record in stage.records.values()] == [0, 1]
    assert stage.statuses == {0: "finished", 1: "finished"}


def test_preempting_goes_on_until_there_is_room() -> None:
    requests = [ask(i, range(10 * i, 10 * i + 4), num_output_tokens=9, at=0) for i in range(4)]
    stage = engine(*requests, gpu=4).play()
    # Each holds one block and needs two more: 3, 2 and 1 give way in turn.
    order = [e.request_id for e in stage.events if isinstance(e, AttemptEnded)]
    assert order[:2] == [3, 2]
    assert set(stage.statuses.values()) == {"finished"}
    assert all(record.num_made == 9 for record in stage.records.values())


def test_blocks_come_in_the_number_that_the_configuration_says() -> None:
    config = SchedulerConfig(decode_reserve_blocks=0, grow_blocks=3)
    stage = engine(
        ask(0, range(4), num_output_tokens=30),
        ask(1, range(40, 44), num_output_tokens=2),
        gpu=20,
        scheduler=config,
    ).play()
    # 4 + 29 tokens: 9 blocks. The first run is one step (1 ends) and takes 3 blocks for 0, 1 for 1.
    assert [len(member.block_ids) for member in stage.forwards[1].joined] == [4, 2]
    assert [len(ids) for f in stage.forwards for _, ids in f.grown] == [5]


def test_output_blocks_are_kept_if_the_configuration_says_so() -> None:
    cached = []
    for keep in (True, False):
        stage = engine(ask(0, range(4), num_output_tokens=10), gpu=9, keep_outputs=keep).play()
        cached.append(stage.manager.num_evictable_blocks)
    # 13 tokens have KV: three full blocks, one of them the prompt's.
    assert cached == [3, 1]


# -- refusals and limits


def test_a_request_that_can_never_fit_is_refused_on_arrival() -> None:
    stage = engine(ask(0, range(9), num_output_tokens=8), ask(1, range(4)), gpu=3).play()
    # 9 + 7 tokens have KV: 4 blocks.
    assert stage.statuses == {0: "refused", 1: "finished"}
    refusals = [event for event in stage.events if isinstance(event, RequestRefused)]
    assert refusals == [RequestRefused(at=0, request_id=0, needed_blocks=4, allowed_blocks=3)]


def test_a_request_that_just_fits_is_served() -> None:
    stage = engine(ask(0, range(9), num_output_tokens=4), gpu=3).play()
    assert stage.statuses == {0: "finished"}


def test_the_longest_table_can_be_limited() -> None:
    config = SchedulerConfig(max_blocks_per_request=2)
    stage = engine(ask(0, range(9)), ask(1, range(8)), gpu=99, scheduler=config).play()
    assert stage.statuses == {0: "refused", 1: "finished"}


def test_a_limit_above_the_tier_does_not_help() -> None:
    config = SchedulerConfig(max_blocks_per_request=99)
    assert engine(ask(0, range(9)), gpu=2, scheduler=config).play().statuses == {0: "refused"}
