"""The backend: its clock, its queues, Cancel and deadlines. A token takes 1 ns, a byte too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.sim import SimBackend
from kvsim.backends.sim.forwards import first_boundary
from kvsim.config import LinkConfig
from kvsim.core.ops import Completion, Gate
from kvsim.cost import LinearCost
from kvsim.errors import ConfigError, MisuseError
from kvsim.presets import find_model
from tests.unit.backends.sim.commands import (
    ONE_BYTE_A_NS,
    backend,
    cancel,
    drain,
    forward,
    row,
    rows,
    transfer,
)


def steps_done(simulator: SimBackend) -> list[tuple[int, int, int]]:
    """Return (op id, finish, steps done) of the completions that are left."""
    return [
        (answer.op_id, answer.finished_at, answer.steps_done)
        for answer in drain(simulator)
        if type(answer) is Completion
    ]


def test_time_moves_inside_wait_only() -> None:
    simulator = backend()
    assert simulator.now() == 0
    simulator.submit(forward(0, 100))
    assert simulator.now() == 0
    assert simulator.wait(30) == ()
    assert simulator.now() == 30
    assert len(simulator.wait(None)) == 1
    assert simulator.now() == 100


def test_wait_with_nothing_in_flight_returns_at_once() -> None:
    simulator = backend()
    assert simulator.wait(None) == ()
    assert simulator.now() == 0
    assert simulator.wait(5) == ()
    assert simulator.now() == 5
    assert simulator.wait(3) == ()
    assert simulator.now() == 5


def test_an_answer_due_exactly_at_the_limit_is_returned() -> None:
    simulator = backend()
    simulator.submit(forward(0, 100))
    assert [row(answer) for answer in simulator.wait(100)] == [(0, "done", 0, 100)]


def test_wait_returns_all_answers_of_one_instant_and_no_more() -> None:
    simulator = backend()
    simulator.submit(forward(3, 100))
    simulator.submit(forward(2, 100, instance=1))
    simulator.submit(transfer(1, 100))
    simulator.submit(forward(4, 0))  # behind 3, takes no time
    simulator.submit(forward(5, 1))
    assert [answer.op_id for answer in simulator.wait(None)] == [1, 2, 3, 4]
    assert [answer.op_id for answer in simulator.wait(None)] == [5]


def test_the_forwards_of_an_instance_run_in_submission_order() -> None:
    simulator = backend()
    simulator.submit(forward(7, 100))
    simulator.submit(forward(3, 10))
    simulator.submit(forward(5, 10, instance=1))
    assert rows(simulator) == [(5, "done", 0, 10), (7, "done", 0, 100), (3, "done", 100, 110)]


def test_the_first_forward_holds_the_queue_while_it_waits() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100))
    simulator.submit(forward(1, 10, after=(0,), gate=Gate.OP))
    simulator.submit(forward(2, 10))
    assert rows(simulator) == [(0, "done", 0, 100), (1, "done", 100, 110), (2, "done", 110, 120)]


def test_a_prompt_costs_its_tokens_and_what_they_attend_to() -> None:
    simulator = backend(LinearCost(step_ns=1000, token_ns=10, attention_ns=1))
    simulator.submit(forward(0, 4))
    # 1,000 + 4 * 10 + (1 + 2 + 3 + 4).
    assert rows(simulator) == [(0, "done", 0, 1050)]


def test_a_4096_token_prefix_takes_21_47_ms_over_25_gigabytes_a_second() -> None:
    # 8 blocks of 512 tokens of 131,072 bytes: 21,474,836.48 ns.
    block_bytes = 512 * find_model("llama-3.1-8b").kv_bytes_per_token(16)
    pcie = LinkConfig(bytes_per_second=25_000_000_000, latency_ns=0, overhead_ns=0)
    simulator = backend(LinearCost(block_bytes=block_bytes), links=pcie)
    simulator.submit(transfer(0, 8))
    assert rows(simulator) == [(0, "done", 0, 21_474_837)]


def test_the_steps_of_a_run_are_counted() -> None:
    simulator = backend(record_layers=True)
    simulator.submit(forward(0, 10, num_steps=5))
    (answer,) = drain(simulator)
    assert isinstance(answer, Completion)
    assert (answer.finished_at, answer.steps_done) == (50, 5)
    # Of its last step, 40 to 50: 42.5, 45, 47.5, 50.
    assert answer.layers_finished_at == (43, 45, 48, 50)


@pytest.mark.parametrize(
    ("at", "steps"),
    [(0, 1), (1, 1), (10, 1), (11, 2), (39, 4), (40, 4), (41, 5), (49, 5)],
)
def test_a_cancelled_run_ends_at_its_next_step_boundary(at: int, steps: int) -> None:
    simulator = backend()
    simulator.submit(forward(0, 10, num_steps=5))
    simulator.wait(at)
    simulator.submit(cancel(0))
    assert steps_done(simulator) == [(0, 10 * steps, steps)]


def test_a_cancelled_run_of_growing_steps_ends_at_a_boundary_too() -> None:
    simulator = backend(LinearCost(token_ns=10, attention_ns=1))
    simulator.submit(forward(0, 2, num_steps=100))
    # Steps of 20, 22, 24, 26: boundaries at 20, 42, 66, 92.
    simulator.wait(67)
    simulator.submit(cancel(0))
    simulator.submit(cancel(0))
    assert steps_done(simulator) == [(0, 92, 4)]


def test_a_single_step_is_not_cut_short() -> None:
    simulator = backend()
    simulator.submit(forward(0, 10))
    simulator.submit(cancel(0))
    assert steps_done(simulator) == [(0, 10, 1)]


def test_a_run_that_waits_for_layers_is_cut_to_one_step() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100))
    simulator.submit(forward(1, 40, num_steps=10, after=(0,)))
    simulator.wait(50)
    simulator.submit(cancel(1))
    assert steps_done(simulator) == [(0, 100, 0), (1, 110, 1)]


def test_a_cancelled_op_that_has_not_started_ends_at_once() -> None:
    simulator = backend()
    simulator.submit(forward(0, 100))
    simulator.submit(forward(1, 10))
    simulator.submit(forward(2, 10))
    simulator.submit(transfer(3, 10, after=(0,)))
    simulator.wait(30)
    simulator.submit(cancel(1))
    simulator.submit(cancel(3))
    assert rows(simulator) == [
        (1, "cancelled", 30, 30),
        (3, "cancelled", 30, 30),
        (0, "done", 0, 100),
        (2, "done", 100, 110),
    ]


def test_a_cancel_of_an_unknown_or_ended_op_is_ignored() -> None:
    simulator = backend()
    simulator.submit(cancel(9))
    simulator.submit(transfer(0, 10))
    drain(simulator)
    simulator.submit(cancel(0))
    assert simulator.wait(None) == ()


def test_a_cancel_during_the_latency_of_a_transfer_keeps_it_off_the_link() -> None:
    simulator = backend(links=LinkConfig(bytes_per_second=10**9, latency_ns=10, overhead_ns=0))
    simulator.submit(transfer(0, 10))
    simulator.submit(transfer(1, 10))
    simulator.submit(cancel(0))
    assert rows(simulator) == [(0, "cancelled", 0, 0), (1, "done", 0, 20)]


def test_an_op_that_misses_its_deadline_is_answered_twice() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100, deadline_at=60))
    simulator.submit(forward(1, 100, deadline_at=60))
    simulator.submit(forward(2, 10))
    # The Forward blocks its instance until it has settled.
    assert rows(simulator) == [
        (0, "timed_out", 0, 60),
        (1, "timed_out", 0, 60),
        (0, "settled", 100, 100),
        (1, "settled", 100, 100),
        (2, "done", 100, 110),
    ]


def test_an_op_that_ends_in_the_instant_of_its_deadline_has_met_it() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100, deadline_at=100))
    simulator.submit(forward(1, 100, deadline_at=100))
    assert rows(simulator) == [(0, "done", 0, 100), (1, "done", 0, 100)]


def test_an_op_that_has_not_started_by_its_deadline_never_does() -> None:
    simulator = backend()
    simulator.submit(forward(0, 100))
    simulator.submit(forward(1, 50, deadline_at=60))
    simulator.submit(transfer(2, 10, after=(0,), deadline_at=60))
    simulator.submit(forward(3, 10))
    assert rows(simulator) == [
        (1, "timed_out", 60, 60),
        (1, "settled", 60, 60),
        (2, "timed_out", 60, 60),
        (2, "settled", 60, 60),
        (0, "done", 0, 100),
        (3, "done", 100, 110),
    ]


def test_a_deadline_in_the_past_is_missed_now() -> None:
    simulator = backend()
    simulator.wait(50)
    simulator.submit(transfer(0, 10, deadline_at=20))
    assert rows(simulator) == [(0, "timed_out", 50, 50), (0, "settled", 60, 60)]


def test_those_that_wait_for_an_op_fail_when_it_times_out() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100, deadline_at=60))
    simulator.submit(forward(1, 10, after=(0,)))
    assert simulator.wait(None)
    assert simulator.now() == 60
    simulator.submit(forward(2, 10, after=(0,)))
    assert rows(simulator) == [(2, "failed", 60, 60), (0, "settled", 100, 100)]


def test_a_run_cut_short_before_its_deadline_meets_it_and_later_misses_it() -> None:
    simulator = backend()
    simulator.submit(forward(0, 10, num_steps=10, deadline_at=45))
    simulator.wait(32)
    simulator.submit(cancel(0))
    simulator.submit(forward(1, 10, num_steps=10, deadline_at=75))
    simulator.wait(40)
    simulator.wait(71)
    simulator.submit(cancel(1))
    # 1 runs from 40; its boundary after 71 is 80.
    assert rows(simulator) == [(1, "timed_out", 40, 75), (1, "settled", 80, 80)]


def test_a_cancel_after_the_deadline_is_ignored() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100, deadline_at=60))
    simulator.wait(60)
    simulator.submit(cancel(0))
    assert rows(simulator) == [(0, "settled", 100, 100)]


def test_an_op_id_in_flight_is_not_taken_twice() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100))
    with pytest.raises(MisuseError, match="op 0 was submitted twice"):
        simulator.submit(transfer(0, 100))


def test_a_closed_backend_has_forgotten_everything() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100))
    simulator.submit(forward(1, 100))
    simulator.close()
    simulator.close()
    assert simulator.wait(None) == ()
    with pytest.raises(MisuseError, match="the backend is closed"):
        simulator.submit(transfer(2, 100))


def test_there_is_at_least_one_rank() -> None:
    with pytest.raises(ConfigError, match="num_ranks must be at least 1, not 0"):
        SimBackend(LinearCost(), links=ONE_BYTE_A_NS, num_ranks=0)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(0, 2000))
def test_the_boundary_equals_a_search_through_all_steps(steps: list[int], spent_ns: int) -> None:
    ends = [sum(steps[: index + 1]) for index in range(len(steps))]
    wanted = next((index for index, end in enumerate(ends, 1) if end >= spent_ns), len(ends))
    assert first_boundary(lambda index: ends[index - 1], len(ends), spent_ns) == wanted
