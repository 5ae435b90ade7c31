"""Prefill on one instance, decode on another, in short stories by hand; see `split_stage`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsim.analysis.split_records import split_record_of
from kvsim.building import split_scheduler
from kvsim.config import (
    CacheConfig,
    OnSendFailure,
    Role,
    Routing,
    SchedulerConfig,
    SendMode,
    SplitConfig,
)
from kvsim.core.handoff import Handoff, Instance, Phase
from kvsim.core.ops import Gate, OpIds, Outcome
from kvsim.core.split import SplitScheduler
from kvsim.errors import ConfigError, MisuseError
from kvsim.events import RequestEnded, RequestRefused
from kvsim.policies import policy_factory
from kvsim.testing import EventMirror
from tests.unit.core.split_stage import DECODE, MIXED, PREFILL, Cluster
from tests.unit.core.stage import ask

CHUNKS_OF_8 = SchedulerConfig(token_budget=8, max_running=4, decode_reserve_blocks=0)
FAIL = SplitConfig(on_send_failure=OnSendFailure.FAIL)


def one(*, num_output_tokens: int = 3, **kwargs: object) -> Cluster:
    """Return a cluster with one request of 10 tokens, by hand, at its first step."""
    cluster = Cluster([ask(0, range(10), num_output_tokens=num_output_tokens)], **kwargs)  # type: ignore[arg-type]
    cluster.step()
    return cluster


# -- the way of one request


def test_decode_takes_its_blocks_before_prefill_starts() -> None:
    cluster = one()
    # 10 tokens and one more with KV on decode: 3 blocks each.
    assert (cluster.free(0), cluster.free(1)) == (17, 17)
    (send,) = cluster.sends
    forward = cluster.open_forward(0)
    assert send.after == (forward.op_id,)
    assert send.gate is Gate.LAYER
    assert (send.source.instance, send.target.instance) == (0, 1)
    assert len(send.source_ids) == len(send.target_ids) == 3  # the last is not full


def test_prefill_makes_the_first_token_and_decode_the_others() -> None:
    cluster = one()
    cluster.answer(cluster.open_forward(0), at=10)
    cluster.answer(cluster.open_sends()[0], at=15)
    cluster.step(15)
    decode = cluster.open_forward(1)
    assert [member.num_tokens for member in decode.joined] == [10]
    assert decode.num_steps == 2
    cluster.answer(decode, at=17)
    handoff = cluster.ended[0]
    assert cluster.statuses == {0: "finished"}
    assert (handoff.num_made, handoff.first_token_at, handoff.ended_at) == (3, 10, 17)
    assert (handoff.arrived_at, handoff.decode_started_at) == (15, 15)
    assert cluster.room(0) == cluster.room(1) == 20
    assert not cluster.scheduler.has_work()


def test_decode_waits_for_every_send_of_the_attempt() -> None:
    cluster = one(scheduler=CHUNKS_OF_8)
    cluster.answer(cluster.open_forward(0))
    cluster.step()
    cluster.answer(cluster.open_forward(0))
    first, second = cluster.open_sends()
    for send in (second, first):
        cluster.step()
        assert [op for op in cluster.forwards if op.instance == 1] == []
        cluster.answer(send)
    cluster.step()
    assert len(cluster.open_forward(1).joined) == 1


def test_sends_that_end_before_the_prompt_does_wait_for_its_token() -> None:
    cluster = one(split=SplitConfig(send=SendMode.LAYERWISE), scheduler=CHUNKS_OF_8)
    cluster.answer(cluster.open_forward(0))
    cluster.answer(cluster.open_sends()[0])
    cluster.step()
    assert cluster.scheduler.instances[1].num_receiving == 1
    assert [op.instance for op in cluster.forwards] == [0, 0]


def test_a_request_for_one_token_stays_where_its_prompt_is_computed() -> None:
    cluster = one(num_output_tokens=1)
    assert cluster.free(1) == 20
    cluster.finish_all()
    assert cluster.statuses == {0: "finished"}
    assert cluster.sends == []
    assert cluster.ended[0].decode is None


def test_what_decode_has_of_the_whole_prompt_is_not_sent_again() -> None:
    cluster = Cluster(
        [ask(0, range(8), num_output_tokens=9), ask(1, range(8), num_output_tokens=2, at=50)]
    )
    cluster.finish_all()
    assert len(cluster.sends) == 1
    assert cluster.ended[1].num_decode_hit_blocks == 2
    assert cluster.ended[1].exposed_ns == 0
    assert cluster.statuses == {0: "finished", 1: "finished"}


def test_several_requests_of_a_batch_are_sent_each_by_itself() -> None:
    cluster = Cluster([ask(i, range(20 * i, 20 * i + 8), num_output_tokens=2) for i in range(3)])
    cluster.step()
    assert [send.attempts for send in cluster.sends] == [((i, 0),) for i in range(3)]
    assert {send.after for send in cluster.sends} == {(cluster.open_forward(0).op_id,)}


def test_a_request_joins_while_others_decode() -> None:
    cluster = Cluster(
        [ask(0, range(8), num_output_tokens=20), ask(1, range(20, 28), num_output_tokens=2, at=5)]
    )
    cluster.step()
    cluster.answer(cluster.open_forward(0))
    cluster.answer(cluster.open_sends()[0])
    cluster.step()
    cluster.step(5)  # request 1 arrives
    cluster.answer(cluster.open_forward(0), at=6)
    cluster.answer(cluster.open_sends()[0], at=6)
    (cancel,) = cluster.step(6)  # the run of request 0 is to end at its next step
    assert cancel.op_id == cluster.open_forward(1).op_id
    cluster.finish_all(7)
    assert cluster.statuses == {0: "finished", 1: "finished"}


def test_two_requests_with_one_prefix_send_it_once() -> None:
    # Both wait at once. 0 brings blocks 0 and 1; 1 counts on them while they are on their way.
    cluster = Cluster(
        [ask(0, range(8), num_output_tokens=2), ask(1, range(12), num_output_tokens=2, at=1)]
    )
    cluster.step()
    cluster.step(1)
    cluster.answer(cluster.open_forward(0), at=2)
    cluster.step(2)
    first, second = cluster.open_sends()
    assert (len(first.source_ids), len(second.source_ids)) == (2, 1)
    cluster.answer(cluster.open_forward(0), at=3)
    cluster.answer(second, at=4)
    cluster.step(4)
    assert [op for op in cluster.forwards if op.instance == 1] == []  # the prefix is not there
    cluster.answer(first, at=5)
    cluster.step(5)
    assert [m.request_id for m in cluster.open_forward(1).joined] == [0, 1]


def test_the_whole_prompt_at_the_end_is_one_send() -> None:
    cluster = one(split=SplitConfig(send=SendMode.AT_END), scheduler=CHUNKS_OF_8)
    assert cluster.sends == []
    cluster.answer(cluster.open_forward(0))
    cluster.step()
    (send,) = cluster.sends
    assert (len(send.source_ids), send.gate) == (3, Gate.OP)
    assert send.after == (cluster.open_forward(0).op_id,)


def test_a_mixed_instance_does_all_of_it() -> None:
    cluster = one(roles=(MIXED, MIXED))
    cluster.finish_all()
    assert cluster.statuses == {0: "finished"}
    assert {op.instance for op in cluster.forwards} == {0}


def test_a_preempted_request_goes_through_prefill_again_with_its_tokens() -> None:
    # Decode has 6 blocks. 0 grows to 5 of them (8 + 9 tokens), 1 has 2 from the beginning.
    cluster = Cluster(
        [
            ask(0, range(8), num_output_tokens=10),
            ask(1, range(20, 28), num_output_tokens=6, at=1),
        ],
        gpu=6,
    ).play()
    assert cluster.statuses == {0: "finished", 1: "finished"}
    preempted = [each for each in cluster.ended.values() if each.num_preemptions]
    assert [each.request.request_id for each in preempted] == [1]
    pieces = [p for op in cluster.forwards for p in op.prefill if p.request_id == 1]
    assert pieces[-1].attempt == 1
    end = pieces[-1].first_token + pieces[-1].num_tokens
    assert 8 < end < 8 + 6  # the prompt, and the tokens made before
    assert cluster.ended[1].num_made == 6


# -- who goes where


def test_least_loaded_counts_the_tokens_that_are_routed() -> None:
    cluster = Cluster(
        [
            ask(0, range(16), num_output_tokens=2),
            ask(1, range(20, 24), num_output_tokens=2),
            ask(2, range(30, 34), num_output_tokens=2),
        ],
        roles=(PREFILL, PREFILL, DECODE),
    )
    cluster.step()
    # 16 tokens on 0; then 4 on 1, and again: 8 are fewer than 16.
    assert [(op.instance, [p.request_id for p in op.prefill]) for op in cluster.forwards] == [
        (0, [0]),
        (1, [1, 2]),
    ]


def test_round_robin_takes_turns() -> None:
    cluster = Cluster(
        [ask(i, range(20 * i, 20 * i + 4), num_output_tokens=2) for i in range(3)],
        roles=(PREFILL, PREFILL, DECODE),
        split=SplitConfig(routing=Routing.ROUND_ROBIN),
    )
    cluster.step()
    assert [(op.instance, [p.request_id for p in op.prefill]) for op in cluster.forwards] == [
        (0, [0, 2]),
        (1, [1]),
    ]


def test_cache_aware_goes_where_the_prefix_is() -> None:
    cluster = Cluster(
        [
            ask(0, range(12), num_output_tokens=2),
            ask(1, range(40, 44), num_output_tokens=2, at=1),
            ask(2, range(40, 48), num_output_tokens=2, at=100),
        ],
        roles=(PREFILL, PREFILL, DECODE, DECODE),
        split=SplitConfig(routing=Routing.CACHE_AWARE),
    ).play()
    # 1 goes to the second of each, since 0 is busy on the first; 2 finds its prefix there.
    records = [split_record_of(each) for each in cluster.ended.values()]
    places = [(each.prefill_instance, each.decode_instance) for each in records]
    assert places == [(0, 2), (1, 3), (1, 3)]


def test_replicas_of_an_engine_are_instances_of_their_own() -> None:
    _, make, _ = policy_factory("lru")
    scheduler = split_scheduler(
        [PREFILL, PREFILL, DECODE, DECODE],
        [],
        cache=CacheConfig(block_size=4),
        scheduler=SchedulerConfig(),
        split=SplitConfig(),
        new_policy=make,
        num_data_parallel=2,
    )
    ids = [each.data_parallel_id for each in scheduler.instances.values()]
    assert ids == [0, 1, 0, 1]
    assert not scheduler.has_work()


def test_what_fits_no_instance_is_refused_and_others_go_on() -> None:
    sink = EventMirror(1)
    cluster = Cluster(
        [ask(0, range(40), num_output_tokens=2), ask(1, range(8), num_output_tokens=2)], gpu=4
    )
    cluster.scheduler._sink = sink  # noqa: SLF001  (the stage gives none)
    cluster.finish_all()
    assert cluster.statuses == {0: "refused", 1: "finished"}
    # 40 tokens and one with KV after them: 11 blocks.
    assert sink.events[:2] == [
        RequestRefused(at=0, request_id=0, needed_blocks=11, allowed_blocks=4),
        RequestEnded(at=0, request_id=0, status="refused"),
    ]


@pytest.mark.parametrize(
    ("roles", "problem"),
    [
        ([], "the roles of the instances are: none"),
        ([PREFILL], "the roles of the instances are: prefill; it takes prefill and decode"),
        ([DECODE, DECODE], "the roles of the instances are: decode; it takes prefill and decode"),
    ],
)
def test_it_takes_somebody_to_compute_and_somebody_to_decode(
    roles: list[Role], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        Cluster([], roles=roles)


def copies(cluster: Cluster, **changes: int) -> list[Instance]:
    """Return the instances of a cluster with the second one's number or block size changed."""
    first, second = cluster.scheduler.instances.values()
    number = changes.get("number", second.number)
    other = Cluster([]).instance(1)
    manager = other.manager
    manager.config = CacheConfig(block_size=changes.get("block_size", 4))
    return [first, Instance(number, second.role, manager, other.scheduler)]


def test_instances_that_hand_over_blocks_have_one_block_size() -> None:
    with pytest.raises(ConfigError, match=r"block sizes differ: \[4, 8\] tokens"):
        SplitScheduler(copies(Cluster([]), block_size=8), [], SplitConfig(), new_op_id=OpIds())


def test_instances_have_numbers_of_their_own() -> None:
    with pytest.raises(ConfigError, match=r"instance numbers must differ, not \[0, 0\]"):
        SplitScheduler(copies(Cluster([]), number=0), [], SplitConfig(), new_op_id=OpIds())


def test_a_request_that_was_not_routed_has_no_instances() -> None:
    handoff = Handoff(ask(3, range(4)), 4)
    with pytest.raises(MisuseError, match="request 3 has not been routed"):
        _ = handoff.prefill_instance
    with pytest.raises(MisuseError, match="request 3 has no decode instance"):
        _ = handoff.decode_instance
    assert (handoff.queue_ns, handoff.prefill_ns) == (None, None)
    assert (handoff.exposed_ns, handoff.hidden_ns) == (None, None)


# -- clients that give up


def test_of_a_request_cancelled_in_mid_send_nothing_more_is_sent() -> None:
    cluster = one(scheduler=CHUNKS_OF_8)
    cluster.scheduler.cancel(0, 1)
    assert cluster.statuses == {}  # its first chunk is being computed
    cluster.answer(cluster.open_forward(0), at=2)
    assert cluster.statuses == {0: "cancelled"}
    cluster.step(2)
    (send,) = cluster.sends
    # What was issued goes on, and keeps what it reads and writes.
    assert cluster.room(0) == 18
    assert cluster.room(1) == 18
    cluster.answer(send, at=5)
    assert cluster.room(0) == cluster.room(1) == 20
    assert not cluster.scheduler.has_work()


def test_the_head_of_the_queue_for_blocks_gives_up_and_the_next_is_tried() -> None:
    cluster = Cluster(
        [
            ask(0, range(8), num_output_tokens=2),
            ask(1, range(20, 36), num_output_tokens=2, at=1),
            ask(2, range(50, 54), num_output_tokens=2, at=2),
        ],
        gpu=5,
    )
    for now in range(3):
        cluster.step(now)
    # 0 has 2 of 5 blocks, 1 wants 4 and waits, so 2 waits behind it.
    assert len(cluster.instance(1).waiting) == 2
    cluster.scheduler.cancel(1, 3)
    assert cluster.statuses == {1: "cancelled"}
    cluster.step(3)
    assert cluster.instance(1).waiting == []
    assert cluster.free(1) == 5 - 2 - 1
    cluster.finish_all(4)
    assert cluster.statuses == {0: "finished", 1: "cancelled", 2: "finished"}


def test_a_request_whose_prompt_waits_is_cancelled_at_once() -> None:
    cluster = Cluster(
        [ask(0, range(8), num_output_tokens=2), ask(1, range(20, 28), num_output_tokens=2, at=1)],
    )
    cluster.step()
    cluster.step(1)
    assert cluster.free(1) == 16
    cluster.scheduler.cancel(1, 2)
    assert cluster.statuses == {1: "cancelled"}
    assert cluster.free(1) == 18


def test_a_decoding_request_is_cancelled_at_its_next_step() -> None:
    cluster = Cluster([ask(0, range(8), num_output_tokens=100, cancelled_at=43)], gpu=99).play()
    assert cluster.statuses == {0: "cancelled"}
    assert 43 <= (cluster.ended[0].ended_at or 0) <= 44


def test_cancelling_is_idempotent_and_ignores_strangers() -> None:
    cluster = one()
    cluster.scheduler.cancel(7, 0)
    for _ in range(2):
        cluster.scheduler.cancel(0, 1)
    cluster.answer(cluster.open_forward(0), at=2)
    cluster.scheduler.cancel(0, 3)
    cluster.finish_all(3)
    assert cluster.statuses == {0: "cancelled"}


# -- failures


@pytest.mark.parametrize(
    ("outcome", "reason", "error"),
    [
        (Outcome.FAILED, "connect: rank 1: no route", "connect"),
        (Outcome.FAILED, "write: rank 0: queue pair in error", "write"),
        (Outcome.FAILED, "peer lost: rank 1: reset", "peer lost"),
        (Outcome.FAILED, "rank 1 failed (injected fault)", "write"),
        (Outcome.CANCELLED, "", "cancelled"),
        (Outcome.TIMED_OUT, "", "timeout"),
    ],
)
def test_a_failed_send_is_told_once_with_its_attempt_and_named(
    outcome: Outcome, reason: str, error: str
) -> None:
    cluster = one(split=FAIL)
    send = cluster.open_sends()[0]
    cluster.answer(cluster.open_forward(0), at=1)
    cluster.answer(send, outcome, at=2, reason=reason)
    if outcome is Outcome.TIMED_OUT:
        assert cluster.room(1) == 17
        cluster.rest(send, at=9)
    assert cluster.errors == [(0, 0, error)]
    assert cluster.statuses == {0: "failed"}
    assert cluster.room(0) == cluster.room(1) == 20


def test_a_request_is_computed_again_until_its_attempts_are_used_up() -> None:
    cluster = one(split=SplitConfig(max_attempts=2))
    for now in (1, 2):
        cluster.answer(cluster.open_sends()[0], Outcome.FAILED, at=now)
        cluster.answer(cluster.open_forward(0), at=now)
        cluster.step(now)
    assert cluster.errors == [(0, 0, "write"), (0, 1, "write")]
    assert cluster.statuses == {0: "failed"}
    # The token that prefill had made is not made again: the second attempt computed 11.
    assert cluster.ended[0].num_made == 2


def test_a_failed_forward_is_told_at_once_on_both_sides() -> None:
    cluster = one()
    cluster.answer(cluster.open_forward(0), Outcome.FAILED, at=1)
    assert cluster.errors == [(0, 0, "compute")]
    # Its send must end first: till then it may touch what it was to write.
    assert cluster.room(1) == 17
    cluster.answer(cluster.open_sends()[0], Outcome.FAILED, at=1)
    assert cluster.room(1) == 20
    cluster.finish_all(2)
    assert cluster.statuses == {0: "finished"}
    assert cluster.ended[0].attempt == 1


def test_a_failed_decoding_batch_goes_through_prefill_again() -> None:
    cluster = one(num_output_tokens=9)
    cluster.answer(cluster.open_forward(0))
    cluster.answer(cluster.open_sends()[0])
    cluster.step()
    cluster.answer(cluster.open_forward(1), Outcome.FAILED, at=3)
    assert cluster.errors == [(0, 0, "compute")]
    cluster.finish_all(4)
    assert cluster.statuses == {0: "finished"}
    assert cluster.ended[0].num_made == 9


def test_a_request_fails_with_the_block_it_counted_on() -> None:
    # 1 counts on blocks that are on their way for 0.
    cluster = Cluster(
        [ask(0, range(8), num_output_tokens=2), ask(1, range(12), num_output_tokens=2, at=1)]
    )
    cluster.step()
    cluster.step(1)
    cluster.answer(cluster.open_forward(0), at=2)
    cluster.answer(cluster.open_sends()[0], Outcome.FAILED, at=2)
    assert cluster.errors == [(0, 0, "write"), (1, 0, "cache")]
    cluster.finish_all(3)
    assert cluster.statuses == {0: "finished", 1: "finished"}


def test_at_most_so_many_wait_for_their_kv() -> None:
    cluster = Cluster(
        [ask(i, range(20 * i, 20 * i + 8), num_output_tokens=2) for i in range(3)],
        split=SplitConfig(max_receiving=2),
    )
    cluster.step()
    assert cluster.instance(1).num_receiving == 2
    assert [h.request.request_id for h in cluster.instance(1).waiting] == [2]
    assert cluster.instance(1).waiting[0].phase is Phase.WAITING
    cluster.finish_all()
    assert len(cluster.statuses) == 3


@pytest.mark.parametrize("name", ["max_attempts", "send_timeout_ns", "max_receiving"])
def test_limits_are_positive(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be an integer of at least 1, not 0"):
        replace(SplitConfig(), **{name: 0})  # type: ignore[arg-type]
