"""The controller: its queue of Forwards, what counts of what was read, misuse, crashes, close."""

from __future__ import annotations

import gc
import weakref

import pytest

from kvsim.backends.faults import plan_faults
from kvsim.backends.paddle.backend import WallClock
from kvsim.backends.paddle.orders import (
    Close,
    ForwardOrder,
    RankCrashed,
    RankDone,
    RankLost,
    TransferOrder,
)
from kvsim.config import FaultConfig
from kvsim.core.ops import Cancel, Completion, Gate, Member, Outcome, Place, Slice
from kvsim.errors import ConfigError, MisuseError, TransferError
from tests.unit.backends.paddle.bits import GPU
from tests.unit.backends.paddle.stage import (
    PlayedRank,
    Stage,
    forward,
    rank_done,
    transfer,
)

DONE, FAILED, CANCELLED = Outcome.DONE, Outcome.FAILED, Outcome.CANCELLED
TWO_BLOCKS = (Slice(0, 0, 4, 1, (5, 6)),)  # reads block 5 and writes a token into block 6


def last_forward(stage: Stage) -> ForwardOrder:
    """Return the last Forward that the ranks were sent."""
    order = stage.orders(ForwardOrder)[-1]
    assert isinstance(order, ForwardOrder)
    return order


def test_waiting_with_nothing_under_way_returns_at_once_or_at_the_limit() -> None:
    stage = Stage()
    assert stage.backend.wait(None) == ()
    assert stage.backend.now() == 0
    assert stage.backend.wait(70) == ()
    assert stage.backend.now() == 70
    assert stage.backend.wait(30) == ()
    assert stage.backend.now() == 70


def test_waiting_ends_at_the_limit_if_nothing_is_answered_by_then() -> None:
    stage = Stage()
    stage.backend.submit(transfer(0))
    stage.says(0, at=100)
    assert stage.rows(until=60) == []
    assert stage.backend.now() == 60
    assert stage.rows(until=500) == [(0, "done", 100)]


def test_forwards_run_one_after_another_in_the_order_they_came() -> None:
    stage = Stage()
    for op_id in (3, 1, 2):
        stage.backend.submit(forward(op_id))
    assert stage.sent() == [3]
    stage.timeline.add(10, rank_done(3, DONE, 10))
    assert stage.rows(until=20) == []
    assert stage.sent() == [3]  # a rank is still at it
    stage.timeline.add(30, rank_done(3, DONE, 30, rank=1))
    stage.rows()
    assert stage.sent() == [3, 1]


def test_transfers_do_not_wait_for_each_other() -> None:
    stage = Stage()
    stage.backend.submit(forward(0))
    stage.backend.submit(transfer(1))
    stage.backend.submit(transfer(2, after=(0,)))
    assert stage.sent() == [0, 1, 2]
    assert [o.after for o in stage.orders(TransferOrder) if isinstance(o, TransferOrder)] == [
        (),
        (0,),
    ]


def test_behind_an_op_gate_nothing_is_sent_before_all_ranks_are_through() -> None:
    stage = Stage()
    stage.backend.submit(transfer(0))
    stage.backend.submit(transfer(1, after=(0,), gate=Gate.OP))
    stage.backend.submit(forward(2, after=(0,))._replace(gate=Gate.OP))
    stage.backend.submit(transfer(3, after=(1,)))
    assert stage.sent() == [0, 3]
    stage.timeline.add(5, rank_done(0, DONE, 5))
    stage.timeline.add(9, rank_done(0, DONE, 9, rank=1))
    assert stage.backend.wait(6) == ()
    assert stage.sent() == [0, 3]
    assert stage.rows() == [(0, "done", 9)]
    assert stage.sent() == [0, 3, 1, 2]


def test_an_op_that_is_held_back_fails_with_what_it_waits_for() -> None:
    stage = Stage(1)
    stage.backend.submit(transfer(0))
    stage.backend.submit(transfer(1, after=(0,), gate=Gate.OP))
    stage.says(0, FAILED, at=5)
    assert stage.rows() == [(0, "failed", 5), (1, "failed", 5)]
    assert stage.sent() == [0]


def test_a_forward_after_one_that_timed_out_waits_until_that_has_settled() -> None:
    stage = Stage()
    stage.backend.submit(forward(0, deadline_at=50))
    stage.backend.submit(forward(1))
    assert stage.rows() == [(0, "timed_out", 50)]
    assert stage.sent() == [0]
    stage.says(0, FAILED, CANCELLED, at=80)
    assert stage.rows() == [(0, "settled", 80)]
    assert stage.backend.wait(81) == ()
    assert stage.sent() == [0, 1]


def test_members_advance_by_the_steps_that_all_ranks_have_done() -> None:
    stage = Stage()
    stage.backend.submit(forward(0, num_steps=6, joined=(Member(0, 0, 4, (5, 6, 7)),)))
    stage.says(0, at=10, steps=(5, 2))
    stage.rows()
    stage.backend.submit(forward(1, num_steps=3))
    order = last_forward(stage)
    # 4 tokens of the prompt and 2 steps: the next tokens are the third to fifth of the output.
    assert order.slot_writes.block_ids.tolist() == [6, 6, 7]
    assert order.slot_writes.slots.tolist() == [2, 3, 0]
    assert order.slot_writes.steps.tolist() == [0, 1, 2]
    assert order.peeks.block_ids.tolist() == [5, 6]


def test_a_run_that_was_cancelled_has_done_no_step() -> None:
    stage = Stage()
    stage.backend.submit(forward(0, num_steps=6, joined=(Member(0, 0, 4, (5, 6, 7)),)))
    stage.says(0, CANCELLED, DONE, at=10, steps=(0, 2))
    assert stage.rows() == [(0, "cancelled", 10)]
    stage.backend.submit(forward(1))
    assert last_forward(stage).slot_writes.slots.tolist() == [0]


def test_the_difference_of_a_forward_that_never_ran_is_one_to_the_next() -> None:
    stage = Stage()
    stage.backend.submit(forward(0))
    stage.backend.submit(forward(1, joined=(Member(0, 0, 4, (5, 6)),)))
    stage.backend.submit(forward(2))
    stage.backend.submit(Cancel(1))
    stage.says(0, at=10)
    assert stage.rows() == [(1, "cancelled", 0)]
    assert stage.rows() == [(0, "done", 10)]
    assert stage.sent() == [0, 2]
    assert last_forward(stage).peeks.block_ids.tolist() == [5]


def test_what_was_read_counts_on_every_rank_if_the_op_is_done() -> None:
    stage = Stage(3)
    stage.backend.submit(forward(0, prefill=TWO_BLOCKS))
    stage.says(0, at=10, num_wrong_bytes=7)
    stage.rows()
    stage.backend.submit(transfer(1))
    stage.says(1, at=20)
    stage.rows()
    assert stage.backend.figures() == {
        "wrong_bytes": 21,
        "blocks_checked": 3,
        "blocks_swapped": 2,
    }
    assert stage.backend.notes() == ["op 0 read wrong bytes"]


@pytest.mark.parametrize("outcome", [FAILED, CANCELLED])
def test_what_an_op_read_that_is_not_done_does_not_count(outcome: Outcome) -> None:
    stage = Stage(2)
    stage.backend.submit(forward(0, prefill=TWO_BLOCKS))
    stage.backend.submit(transfer(1))
    stage.says(0, DONE, outcome, at=10, num_wrong_bytes=7)
    stage.says(1, DONE, outcome, at=10)
    stage.rows()
    stage.rows()
    assert set(stage.backend.figures().values()) == {0}
    assert stage.backend.notes() == []


def test_nor_does_what_an_op_read_that_timed_out_and_then_ended_well() -> None:
    stage = Stage(1)
    stage.backend.submit(forward(0, prefill=TWO_BLOCKS, deadline_at=5))
    stage.rows()
    stage.says(0, at=10, num_wrong_bytes=7)
    assert stage.rows() == [(0, "settled", 10)]
    assert set(stage.backend.figures().values()) == {0}


def test_each_rank_is_told_what_goes_wrong_on_it() -> None:
    config = FaultConfig(fail_rate=0.5)
    plan = plan_faults(config, seed=3, num_ranks=2)
    assert plan is not None
    stage = Stage(faults=plan)
    seen = set()
    for op_id in range(30):
        command = transfer(op_id)
        stage.backend.submit(command)
        (order,) = (o for o in stage.orders(TransferOrder) if getattr(o, "op_id", 0) == op_id)
        assert isinstance(order, TransferOrder)
        assert order.faults == plan.rank_faults(command)
        seen.add(tuple(order.fault_of(rank) is not None for rank in range(2)))
    assert len(seen) == 4  # neither, one, the other, both


def test_misuse_is_refused_and_changes_nothing() -> None:
    stage = Stage()
    stage.backend.submit(transfer(4))
    stage.backend.submit(forward(5))
    for command, error, message in (
        (transfer(4), MisuseError, "op 4 was submitted twice"),
        (forward(5), MisuseError, "op 5 was submitted twice"),
        (transfer(6, after=(9,)), MisuseError, "op 6 waits for op 9, not submitted before"),
        (forward(6, after=(6,)), MisuseError, "op 6 waits for op 6, not submitted before"),
        (forward(6, instance=1), ConfigError, "there is no instance 1, only 0"),
        (
            transfer(6)._replace(target=Place(instance=0, tier=2)),
            ConfigError,
            "there is no pool at Place",
        ),
    ):
        with pytest.raises(error, match=message):
            stage.backend.submit(command)
    assert stage.sent() == [4, 5]
    stage.backend.submit(transfer(6, after=(3,)))  # ended long ago, for all the backend knows
    assert stage.sent() == [4, 5, 6]


def test_a_rank_that_crashed_is_told_of_in_every_wait_and_close_still_works() -> None:
    stage = Stage()
    stage.backend.submit(transfer(0))
    stage.timeline.add(5, RankCrashed(1, ZeroDivisionError("a bug")))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="a bug") as caught:
            stage.backend.wait(None)
        assert caught.value.__notes__ == ["rank 1 stopped working"]
    stage.backend.submit(transfer(1))
    stage.backend.close()
    assert all(rank.is_joined for rank in stage.ranks)


def test_close_stops_all_ranks_with_ops_under_way_and_may_be_called_twice() -> None:
    stage = Stage()
    stage.backend.submit(transfer(0, deadline_at=50))
    stage.backend.submit(forward(1))
    stage.backend.submit(forward(2))
    for _ in range(2):
        stage.backend.close()
    assert all(rank.is_joined and rank.orders.count(Close()) == 1 for rank in stage.ranks)
    with pytest.raises(MisuseError, match="the backend is closed and takes no commands"):
        stage.backend.submit(transfer(3))
    stage.says(0, at=60)  # what they still said before they stopped
    assert stage.backend.wait(None) == ()
    assert stage.backend.wait(100) == ()


def test_close_lets_go_of_the_ranks_and_so_of_their_memory() -> None:
    stage = Stage()
    ranks = [weakref.ref(rank) for rank in stage.ranks]
    stage.ranks.clear()
    stage.backend.submit(transfer(0))
    gc.disable()
    try:
        stage.backend.close()
        assert [rank() for rank in ranks] == [None, None]
    finally:
        gc.enable()


class CannotStart(PlayedRank):
    """A rank for which the system has no thread left."""

    def start(self) -> None:
        """Fail."""
        raise RuntimeError("can't start new thread")


def test_a_rank_that_cannot_start_leaves_no_other_running() -> None:
    stage = Stage()
    ranks = [PlayedRank(), CannotStart()]
    with pytest.raises(RuntimeError, match="can't start new thread"):
        type(stage.backend)(
            ranks,
            stage.timeline,
            clock=stage.timeline,
            planner=stage.backend._planner,  # noqa: SLF001  (any will do)
            places=frozenset((GPU,)),
        )
    assert ranks[0].is_joined


def test_the_wall_clock_begins_at_zero_and_never_decreases() -> None:
    clock = WallClock()
    times = [clock() for _ in range(100)]
    assert 0 <= times[0] < 10**9
    assert times == sorted(times)


def test_a_lost_rank_ends_what_is_open_behind_a_fence_and_then_the_run() -> None:
    stage = Stage()
    stage.backend.submit(transfer(0, deadline_at=20))
    stage.backend.submit(forward(1))
    stage.backend.submit(forward(2))  # not on the ranks yet
    stage.backend.submit(transfer(3, after=(1,), gate=Gate.OP))
    stage.timeline.add(5, rank_done(1, DONE, 5))
    assert stage.rows() == [(0, "timed_out", 20)]
    stage.timeline.add(30, RankLost(1, "rank 1 was killed"))
    stage.timeline.add(30, rank_done(0, DONE, 30))  # rank 0 was as quick: it does not count
    assert stage.rows() == [
        (0, "settled", 30),
        *((op_id, "failed", 30) for op_id in (1, 2, 3)),
    ]
    assert all(rank.is_fenced for rank in stage.ranks)
    for _ in range(2):
        with pytest.raises(TransferError, match="rank 1 was killed"):
            stage.backend.wait(None)
        with pytest.raises(TransferError, match="rank 1 was killed"):
            stage.backend.submit(transfer(9))
    assert set(stage.backend.figures().values()) == {0}
    stage.backend.close()
    assert stage.backend.wait(None) == ()
    assert all(rank.is_joined for rank in stage.ranks)


def test_the_reason_of_what_ends_with_a_lost_rank_names_it() -> None:
    stage = Stage()
    stage.backend.submit(transfer(0))
    stage.timeline.add(30, RankLost(1, "rank 1 was killed"))
    (answer,) = stage.backend.wait(None)
    assert isinstance(answer, Completion)
    assert (answer.outcome, answer.reason) == (FAILED, "rank 1 was killed")


def test_a_rank_may_be_lost_while_nothing_is_under_way() -> None:
    stage = Stage()
    stage.timeline.add(30, RankLost(0, "rank 0 was killed"))
    with pytest.raises(TransferError, match="rank 0 was killed"):
        stage.backend.wait(50)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        # Rank 0 has said so already.
        (rank_done(0, DONE, 7), "rank 0 says that op 0 has ended, which it was not asked for, or"),
        (rank_done(5, DONE, 7, rank=1), "rank 1 says that op 5 has ended, which it was not asked"),
        (rank_done(2, DONE, 7, rank=1), "rank 1 says that op 2 has ended"),  # is not sent yet
        (rank_done(0, DONE, 7, rank=2), "rank 2 says that op 0 has ended"),  # there is no rank 2
        (rank_done(0, DONE, 11, rank=1), "op 0 went from 11 to 11 ns, and it is 10 ns now"),
        (rank_done(0, DONE, 7, rank=1, started_at=8), "op 0 went from 8 to 7 ns"),
        (rank_done(0, DONE, 7, rank=1, started_at=-1), "op 0 went from -1 to 7 ns"),
        (rank_done(1, DONE, 7, rank=1, steps_done=2), "has done 2 steps of op 1, which has 1"),
        (rank_done(1, DONE, 7, rank=1, steps_done=-1), "has done -1 steps of op 1"),
    ],
)
def test_a_rank_that_says_what_makes_no_sense_is_lost(said: RankDone, problem: str) -> None:
    stage = Stage()
    for command in (transfer(0), forward(1), forward(2)):
        stage.backend.submit(command)
    stage.timeline.add(5, rank_done(0, DONE, 5))
    stage.timeline.add(10, said)
    assert stage.rows() == [(op_id, "failed", 10) for op_id in range(3)]
    assert all(rank.is_fenced for rank in stage.ranks)
    with pytest.raises(TransferError, match=problem):
        stage.backend.wait(None)


def test_an_end_that_is_told_again_after_the_op_has_come_to_rest_is_found() -> None:
    stage = Stage(1)
    stage.backend.submit(transfer(0))
    stage.says(0, at=5)
    assert stage.rows() == [(0, "done", 5)]
    stage.says(0, at=6)
    with pytest.raises(TransferError, match="op 0 has ended, which it was not asked for, or has"):
        stage.backend.wait(50)
