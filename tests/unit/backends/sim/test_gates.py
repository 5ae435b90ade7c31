"""What an op waits for: gates, predecessors that fail, layers behind layers.

A token and a byte take 1 ns each; there are four layers.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.config import FaultConfig, LinkConfig
from kvsim.core.ops import Completion, Gate
from kvsim.errors import MisuseError
from tests.unit.backends.sim.commands import (
    GPU,
    REMOTE_GPU,
    backend,
    cancel,
    drain,
    forward,
    rows,
    transfer,
)

if TYPE_CHECKING:
    from kvsim.backends.sim import SimBackend


def completion(simulator: SimBackend, op_id: int) -> Completion:
    """Run to the end and return the Completion of an op."""
    for answer in drain(simulator):
        if type(answer) is Completion and answer.op_id == op_id:
            return answer
    raise AssertionError(f"op {op_id} was never answered")


def test_a_forward_behind_the_op_gate_starts_after_the_copy() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100))
    simulator.submit(forward(1, 40, after=(0,), gate=Gate.OP))
    assert rows(simulator) == [(0, "done", 0, 100), (1, "done", 100, 140)]


def test_a_forward_that_outlasts_the_copy_hides_all_but_its_first_layer() -> None:
    simulator = backend(record_layers=True)
    simulator.submit(transfer(0, 40))  # layers at 10, 20, 30, 40
    simulator.submit(forward(1, 200, after=(0,)))  # 50 ns a layer
    answer = completion(simulator, 1)
    # The first layer waits for its copy until 10; after that compute is always behind.
    assert (answer.started_at, answer.finished_at) == (10, 210)
    assert answer.layers_finished_at == (60, 110, 160, 210)


def test_a_forward_that_the_copy_outlasts_ends_one_layer_after_it() -> None:
    simulator = backend(record_layers=True)
    simulator.submit(transfer(0, 400))  # layers at 100, 200, 300, 400
    simulator.submit(forward(1, 40, after=(0,)))  # 10 ns a layer
    answer = completion(simulator, 1)
    assert (answer.started_at, answer.finished_at) == (100, 410)
    assert answer.layers_finished_at == (110, 210, 310, 410)


def test_a_forward_is_held_up_by_the_slow_part_of_a_copy() -> None:
    simulator = backend(record_layers=True)
    simulator.submit(transfer(0, 100))
    assert simulator.wait(25) == ()  # its first layer has passed
    for op_id in (1, 2, 3):
        simulator.submit(transfer(op_id, 25))
    simulator.submit(forward(4, 80, after=(0,)))  # 20 ns a layer, from 25 on
    answer = completion(simulator, 4)
    # Four flows share from 25 to 125, when the short ones have passed and 0 has passed 50: its
    # layers pass at 25, 125, 150, 175. Compute: 25..45, 125..145, 150..170, 175..195.
    assert answer.layers_finished_at == (45, 145, 170, 195)
    assert (answer.started_at, answer.finished_at) == (25, 195)


def test_a_forward_waits_for_every_layer_of_several_copies() -> None:
    simulator = backend(record_layers=True)
    simulator.submit(transfer(0, 40))  # layers at 10, 20, 30, 40
    simulator.submit(transfer(1, 120, source=GPU, target=REMOTE_GPU))  # 30, 60, 90, 120
    simulator.submit(forward(2, 160, after=(0, 1)))  # 40 ns a layer
    answer = completion(simulator, 2)
    # 30..70, 70..110, 110..150, 150..190.
    assert answer.layers_finished_at == (70, 110, 150, 190)
    assert answer.started_at == 30


def test_the_layers_of_a_copy_do_not_hold_up_a_forward_that_comes_to_run_after_it() -> None:
    simulator = backend()
    simulator.submit(forward(0, 500))
    simulator.submit(transfer(1, 100))
    simulator.submit(forward(2, 40, after=(1,)))
    assert rows(simulator) == [(1, "done", 0, 100), (0, "done", 0, 500), (2, "done", 500, 540)]


def test_only_the_first_step_of_a_run_waits_for_layers() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 400))
    simulator.submit(forward(1, 40, num_steps=3, after=(0,)))
    # The first step ends at 410, as if it had begun at 370; two more of 40 follow.
    assert completion(simulator, 1).finished_at == 490


def test_an_op_may_name_one_that_has_ended() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 10))
    drain(simulator)
    simulator.submit(forward(1, 40, after=(0,)))
    simulator.submit(transfer(2, 20, after=(0,)))
    assert rows(simulator) == [(2, "done", 10, 30), (1, "done", 10, 50)]


def test_an_op_that_names_one_not_submitted_before_it_is_misuse() -> None:
    simulator = backend()
    with pytest.raises(MisuseError, match="op 3 waits for op 7, not submitted before"):
        simulator.submit(forward(3, 40, after=(7,)))


def test_an_op_fails_in_the_instant_its_predecessor_fails_and_so_does_the_next() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100))
    simulator.submit(forward(1, 40, after=(0,)))
    simulator.submit(transfer(2, 10, after=(1,)))
    simulator.submit(forward(3, 40))
    assert simulator.wait(30) == ()
    simulator.submit(cancel(0))
    answers = drain(simulator)
    assert [(a.op_id, a.finished_at) for a in answers] == [(0, 30), (1, 30), (2, 30), (3, 70)]
    reasons = [a.reason for a in answers if type(a) is Completion]
    assert reasons == [
        "",
        "op 0, which it waits for, ended cancelled",
        "op 1, which it waits for, ended failed",
        "",
    ]


def test_an_op_that_names_one_that_has_failed_fails_at_once() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100))
    simulator.submit(cancel(0))
    drain(simulator)
    simulator.submit(forward(1, 40, after=(0,)))
    simulator.submit(transfer(2, 40, after=(0,)))
    assert rows(simulator) == [(1, "failed", 0, 0), (2, "failed", 0, 0)]


def test_a_long_chain_of_failures_needs_no_deep_recursion() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100))
    for op_id in range(1, 5000):
        simulator.submit(transfer(op_id, 1, after=(op_id - 1,)))
    simulator.submit(cancel(0))
    assert len(simulator.wait(None)) == 5000


def test_a_run_that_was_cut_short_is_done_for_those_that_wait_for_it() -> None:
    simulator = backend()
    simulator.submit(forward(0, 10, num_steps=100))
    simulator.submit(transfer(1, 5, after=(0,)))
    assert simulator.wait(25) == ()
    simulator.submit(cancel(0))
    assert rows(simulator) == [(0, "done", 0, 30), (1, "done", 30, 35)]


@pytest.mark.parametrize(
    ("num_blocks", "end_at"),
    [
        # The send is slow: it begins behind the first layer, at 100, and is never held up again.
        (800, 900),
        # It is fast: its last quarter follows the last layer, at 400.
        (40, 410),
        # As fast as compute: 100 + 400 = 400 + 100.
        (400, 500),
    ],
)
def test_a_send_goes_layer_by_layer_behind_its_forward(num_blocks: int, end_at: int) -> None:
    simulator = backend()
    simulator.submit(forward(0, 400))
    send = transfer(1, num_blocks, source=GPU, target=REMOTE_GPU, after=(0,), gate=Gate.LAYER)
    simulator.submit(send)
    assert rows(simulator) == [(0, "done", 0, 400), (1, "done", 100, end_at)]


def test_a_send_may_be_submitted_before_its_forward_runs_or_while_it_does() -> None:
    simulator = backend()
    simulator.submit(forward(0, 50))
    simulator.submit(forward(1, 400))  # 50..450
    send = transfer(2, 40, source=GPU, target=REMOTE_GPU, after=(1,), gate=Gate.LAYER)
    simulator.submit(send)
    assert len(simulator.wait(None)) == 1
    late = transfer(3, 800, source=REMOTE_GPU, target=GPU, after=(1,), gate=Gate.LAYER)
    simulator.submit(late)
    assert rows(simulator) == [(1, "done", 50, 450), (2, "done", 150, 460), (3, "done", 150, 950)]


def test_a_decode_waits_for_the_layers_of_a_send_behind_a_prefill() -> None:
    simulator = backend(record_layers=True)
    simulator.submit(forward(0, 400))  # layers at 100, 200, 300, 400
    simulator.submit(
        transfer(1, 800, source=GPU, target=REMOTE_GPU, after=(0,), gate=Gate.LAYER)
    )  # 300, 500, 700, 900
    simulator.submit(forward(2, 40, instance=1, after=(1,)))
    assert completion(simulator, 2).layers_finished_at == (310, 510, 710, 910)


def test_a_send_behind_a_forward_that_fails_fails_with_it() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100))
    simulator.submit(forward(1, 400, after=(0,), deadline_at=300))
    send = transfer(2, 10, source=GPU, target=REMOTE_GPU, after=(1,), gate=Gate.LAYER)
    simulator.submit(send)
    # 1 runs from 25 to 425; its send began and is taken back when 1 times out.
    assert rows(simulator) == [
        (0, "done", 0, 100),
        (1, "timed_out", 25, 300),
        (2, "failed", 125, 300),
        (1, "settled", 425, 425),
    ]


def test_a_send_behind_a_run_or_a_copy_starts_after_it() -> None:
    simulator = backend()
    simulator.submit(forward(0, 40, num_steps=2))
    simulator.submit(transfer(1, 30))
    simulator.submit(transfer(2, 20, after=(0,), gate=Gate.LAYER))
    simulator.submit(transfer(3, 20, source=GPU, target=REMOTE_GPU, after=(1,), gate=Gate.LAYER))
    assert rows(simulator) == [
        (1, "done", 0, 30),
        (3, "done", 30, 50),
        (0, "done", 0, 80),
        (2, "done", 80, 100),
    ]


def test_a_send_behind_a_forward_and_a_copy_starts_after_the_copy() -> None:
    simulator = backend()
    simulator.submit(forward(0, 40))
    simulator.submit(transfer(1, 100))
    send = transfer(2, 20, source=GPU, target=REMOTE_GPU, after=(0, 1), gate=Gate.LAYER)
    simulator.submit(send)
    assert rows(simulator) == [(0, "done", 0, 40), (1, "done", 0, 100), (2, "done", 100, 120)]


def test_a_send_behind_a_run_that_was_cut_to_one_step_starts_after_it() -> None:
    simulator = backend()
    simulator.submit(forward(0, 40, num_steps=5))
    simulator.submit(transfer(1, 20, after=(0,), gate=Gate.LAYER))
    simulator.submit(cancel(0))
    assert rows(simulator) == [(0, "done", 0, 40), (1, "done", 40, 60)]


def test_a_send_behind_a_late_forward_is_late_from_its_first_layer_on() -> None:
    late_steps = FaultConfig(delay_rate=1.0, delay_ns=7, kinds=("forward",))
    simulator = backend(faults=late_steps)
    simulator.submit(forward(0, 400))
    simulator.submit(transfer(1, 800, source=GPU, target=REMOTE_GPU, after=(0,), gate=Gate.LAYER))
    # The first layer at 107, 800 bytes.
    assert rows(simulator) == [(0, "done", 0, 407), (1, "done", 107, 907)]


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 20))
def test_a_lone_send_ends_as_if_each_layer_were_sent_by_itself(
    num_tokens: int, num_blocks: int, latency_ns: int
) -> None:
    link = LinkConfig(bytes_per_second=10**9, latency_ns=latency_ns, overhead_ns=0)
    simulator = backend(links=link)
    simulator.submit(forward(0, num_tokens))
    simulator.submit(
        transfer(1, num_blocks, source=GPU, target=REMOTE_GPU, after=(0,), gate=Gate.LAYER)
    )
    sent_at = Fraction(0)
    for layer in range(4):
        computed_at = Fraction(num_tokens * (layer + 1), 4)
        sent_at = max(sent_at, computed_at + latency_ns) + Fraction(num_blocks, 4)
    # The simulator rounds up twice: where the first layer ends and where the last byte has passed.
    assert sent_at <= completion(simulator, 1).finished_at < sent_at + 2
