"""Faults reported in public of systems that send KV from prefill to decode, as small cases."""

from __future__ import annotations

import pytest

from kvsim.config import OnSendFailure, SchedulerConfig, SplitConfig
from kvsim.core.ops import Outcome, Transfer
from tests.unit.core.split_stage import DECODE, PREFILL, Cluster
from tests.unit.core.stage import ask

CHUNKS_OF_8 = SchedulerConfig(token_budget=8, max_running=4, decode_reserve_blocks=0)


def test_blocks_are_aligned_by_position_whatever_either_side_has_cached() -> None:
    # Prefill has blocks 0 to 2 of the prompt, decode 0 and 1: 2 goes at once, 3 when it is there.
    cluster = Cluster(
        [
            ask(0, range(8), num_output_tokens=2),
            ask(1, range(12), at=10),  # one token: it stays on prefill
            ask(2, range(16), num_output_tokens=2, at=20),
        ]
    )
    while cluster.scheduler.next_wakeup_at() is not None or cluster.open:
        now = cluster.scheduler.next_wakeup_at() or 0
        if cluster.step(now) and 2 in [p.request_id for p in cluster.forwards[-1].prefill]:
            break
        for op in sorted(cluster.open.values(), key=lambda each: each.op_id):
            cluster.answer(op, at=now)
    cached, computed = cluster.open_sends()
    forward = cluster.open_forward(0)
    (piece,) = forward.prefill
    assert (piece.first_token, piece.num_tokens) == (12, 4)
    assert cached.source_ids == piece.block_ids[2:3]
    assert cached.after == ()
    assert computed.source_ids == piece.block_ids[3:4]
    assert computed.after == (forward.op_id,)
    for op in (forward, cached, computed):
        cluster.answer(op, at=21)
    cluster.step(21)
    (member,) = cluster.open_forward(1).joined
    assert (*cached.target_ids, *computed.target_ids) == member.block_ids[2:4]


def test_blocks_of_a_request_that_was_aborted_are_given_away_when_its_send_has_settled() -> None:
    # Decode has 2 blocks. A (7 tokens) is aborted while its layers arrive; Q wants both blocks.
    cluster = Cluster(
        [ask(0, range(7), num_output_tokens=2), ask(1, range(20, 27), num_output_tokens=2, at=2)],
        gpu=2,
    )
    cluster.step()
    (send,) = cluster.open_sends()
    cluster.answer(cluster.open_forward(0), at=1)
    cluster.scheduler.cancel(0, 1)
    assert cluster.statuses == {0: "cancelled"}
    cluster.step(2)
    assert cluster.instance(1).waiting  # Q waits
    assert cluster.free(1) == 0
    cluster.answer(send, at=5)
    cluster.step(5)
    assert cluster.instance(1).waiting == []
    cluster.finish_all(6)
    assert cluster.statuses == {0: "cancelled", 1: "finished"}
    assert cluster.room(1) == 2


def test_an_abort_does_not_touch_what_is_on_its_way_for_others() -> None:
    cluster = Cluster([ask(i, range(20 * i, 20 * i + 8), num_output_tokens=2) for i in range(2)])
    cluster.step()
    first, second = cluster.open_sends()
    cluster.scheduler.cancel(0, 1)
    cluster.answer(cluster.open_forward(0), at=2)
    cluster.answer(second, at=3)
    cluster.step(3)
    assert [m.request_id for m in cluster.open_forward(1).joined] == [1]
    cluster.answer(first, at=4)
    cluster.finish_all(5)
    assert cluster.statuses == {0: "cancelled", 1: "finished"}


def waits_behind_a_hung_prefill(on_failure: OnSendFailure) -> Cluster:
    """Return a cluster where the prefill instance hangs with request 0, and 1 waits behind it."""
    split = SplitConfig(reserve_timeout_ns=50, on_send_failure=on_failure)
    cluster = Cluster(
        [ask(0, range(8), num_output_tokens=2), ask(1, range(20, 28), num_output_tokens=2, at=1)],
        split=split,
        gpu=5,
    )
    cluster.step()
    cluster.step(1)
    assert cluster.free(1) == 1
    return cluster


def test_blocks_promised_to_a_prefill_that_never_starts_come_back_at_the_deadline() -> None:
    cluster = waits_behind_a_hung_prefill(OnSendFailure.FAIL)
    assert cluster.scheduler.next_wakeup_at() == 50
    cluster.step(50)
    assert cluster.scheduler.next_wakeup_at() == 51
    cluster.step(51)
    assert cluster.errors == [(0, 0, "timeout"), (1, 0, "timeout")]
    assert cluster.statuses == {1: "failed"}  # 0 is still in a Forward
    # The blocks of 0 are in the hands of its send; those of 1 are back.
    assert cluster.free(1) == 3


def test_a_request_whose_prefill_never_starts_is_tried_again() -> None:
    cluster = waits_behind_a_hung_prefill(OnSendFailure.RECOMPUTE)
    cluster.step(51)
    assert cluster.errors == [(0, 0, "timeout"), (1, 0, "timeout")]
    assert cluster.statuses == {}
    cluster.answer(cluster.open_forward(0), at=60)
    cluster.answer(cluster.open_sends()[0], at=60)
    cluster.finish_all(60)
    assert cluster.statuses == {0: "finished", 1: "finished"}


def test_a_peer_that_dies_in_mid_send_costs_its_deadline_and_no_more() -> None:
    cluster = Cluster(
        [ask(0, range(8), num_output_tokens=3)], split=SplitConfig(send_timeout_ns=30)
    )
    cluster.step()
    (send,) = cluster.open_sends()
    assert send.deadline_at == 30
    cluster.answer(cluster.open_forward(0), at=8)
    cluster.answer(send, Outcome.TIMED_OUT, at=30)
    assert cluster.errors == [(0, 0, "timeout")]
    cluster.step(30)
    # Prefill has the prompt still: that goes at once, the token made since behind its Forward.
    again = [each for each in cluster.open_sends() if each is not send]
    assert [each.attempts for each in again] == [((0, 1),), ((0, 1),)]
    targets = {block_id for each in again for block_id in each.target_ids}
    assert not targets & set(send.target_ids)  # the old ones may still be written
    cluster.answer(cluster.open_forward(0), at=40)
    for each in again:
        cluster.answer(each, at=40)
    cluster.step(40)
    cluster.answer(cluster.open_forward(1), at=41)
    assert cluster.statuses == {0: "finished"}
    assert cluster.room(1) == 18
    cluster.rest(send, at=99)  # late: it changes nothing but to give its blocks back
    assert cluster.room(0) == cluster.room(1) == 20
    assert cluster.errors == [(0, 0, "timeout")]
    assert not cluster.scheduler.has_work()


def test_a_prefill_that_aborts_is_told_at_once() -> None:
    cluster = Cluster(
        [ask(0, range(8), num_output_tokens=2)],
        split=SplitConfig(reserve_timeout_ns=1000, max_attempts=1),
    )
    cluster.step()
    cluster.answer(cluster.open_forward(0), Outcome.FAILED, at=3)
    assert cluster.errors == [(0, 0, "compute")]
    assert cluster.ended[0].ended_at == 3


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.FAILED])
def test_a_source_is_not_given_away_while_somebody_may_read_it(outcome: Outcome) -> None:
    # Prefill has 2 blocks; the send of A's is late, so Q must wait for them.
    cluster = Cluster(
        [ask(0, range(7), num_output_tokens=2), ask(1, range(20, 27), at=1)],
        gpu=2,
        split=SplitConfig(send_timeout_ns=30),
    )
    cluster.step()
    (send,) = cluster.open_sends()
    cluster.answer(cluster.open_forward(0), at=7)
    cluster.step(7)
    assert cluster.room(0) == 0  # nothing is free, nothing can be evicted
    assert [op.instance for op in cluster.forwards] == [0]
    cluster.answer(send, Outcome.TIMED_OUT, at=30)
    cluster.step(30)
    assert cluster.room(0) == 0  # past its deadline it may still be read
    cluster.rest(send, at=40)
    assert cluster.room(0) == 2
    cluster.finish_all(41)
    assert cluster.statuses[1] == "finished"


def test_decode_does_not_start_when_prefill_aborts_after_its_first_chunk() -> None:
    cluster = Cluster([ask(0, range(16), num_output_tokens=3)], scheduler=CHUNKS_OF_8)
    cluster.step()
    cluster.answer(cluster.open_forward(0), at=1)
    cluster.answer(cluster.open_sends()[0], at=2)  # all that was sent has arrived
    cluster.step(2)
    cluster.answer(cluster.open_forward(0), Outcome.FAILED, at=3)
    assert cluster.errors == [(0, 0, "compute")]
    cluster.answer(cluster.open_sends()[0], Outcome.FAILED, at=3)
    commands = cluster.step(4)
    assert [op for op in cluster.forwards if op.instance == 1] == []
    # What the first chunk brought is cached by now, and is not sent again.
    (again,) = [op for op in commands if isinstance(op, Transfer)]
    assert len(again.source_ids) == 2


def test_a_chunk_with_nothing_to_send_does_not_end_the_sending() -> None:
    # Decode has the 2 blocks of the first chunk.
    cluster = Cluster(
        [ask(0, range(8), num_output_tokens=2), ask(1, range(16), num_output_tokens=2, at=50)],
        scheduler=CHUNKS_OF_8,
        roles=(PREFILL, DECODE),
        gpu=8,
    )
    cluster.finish_all()
    assert [len(send.source_ids) for send in cluster.sends] == [2, 2]
    assert cluster.statuses == {0: "finished", 1: "finished"}


def test_decode_waits_for_the_present_attempt_and_ignores_what_comes_late_of_an_older_one() -> None:
    cluster = Cluster(
        [ask(0, range(8), num_output_tokens=3)], split=SplitConfig(send_timeout_ns=20)
    )
    cluster.step()
    (old,) = cluster.open_sends()
    cluster.answer(cluster.open_forward(0), at=8)
    cluster.answer(old, Outcome.TIMED_OUT, at=20)
    cluster.step(20)
    cached, computed = (each for each in cluster.open_sends() if each is not old)
    assert cached.attempts == computed.attempts == ((0, 1),)
    cluster.answer(cluster.open_forward(0), at=21)
    cluster.rest(old, at=22)  # it starts nothing and ends nothing
    cluster.answer(computed, at=23)
    cluster.step(23)
    assert [op for op in cluster.forwards if op.instance == 1] == []
    cluster.answer(cached, at=24)
    cluster.step(24)
    (member,) = cluster.open_forward(1).joined
    assert (member.request_id, member.attempt) == (0, 1)
    cluster.finish_all(25)
    assert cluster.errors == [(0, 0, "timeout")]
    assert cluster.statuses == {0: "finished"}


def test_what_an_older_attempt_still_brings_is_counted_on() -> None:
    # The first chunk of attempt 0 is on its way when the second fails: attempt 1 waits for it.
    cluster = Cluster([ask(0, range(16), num_output_tokens=3)], scheduler=CHUNKS_OF_8)
    cluster.step()
    cluster.answer(cluster.open_forward(0), at=5)
    cluster.step(5)
    first, second = cluster.open_sends()
    cluster.answer(second, Outcome.FAILED, at=6, reason="write: rank 1: lost")
    cluster.answer(cluster.open_forward(0), at=7)
    cluster.step(7)
    assert sum(len(each.source_ids) for each in cluster.open_sends() if each is not first) == 3
    cluster.answer(cluster.open_forward(0), at=8)
    for send in [each for each in cluster.open_sends() if each is not first]:
        cluster.answer(send, at=8)
    cluster.step(8)
    assert [op for op in cluster.forwards if op.instance == 1] == []
    cluster.answer(first, at=9)
    cluster.step(9)
    assert len(cluster.open_forward(1).joined) == 1


def test_one_error_in_transit_does_not_mark_the_pair_for_ever() -> None:
    cluster = Cluster(
        [ask(0, range(8), num_output_tokens=2), ask(1, range(20, 28), num_output_tokens=2, at=9)]
    )
    cluster.step()
    cluster.answer(cluster.open_sends()[0], Outcome.FAILED, at=1)
    cluster.answer(cluster.open_forward(0), at=1)
    cluster.finish_all(2)
    assert cluster.statuses == {0: "finished", 1: "finished"}
    assert cluster.errors == [(0, 0, "write")]


def test_two_requests_never_hold_what_the_other_one_needs() -> None:
    # Both sides have room for one request at a time. B takes nothing on prefill before it has all
    # it needs on decode, so there is nothing that A could wait for.
    cluster = Cluster(
        [ask(i, range(20 * i, 20 * i + 11), num_output_tokens=2) for i in range(2)], gpu=3
    )
    cluster.step()
    assert (cluster.free(0), cluster.free(1)) == (0, 0)
    assert [h.request.request_id for h in cluster.instance(1).waiting] == [1]
    cluster.finish_all()
    assert cluster.statuses == {0: "finished", 1: "finished"}


def test_requests_that_cross_between_two_pairs_all_end() -> None:
    requests = [ask(i, range(20 * i, 20 * i + 11), num_output_tokens=4) for i in range(8)]
    cluster = Cluster(requests, roles=(PREFILL, PREFILL, DECODE, DECODE), gpu=4).play()
    assert set(cluster.statuses.values()) == {"finished"}
    assert len(cluster.statuses) == 8
