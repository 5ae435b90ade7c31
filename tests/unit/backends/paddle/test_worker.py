"""Stories of one rank: orders at given times, and what it acknowledges when. No thread is needed.

The clock moves only while the rank waits, so work takes no time and steps exactly theirs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvsim.backends.faults import Fault
from kvsim.backends.paddle.orders import (
    Acknowledgement,
    Close,
    Forget,
    Order,
    RankDone,
    Stop,
)
from kvsim.backends.paddle.worker import RankWorker
from kvsim.core.ops import Gate
from tests.unit.backends.paddle.bits import (
    SHAPE,
    Timeline,
    blocks,
    forward_order,
    slots,
    small_memory,
    transfer_order,
)

FAILS = Fault(0, "rank 0 failed (injected fault)", None)
LATE = Fault(30, "", None)
HANGS = Fault(0, "", 500)
DEEP = replace(SHAPE, num_layers=4)

Row = tuple[int, int | str, int]  # op id, layer or outcome, when


class Told:
    """A rank with a story behind it: what it has said, and the state it is left in."""

    def __init__(self, *story: tuple[int, Order]) -> None:
        self.said: list[Acknowledgement] = []
        self.memory, self.gpu, self.host = small_memory(shape=DEEP)
        self.timeline: Timeline[Order] = Timeline(story, at_end=Close)
        self.worker = RankWorker(
            rank=0,
            memory=self.memory,
            clock=self.timeline,
            inbox=self.timeline,
            tell=self.said.append,
        )
        self.worker.run()

    @property
    def rows(self) -> list[Row]:
        """What was said, as (op id, layer or outcome, when)."""
        rows: list[Row] = []
        for each in self.said:
            assert isinstance(each, RankDone)
            assert each.rank == 0
            rows += [(each.op_id, layer, at) for layer, at in enumerate(each.layers_finished_at)]
            rows.append((each.op_id, str(each.outcome), each.finished_at))
        return rows

    def end_of(self, op_id: int) -> RankDone:
        """Return how an op ended."""
        (end,) = (e for e in self.said if isinstance(e, RankDone) and e.op_id == op_id)
        return end

    def ends(self) -> list[Row]:
        """How ops ended, without their layers."""
        return [row for row in self.rows if isinstance(row[1], str)]


def run(op_id: int, *step_ends_ns: int, **others: object) -> Order:
    """Return an order of several steps; a step writes slot 0 of the block of its number."""
    written = slots(*((step, 5, 0, step) for step in range(len(step_ends_ns))))
    order = forward_order(op_id, step_ends_ns=step_ends_ns, slot_writes=written)
    return replace(order, **others)  # type: ignore[arg-type]  # of fields of an order


def test_a_step_spends_the_same_time_in_each_layer() -> None:
    told = Told((7, forward_order(0, step_ends_ns=(102,))))
    # 102 ns in 4 layers: up to 25, 51, 76 and 102.
    assert told.rows == [(0, 0, 32), (0, 1, 58), (0, 2, 83), (0, 3, 109), (0, "done", 109)]
    end = told.end_of(0)
    assert (end.started_at, end.steps_done, end.reason) == (7, 1, "")


def test_a_copy_takes_no_time_of_its_own_and_moves_every_layer() -> None:
    told = Told((5, transfer_order(0, [3, 4], [1, 0])))
    assert told.rows == [*((0, layer, 5) for layer in range(4)), (0, "done", 5)]
    assert told.end_of(0).steps_done == 0


def test_a_copy_goes_on_between_the_layers_of_a_step() -> None:
    told = Told((0, forward_order(0, step_ends_ns=(100,))), (30, transfer_order(1, [0], [1])))
    assert told.ends() == [(1, "done", 30), (0, "done", 100)]


def test_by_layer_a_step_follows_a_step_and_by_op_it_waits() -> None:
    first = forward_order(0, step_ends_ns=(100,))
    by_layer = Told((0, first), (0, forward_order(1, after=(0,))))
    assert [row for row in by_layer.rows if row[0]] == [
        (1, 0, 25),
        (1, 1, 50),
        (1, 2, 75),
        (1, 3, 100),
        (1, "done", 100),
    ]
    assert by_layer.end_of(1).started_at == 25
    by_op = Told((0, first), (0, forward_order(1, after=(0,), gate=Gate.OP)))
    assert by_op.end_of(1).started_at == 100


def test_a_slow_follower_takes_its_own_time_in_each_layer() -> None:
    told = Told(
        (0, forward_order(0, step_ends_ns=(40,))),
        (0, forward_order(1, step_ends_ns=(400,), after=(0,))),
    )
    # Layer 0 of op 0 is done at 10; each layer of op 1 takes 100.
    assert [row[2] for row in told.rows if row[0] == 1] == [110, 210, 310, 410, 410]


def test_a_fast_follower_takes_its_time_from_when_each_layer_is_there() -> None:
    told = Told(
        (0, forward_order(0, step_ends_ns=(400,))),
        (0, forward_order(1, step_ends_ns=(40,), after=(0,))),
    )
    # The layers of op 0 are done at 100, 200, 300 and 400; each layer of op 1 takes 10.
    assert [row[2] for row in told.rows if row[0] == 1] == [110, 210, 310, 410, 410]


def test_an_op_that_comes_before_what_it_waits_for_waits() -> None:
    told = Told((0, transfer_order(1, after=(0,))), (50, forward_order(0, step_ends_ns=(10,))))
    assert told.ends() == [(0, "done", 60), (1, "done", 60)]


def test_a_step_does_not_end_before_what_it_waits_for_even_if_its_layers_are_done() -> None:
    late = transfer_order(0, faults=(LATE,))
    told = Told((0, late), (0, forward_order(1, after=(0,))))
    assert told.ends() == [(0, "done", 30), (1, "done", 30)]
    assert [row for row in told.rows if row[0] == 1][:4] == [(1, layer, 0) for layer in range(4)]


@pytest.mark.parametrize("gate", list(Gate))
def test_an_op_whose_predecessor_fails_fails(gate: Gate) -> None:
    told = Told(
        (0, transfer_order(0, faults=(FAILS,))),
        (0, forward_order(1, step_ends_ns=(100,), after=(0,), gate=gate)),
        (0, forward_order(2, after=(1,), gate=gate)),
    )
    # Op 0 fails before its third layer. Behind it the first layer of op 1 takes 25, by layer.
    at = 25 if gate is Gate.LAYER else 0
    assert [row[:2] for row in told.ends()] == [(0, "failed"), (1, "failed"), (2, "failed")]
    assert told.end_of(0).reason == FAILS.reason
    assert told.end_of(1).reason == "op 0, which it waits for, ended failed"
    assert told.end_of(1).finished_at == at
    assert told.end_of(2).reason == "op 1, which it waits for, ended failed"


def test_half_of_a_copy_that_fails_has_been_copied() -> None:
    told = Told()
    told.host.bytes[:] = 1
    story = Timeline[Order]([(0, transfer_order(0, [0], [1], faults=(FAILS,)))], at_end=Close)
    said: list[Acknowledgement] = []
    RankWorker(rank=0, memory=told.memory, clock=story, inbox=story, tell=said.append).run()
    (end,) = said
    assert isinstance(end, RankDone)
    assert end.layers_finished_at == (0, 0)
    # 4 layers of 128 bytes in a block: of block 1 the first two.
    assert np.flatnonzero(told.gpu.bytes).tolist() == list(range(512, 512 + 256))


def test_an_op_that_hangs_settles_some_time_after_its_deadline_and_hears_nothing() -> None:
    told = Told(
        (10, transfer_order(0, deadline_at=200, faults=(HANGS,))),
        (20, Stop(0, at_once=True)),
        (200, Stop(0, at_once=True)),
    )
    assert told.rows == [(0, 0, 10), (0, 1, 10), (0, "failed", 700)]
    assert told.end_of(0).reason == "it hung (injected fault)"


def test_an_op_that_would_hang_can_be_stopped_before_it_starts() -> None:
    told = Told(
        (0, transfer_order(0, after=(9,), deadline_at=200, faults=(HANGS,))),
        (20, Stop(0, at_once=True)),
    )
    assert told.rows == [(0, "cancelled", 20)]
    assert told.end_of(0).started_at == 20


def test_a_late_op_is_late_by_its_delay() -> None:
    told = Told(
        (0, forward_order(0, step_ends_ns=(100,), faults=(LATE,))),
        (0, run(1, 40, 80, faults=(LATE,))),
    )
    assert told.ends() == [(1, "done", 110), (0, "done", 130)]


def test_a_fault_is_that_of_the_rank() -> None:
    assert Told((0, transfer_order(0, faults=(None, FAILS)))).ends() == [(0, "done", 0)]


def test_a_copy_stops_between_two_layers_and_a_step_at_its_end_or_at_once() -> None:
    first = forward_order(0, step_ends_ns=(100,))
    copy = transfer_order(1, after=(0,), gate=Gate.LAYER)
    gently = Told((0, first), (0, copy), (30, Stop(1, at_once=False)), (40, Stop(0, at_once=False)))
    assert gently.ends() == [(1, "cancelled", 30), (0, "done", 100)]
    assert (1, 0, 25) in gently.rows
    at_once = Told((0, first), (40, Stop(0, at_once=True)))
    assert at_once.rows == [(0, 0, 25), (0, "cancelled", 40)]


def test_what_has_not_begun_stops_gently_too() -> None:
    for order in (forward_order(0, after=(9,)), run(0, 10, 20, after=(9,))):
        assert Told((0, order), (5, Stop(0, at_once=False))).rows == [(0, "cancelled", 5)]


def test_a_stop_at_once_outdoes_a_gentle_one_before_or_after_it() -> None:
    for first, second in ((True, False), (False, True)):
        told = Told(
            (0, forward_order(0, step_ends_ns=(100,))),
            (40, Stop(0, at_once=first)),
            (40, Stop(0, at_once=second)),
        )
        assert told.ends() == [(0, "cancelled", 40)]


@pytest.mark.parametrize(
    ("at", "steps", "end"),
    [(1, 1, 10), (9, 1, 10), (10, 2, 30), (29, 2, 30), (30, 3, 60), (59, 3, 60)],
)
def test_a_run_is_cut_at_its_next_step_boundary(at: int, steps: int, end: int) -> None:
    told = Told((0, run(0, 10, 30, 60, 100)), (at, Stop(0, at_once=False)))
    assert told.ends() == [(0, "done", end)]
    assert told.end_of(0).steps_done == steps
    # A step writes slot 0 of its block: a word of each of the 16 planes. No later one is written.
    there = told.gpu.bytes.view(np.int64).reshape(8, 16, 4)
    assert [int(np.count_nonzero(block)) for block in there] == [16] * steps + [0] * (8 - steps)


def test_a_run_says_its_layers_at_its_end() -> None:
    told = Told((0, run(0, 10, 30)))
    assert told.rows == [*((0, layer, 30) for layer in range(4)), (0, "done", 30)]
    assert told.end_of(0).steps_done == 2


def test_a_run_that_takes_no_time_is_done_at_once() -> None:
    assert Told((4, run(0, 0, 0, 0))).ends() == [(0, "done", 4)]


def test_a_run_waits_for_all_that_it_is_after() -> None:
    told = Told((0, forward_order(0, step_ends_ns=(100,))), (0, run(1, 10, 20, after=(0,))))
    assert told.end_of(1).started_at == 100
    told = Told((0, transfer_order(0, faults=(FAILS,))), (0, run(1, 10, 20, after=(0,))))
    assert told.ends()[1] == (1, "failed", 0)


def test_a_run_fails_or_hangs_after_half_of_its_steps() -> None:
    failed = Told((0, run(0, 10, 30, 60, 100, faults=(FAILS,))))
    assert failed.ends() == [(0, "failed", 30)]
    assert np.count_nonzero(failed.gpu.bytes.view(np.int64)) == 2 * 16
    hung = Told(
        (0, run(0, 10, 30, 60, 100, deadline_at=200, faults=(HANGS,))),
        (50, Stop(0, at_once=True)),
    )
    assert hung.ends() == [(0, "failed", 700)]


def test_a_run_stops_at_once_if_it_must() -> None:
    assert Told((0, run(0, 10, 30)), (15, Stop(0, at_once=True))).ends() == [(0, "cancelled", 15)]


def test_a_stop_for_an_op_that_has_ended_does_nothing() -> None:
    told = Told((0, transfer_order(0)), (5, Stop(0, at_once=True)), (6, Stop(77, at_once=False)))
    assert told.ends() == [(0, "done", 0)]


def test_a_copy_beyond_the_pool_fails_and_the_rank_goes_on() -> None:
    told = Told((0, transfer_order(0, [8], [0])), (0, transfer_order(1, [0], [0], after=(0,))))
    assert told.ends() == [(0, "failed", 0), (1, "failed", 0)]
    assert told.end_of(0).reason == "row 32 lies beyond the 32 rows of 128 bytes"
    assert Told((0, transfer_order(0, [8], [0])), (9, transfer_order(1, [0], [0]))).ends()[1] == (
        1,
        "done",
        9,
    )


def test_what_is_forgotten_still_counts_for_those_that_wait() -> None:
    told = Told(
        (0, forward_order(0, step_ends_ns=(100,))),
        (0, transfer_order(1, faults=(FAILS,))),
        (0, forward_order(2, after=(0, 1))),
        (1, Forget(1)),
    )
    assert [row[:2] for row in told.ends()] == [(1, "failed"), (2, "failed"), (0, "done")]


def test_nothing_is_kept_of_what_is_forgotten() -> None:
    told = Told(
        (0, forward_order(0, step_ends_ns=(100,))),
        (0, forward_order(1, after=(0,))),
        (0, transfer_order(2, after=(0, 1))),
        *((at, Forget(op_id)) for at, op_id in ((100, 1), (100, 0), (101, 2))),
    )
    ops = told.worker._ops  # noqa: SLF001  (a leak shows nowhere else)
    left = (ops._layer_times, ops._outcomes, ops._num_waiting, ops._unwanted)  # noqa: SLF001
    assert left == ({}, {}, {}, set())
    assert told.worker._tasks == {}  # noqa: SLF001


def test_many_ops_take_turns_and_each_has_its_own_time() -> None:
    """Steps of 4, 8, ... 400 ns and as many copies, all begun together."""
    steps = [forward_order(i, step_ends_ns=(4 * i,)) for i in range(1, 101)]
    copies = [transfer_order(200 + i, after=(i,), gate=Gate.LAYER) for i in range(1, 101)]
    orders: list[Order] = [*steps, *copies]
    told = Told(*((0, order) for order in orders))
    at = {row[0]: row[2] for row in told.ends()}
    assert at == {**{i: 4 * i for i in range(1, 101)}, **{200 + i: 4 * i for i in range(1, 101)}}


def test_what_a_forward_has_read_wrong_is_told_with_its_end() -> None:
    told = Told((0, forward_order(6, reads=blocks((2, 1)))), (9, run(7, 10, 20)))
    assert told.end_of(6).num_wrong_bytes > 0
    assert told.end_of(6).first_wrong.startswith("op 6 read ")
    assert (told.end_of(7).num_wrong_bytes, told.end_of(7).first_wrong) == (0, "")


def test_a_run_reads_before_its_first_step() -> None:
    told = Told((0, run(7, 10, 20, reads=blocks((2, 1)))))
    assert told.end_of(7).num_wrong_bytes > 0
