"""Seeded faults: on which op and rank, and how the op ends then."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvsim.backends.faults import FaultPlan, plan_faults
from kvsim.config import FaultConfig
from kvsim.core.ops import Completion, Outcome
from tests.unit.backends.sim.commands import (
    backend,
    cancel,
    drain,
    forward,
    rows,
    transfer,
)

ALWAYS_FAIL = FaultConfig(fail_rate=1.0)
ALWAYS_LATE = FaultConfig(delay_rate=1.0, delay_ns=7)
ALWAYS_HANG = FaultConfig(hang_rate=1.0, settle_ns=40)


def test_without_rates_there_is_no_plan() -> None:
    assert plan_faults(None, seed=1, num_ranks=4) is None
    assert plan_faults(FaultConfig(), seed=1, num_ranks=4) is None


def test_an_op_that_fails_takes_its_time_and_names_the_rank() -> None:
    simulator = backend(faults=ALWAYS_FAIL, num_ranks=2)
    simulator.submit(transfer(0, 100))
    simulator.submit(forward(1, 50))
    simulator.submit(forward(2, 50))
    assert rows(simulator) == [(1, "failed", 0, 50), (0, "failed", 0, 100), (2, "failed", 50, 100)]
    simulator.submit(transfer(3, 1))
    (answer,) = drain(simulator)
    assert isinstance(answer, Completion)
    assert answer.reason == "rank 0 failed (injected fault)"


def test_an_op_with_a_late_rank_ends_later_and_blocks_its_instance() -> None:
    simulator = backend(faults=ALWAYS_LATE, num_ranks=2)
    simulator.submit(transfer(0, 100))
    simulator.submit(forward(1, 50))
    simulator.submit(forward(2, 50))
    assert rows(simulator) == [(1, "done", 0, 57), (0, "done", 0, 107), (2, "done", 57, 114)]


def test_the_layers_of_a_late_copy_are_late() -> None:
    late_copies = FaultConfig(delay_rate=1.0, delay_ns=7, kinds=("transfer",))
    simulator = backend(faults=late_copies, record_layers=True)
    simulator.submit(transfer(0, 400))
    simulator.submit(forward(1, 40, after=(0,)))
    copy, step = drain(simulator)
    assert isinstance(copy, Completion)
    assert isinstance(step, Completion)
    assert copy.layers_finished_at == (107, 207, 307, 407)
    assert step.layers_finished_at == (117, 217, 317, 417)


def test_a_late_run_that_is_cut_short_ends_late_after_its_boundary() -> None:
    simulator = backend(faults=ALWAYS_LATE)
    simulator.submit(forward(0, 10, num_steps=5))
    simulator.wait(12)
    simulator.submit(cancel(0))
    assert rows(simulator) == [(0, "done", 0, 27)]
    simulator.submit(forward(1, 10, num_steps=2))
    simulator.wait(27 + 22)  # all steps are done, a rank is late
    simulator.submit(cancel(1))
    assert rows(simulator) == [(1, "done", 27, 54)]


def test_a_hung_op_times_out_and_settles_later() -> None:
    simulator = backend(faults=ALWAYS_HANG)
    simulator.submit(transfer(0, 100, deadline_at=200))
    simulator.submit(forward(1, 10, deadline_at=30))
    simulator.submit(forward(2, 10, deadline_at=1000))
    assert rows(simulator) == [
        (1, "timed_out", 0, 30),
        (1, "settled", 70, 70),
        (0, "timed_out", 0, 200),
        (0, "settled", 240, 240),
        (2, "timed_out", 70, 1000),
        (2, "settled", 1040, 1040),
    ]


def test_a_hung_copy_is_off_the_link_when_it_has_settled() -> None:
    hung_copies = FaultConfig(hang_rate=1.0, settle_ns=10)
    simulator = backend(faults=hung_copies)
    simulator.submit(transfer(0, 1000, deadline_at=100))
    simulator.submit(transfer(1, 100, deadline_at=500))
    assert rows(simulator) == [
        (0, "timed_out", 0, 100),
        (0, "settled", 110, 110),
        (1, "timed_out", 0, 500),
        (1, "settled", 510, 510),
    ]


def test_a_hung_op_does_not_hear_a_cancel() -> None:
    simulator = backend(faults=ALWAYS_HANG)
    simulator.submit(transfer(0, 100, deadline_at=200))
    simulator.submit(forward(1, 10, num_steps=5, deadline_at=200))
    simulator.submit(forward(2, 10, deadline_at=200))
    simulator.wait(15)
    for op_id in (0, 1, 2):
        simulator.submit(cancel(op_id))
    assert rows(simulator) == [
        (2, "cancelled", 15, 15),  # it had not started
        (0, "timed_out", 0, 200),
        (1, "timed_out", 0, 200),
        (0, "settled", 240, 240),
        (1, "settled", 240, 240),
    ]


def test_a_hung_op_without_a_deadline_fails_instead() -> None:
    simulator = backend(faults=ALWAYS_HANG)
    simulator.submit(transfer(0, 100))
    (answer,) = drain(simulator)
    assert isinstance(answer, Completion)
    assert answer.outcome is Outcome.FAILED
    assert answer.reason == "rank 0 hung and the op has no deadline (injected fault)"


def test_kinds_that_are_not_named_have_no_faults() -> None:
    simulator = backend(faults=FaultConfig(fail_rate=1.0, kinds=("forward",)))
    simulator.submit(transfer(0, 100))
    simulator.submit(forward(1, 10))
    assert rows(simulator) == [(1, "failed", 0, 10), (0, "done", 0, 100)]


def outcomes(op_ids: list[int], *, seed: int, num_ranks: int = 4) -> dict[int, str]:
    """Return what the plan says of each op, asked in this order."""
    plan = FaultPlan(
        FaultConfig(fail_rate=0.1, delay_rate=0.1, hang_rate=0.1), seed=seed, num_ranks=num_ranks
    )
    found = {}
    for op_id in op_ids:
        fault = plan.fault(transfer(op_id, 1, deadline_at=1))
        if fault is not None:
            found[op_id] = f"{fault.delay_ns} {fault.reason} {fault.settle_ns}"
    return found


def test_a_fault_depends_on_seed_op_and_rank_and_not_on_the_order_of_calls() -> None:
    forwards = outcomes(list(range(200)), seed=3)
    backwards = outcomes(list(range(199, -1, -1)), seed=3)
    assert forwards == backwards
    assert forwards != outcomes(list(range(200)), seed=4)
    # 1 - 0.7**4 = 76 % of 200 ops, give or take four standard deviations of 6.
    assert 128 <= len(forwards) <= 176


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_a_fault_does_not_depend_on_the_hash_seed(hash_seed: str) -> None:
    program = (
        "from kvsim.backends.faults import FaultPlan;"
        "from kvsim.config import FaultConfig;"
        "from tests.unit.backends.sim.commands import transfer;"
        "plan = FaultPlan(FaultConfig(fail_rate=0.5), seed=7, num_ranks=1);"
        "print([op for op in range(40) if plan.fault(transfer(op, 1))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=True,
        env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
    )
    plan = FaultPlan(FaultConfig(fail_rate=0.5), seed=7, num_ranks=1)
    here = [op_id for op_id in range(40) if plan.fault(transfer(op_id, 1))]
    assert done.stdout.decode().strip() == str(here)
