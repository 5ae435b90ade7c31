"""Many acknowledgements in, one answer out: outcomes, deadlines, and ops that are lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.paddle.orders import Forget, Stop
from kvsim.core.ops import Cancel, Completion, Outcome, Settled
from tests.unit.backends.paddle.stage import (
    Stage,
    forward,
    rank_done,
    row,
    transfer,
)

DONE, FAILED, CANCELLED = Outcome.DONE, Outcome.FAILED, Outcome.CANCELLED


@pytest.mark.parametrize(
    ("outcomes", "worst"),
    [
        ((DONE, DONE), DONE),
        ((DONE, CANCELLED), CANCELLED),
        ((CANCELLED, FAILED), FAILED),
        ((FAILED, DONE), FAILED),
    ],
)
def test_an_op_ends_as_the_worst_of_its_ranks(
    outcomes: tuple[Outcome, ...], worst: Outcome
) -> None:
    stage = Stage()
    stage.backend.submit(forward(0, num_steps=9))
    stage.says(0, *outcomes, at=5, steps=(7, 4))
    (answer,) = stage.backend.wait(None)
    assert isinstance(answer, Completion)
    assert answer.outcome is worst
    # What only some ranks have done does not count, and of an op that is not DONE nothing does.
    assert answer.steps_done == (4 if worst is DONE else 0)
    assert answer.reason == ("" if worst is DONE else f"it {worst}")


def test_of_two_ranks_that_fail_the_first_gives_the_reason() -> None:
    stage = Stage()
    stage.backend.submit(transfer(0))
    for rank, reason in enumerate(("the first", "the second")):
        stage.timeline.add(5, rank_done(0, FAILED, 5, rank=rank)._replace(reason=reason))
    (answer,) = stage.backend.wait(None)
    assert isinstance(answer, Completion)
    assert answer.reason == "the first"


def test_the_times_are_those_of_the_first_to_begin_and_the_last_to_end() -> None:
    stage = Stage(3, record_layers=True)
    stage.backend.submit(transfer(0))
    for rank, (begun, ended) in enumerate([(4, 30), (2, 20), (3, 40)]):
        layers = (begun + rank, begun + 10 + rank)
        stage.timeline.add(
            ended, rank_done(0, DONE, ended, rank=rank, started_at=begun, layers=layers)
        )
    (answer,) = stage.backend.wait(None)
    # Layer 0 ended at 4, 3 and 5 on the three ranks, layer 1 at 14, 13 and 15.
    assert answer == Completion(0, DONE, 2, 40, steps_done=1, layers_finished_at=(5, 15))


def test_layers_are_told_only_if_asked_for_and_if_all_went_well() -> None:
    for records, outcome, expected in ((False, DONE, ()), (True, FAILED, ()), (True, DONE, (3,))):
        stage = Stage(1, record_layers=records)
        stage.backend.submit(transfer(0))
        stage.timeline.add(5, rank_done(0, outcome, 5, layers=(3,)))
        (answer,) = stage.backend.wait(None)
        assert isinstance(answer, Completion)
        assert answer.layers_finished_at == expected


@given(st.permutations([(op_id, rank) for op_id in range(4) for rank in range(3)]))
def test_in_whatever_order_ranks_answer_each_op_ends_once_with_its_last_rank(
    order: list[tuple[int, int]],
) -> None:
    stage = Stage(3)
    for op_id in range(4):
        stage.backend.submit(transfer(op_id))
    for at, (op_id, rank) in enumerate(order):
        outcome = FAILED if (op_id, rank) == (2, 1) else DONE
        stage.timeline.add(at, rank_done(op_id, outcome, at, rank=rank))
    last = {op_id: at for at, (op_id, _) in enumerate(order)}
    expected = sorted(
        ((op_id, "failed" if op_id == 2 else "done", at) for op_id, at in last.items()),
        key=lambda each: each[2],
    )
    told = [answer for _ in range(4) for answer in stage.rows()]
    assert told == expected
    assert stage.rows() == []


def test_an_op_times_out_at_its_deadline_and_settles_when_its_last_rank_does() -> None:
    stage = Stage()
    stage.backend.submit(transfer(0, deadline_at=100))
    stage.timeline.add(50, rank_done(0, DONE, 50))
    stage.timeline.add(300, rank_done(0, CANCELLED, 300, rank=1))
    assert stage.rows() == [(0, "timed_out", 100)]
    assert stage.orders(Stop) == [Stop(0, at_once=True)]
    assert stage.rows() == [(0, "settled", 300)]
    assert stage.rows() == []


def test_the_reason_names_the_deadline() -> None:
    stage = Stage()
    stage.backend.submit(transfer(0, deadline_at=100))
    (answer,) = stage.backend.wait(500)
    assert isinstance(answer, Completion)
    assert answer.reason == "not finished by its deadline, 100 ns"


def test_an_op_that_ended_after_its_deadline_has_timed_out_and_settled() -> None:
    """Its end is heard of before the deadline is looked at."""
    stage = Stage(1)
    stage.backend.submit(transfer(0, deadline_at=100))
    stage.timeline.now = 130
    stage.timeline.add(120, rank_done(0, DONE, 120))
    assert stage.rows() == [(0, "timed_out", 120), (0, "settled", 120)]


def test_an_op_that_ended_in_the_instant_of_its_deadline_has_not_missed_it() -> None:
    stage = Stage(1)
    stage.backend.submit(transfer(0, deadline_at=100))
    stage.timeline.now = 130
    stage.timeline.add(100, rank_done(0, DONE, 100))
    assert stage.rows() == [(0, "done", 100)]


def test_a_forward_that_times_out_in_the_queue_settles_in_the_same_instant() -> None:
    stage = Stage()
    stage.backend.submit(forward(0))
    stage.backend.submit(forward(1, deadline_at=40))
    assert stage.rows() == [(1, "timed_out", 40), (1, "settled", 40)]
    assert stage.sent() == [0]
    stage.says(0, at=90)
    assert stage.rows() == [(0, "done", 90)]
    assert stage.sent() == [0]


def test_deadlines_come_one_after_another_whatever_their_order() -> None:
    stage = Stage()
    for op_id, deadline_at in enumerate([300, 100, None, 200]):
        stage.backend.submit(transfer(op_id, deadline_at=deadline_at))
    stage.says(3, at=150)
    told = [stage.rows()[0] for _ in range(3)]
    assert told == [(1, "timed_out", 100), (3, "done", 150), (0, "timed_out", 300)]


def test_those_that_wait_for_an_op_that_is_lost_fail() -> None:
    stage = Stage()
    stage.backend.submit(transfer(0))
    stage.backend.submit(transfer(1, after=(0,)))
    stage.backend.submit(forward(2, after=(1,)))
    stage.backend.submit(forward(3, after=(2,)))
    stage.says(0, FAILED, DONE, at=10)
    # The Forward 3 is in the queue: nothing keeps it. The others stop at once.
    assert stage.rows() == [(0, "failed", 10)]
    assert stage.orders(Stop) == [Stop(1, at_once=True)]
    # Rank 1 had not heard of the failure and was through with op 1.
    stage.says(1, CANCELLED, DONE, at=20)
    assert stage.rows() == [(1, "failed", 20)]
    assert stage.orders(Stop)[1:] == [Stop(2, at_once=True)]
    stage.says(2, CANCELLED, CANCELLED, at=30)
    answers = stage.backend.wait(None)
    assert [row(each) for each in answers] == [(2, "failed", 30), (3, "failed", 30)]
    assert [each.reason for each in answers if isinstance(each, Completion)] == [
        "op 1, which it waits for, ended failed",
        "op 2, which it waits for, ended failed",
    ]


def test_a_chain_of_thousands_of_ops_fails_at_once() -> None:
    stage = Stage(1)
    stage.backend.submit(forward(0))
    for op_id in range(1, 5_000):
        stage.backend.submit(forward(op_id, after=(op_id - 1,)))
    stage.says(0, FAILED, at=7)
    assert stage.rows() == [(op_id, "failed", 7) for op_id in range(5_000)]
    assert stage.rows() == []


@pytest.mark.parametrize("end", [FAILED, CANCELLED])
def test_an_op_after_one_that_was_lost_before_fails_at_once(end: Outcome) -> None:
    stage = Stage(1)
    stage.backend.submit(transfer(0))
    stage.says(0, end, at=7)
    stage.rows()
    stage.backend.submit(transfer(1, after=(0,)))
    stage.backend.submit(forward(2, after=(0,)))
    assert stage.rows() == [(1, "failed", 7), (2, "failed", 7)]
    assert stage.sent() == [0]


def test_an_op_after_one_that_timed_out_fails_before_that_has_settled() -> None:
    stage = Stage(1)
    stage.backend.submit(transfer(0, deadline_at=50))
    stage.backend.submit(forward(1, after=(0,)))
    assert stage.rows() == [(0, "timed_out", 50)]
    stage.backend.submit(transfer(2, after=(0,)))
    assert stage.rows() == [(2, "failed", 50)]
    assert stage.sent() == [0, 1]
    stage.says(1, CANCELLED, at=60)
    assert stage.rows() == [(1, "failed", 60)]


def test_an_op_that_has_timed_out_is_not_lost_again() -> None:
    stage = Stage(1)
    stage.backend.submit(transfer(0))
    stage.backend.submit(transfer(1, after=(0,), deadline_at=20))
    assert stage.rows() == [(1, "timed_out", 20)]
    stage.says(0, FAILED, at=30)
    assert stage.rows() == [(0, "failed", 30)]
    assert stage.orders(Stop) == [Stop(1, at_once=True)]
    stage.says(1, CANCELLED, at=40)
    assert stage.rows() == [(1, "settled", 40)]


def test_an_op_after_one_that_is_done_waits_for_nothing() -> None:
    stage = Stage(1)
    stage.backend.submit(transfer(0))
    stage.says(0, at=7)
    stage.rows()
    stage.backend.submit(transfer(1, after=(0,)))
    (order,) = (o for o in stage.ranks[0].orders if getattr(o, "op_id", 0) == 1)
    assert getattr(order, "after", None) == ()


def test_a_cancel_ends_what_is_in_the_queue_and_asks_the_ranks_for_what_they_have() -> None:
    stage = Stage()
    stage.backend.submit(forward(0, num_steps=9))
    stage.backend.submit(forward(1))
    stage.backend.submit(forward(2, after=(1,)))
    stage.timeline.now = 5
    stage.backend.submit(Cancel(1))
    stage.backend.submit(Cancel(0))
    assert stage.orders(Stop) == [Stop(0, at_once=False)]
    assert stage.rows() == [(1, "cancelled", 5), (2, "failed", 5)]
    stage.says(0, at=8, steps=(2, 3))
    (answer,) = stage.backend.wait(None)
    assert isinstance(answer, Completion)
    assert (answer.outcome, answer.steps_done) == (DONE, 2)


def test_a_cancel_of_an_op_that_ended_or_timed_out_or_never_was_does_nothing() -> None:
    stage = Stage(1)
    stage.backend.submit(transfer(0))
    stage.says(0, at=7)
    stage.rows()
    stage.backend.submit(transfer(1, deadline_at=9))
    stage.rows()
    stops = len(stage.orders(Stop))
    for op_id in (0, 1, 77):
        stage.backend.submit(Cancel(op_id))
    assert len(stage.orders(Stop)) == stops
    stage.says(1, CANCELLED, at=12)
    assert stage.backend.wait(None) == [Settled(1, 12)]


def test_ranks_forget_an_op_once_it_has_come_to_rest_on_all_of_them() -> None:
    stage = Stage()
    stage.backend.submit(transfer(0, deadline_at=10))
    stage.backend.submit(forward(1))
    stage.backend.submit(forward(2))
    stage.backend.submit(Cancel(2))
    stage.rows()
    stage.timeline.add(5, rank_done(1, DONE, 5))
    assert stage.rows() == [(0, "timed_out", 10)]
    assert stage.orders(Forget) == []
    stage.says(0, CANCELLED, CANCELLED, at=20)
    assert stage.rows() == [(0, "settled", 20)]
    assert stage.orders(Forget) == [Forget(0)]
    stage.timeline.add(25, rank_done(1, DONE, 25))
    stage.rows()
    # The Forward 2 they have never heard of.
    assert stage.orders(Forget) == [Forget(0), Forget(1)]


def test_answers_that_come_together_are_in_the_order_of_their_time_and_op() -> None:
    stage = Stage(1)
    for op_id in (5, 3, 4):
        stage.backend.submit(transfer(op_id))
    for op_id, at in ((5, 20), (3, 30), (4, 20)):
        stage.timeline.add(30, rank_done(op_id, DONE, at))
    assert stage.rows() == [(4, "done", 20), (5, "done", 20), (3, "done", 30)]


def test_an_answer_is_not_earlier_than_the_time_read_or_told_before() -> None:
    stage = Stage(1)
    for op_id in range(4):
        stage.backend.submit(transfer(op_id))
    stage.timeline.now = 50
    assert stage.backend.now() == 50
    # The ranks ended three of them at 10, 60 and 20; the engine has read 50 since.
    for op_id, at in ((0, 10), (1, 60), (2, 20)):
        stage.timeline.add(60, rank_done(op_id, DONE, at))
    assert stage.rows() == [(0, "done", 50), (2, "done", 50), (1, "done", 60)]
    stage.timeline.add(60, rank_done(3, DONE, 55))
    assert stage.rows() == [(3, "done", 60)]
