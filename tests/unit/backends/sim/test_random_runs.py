"""Random commands at random times: each op is answered as the contract says, and nothing hangs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from kvsim.config import FaultConfig, LinkConfig
from kvsim.core.ops import Completion, Forward, Gate, Outcome, Place, Settled, Transfer
from kvsim.cost import LinearCost
from tests.unit.backends.sim.commands import backend, cancel, forward, transfer

if TYPE_CHECKING:
    from kvsim.core.ops import Answer, Command

PLACES = [Place(instance=instance, tier=tier) for instance in (0, 1) for tier in (0, 1)]
COST = LinearCost(step_ns=5, token_ns=3, attention_ns=1, block_bytes=10, num_layers=3)
LINK = LinkConfig(bytes_per_second=10**9, latency_ns=2, overhead_ns=1)
HALF = replace(LINK, full_duplex=False, bytes_per_second=3 * 10**9)
FAULTS = FaultConfig(fail_rate=0.1, delay_rate=0.1, hang_rate=0.1, delay_ns=9, settle_ns=20)


@st.composite
def schedules(draw: st.DrawFn) -> list[tuple[int, Command]]:
    """Return commands, each with the time to wait before it; ids rise, `after` looks back."""
    schedule: list[tuple[int, Command]] = []
    num_ops = 0
    for _ in range(draw(st.integers(1, 25))):
        wait_ns = draw(st.sampled_from([0, 0, 0, 1, 7, 30]))
        if num_ops and draw(st.integers(0, 4)) == 0:
            schedule.append((wait_ns, cancel(draw(st.integers(0, num_ops - 1)))))
            continue
        earlier = st.lists(st.integers(0, num_ops - 1), max_size=3) if num_ops else st.just([])
        after = tuple(draw(earlier))
        gate = draw(st.sampled_from(Gate))
        deadline_at = draw(st.none() | st.integers(0, 300))
        if draw(st.booleans()):
            command: Command = forward(
                num_ops,
                draw(st.integers(0, 8)),
                instance=draw(st.integers(0, 1)),
                num_steps=draw(st.sampled_from([1, 1, 2, 5])),
                after=after,
                gate=gate,
                deadline_at=deadline_at,
            )
        else:
            source, target = draw(st.permutations(PLACES))[:2]
            command = transfer(
                num_ops,
                draw(st.integers(0, 6)),
                source=source,
                target=target,
                after=after,
                gate=gate,
                deadline_at=deadline_at,
            )
        num_ops += 1
        schedule.append((wait_ns, command))
    return schedule


def play(
    schedule: list[tuple[int, Command]],
    *,
    faults: FaultConfig | None,
    links: LinkConfig = LINK,
    record_layers: bool = False,
) -> list[Answer]:
    """Submit the schedule, run to the end, and return the answers; check each batch on the way."""
    simulator = backend(
        COST, links=links, num_ranks=2, faults=faults, seed=5, record_layers=record_layers
    )
    answers: list[Answer] = []

    def take(until: int | None) -> bool:
        before = simulator.now()
        batch = simulator.wait(until)
        now = simulator.now()
        assert now >= before
        assert all(answer.finished_at == now for answer in batch)
        assert [answer.op_id for answer in batch] == sorted(answer.op_id for answer in batch)
        assert batch or until is None or now == max(before, until)
        answers.extend(batch)
        return bool(batch)

    for wait_ns, command in schedule:
        until = simulator.now() + wait_ns
        while wait_ns and simulator.now() < until:
            take(until)
        simulator.submit(command)
    while take(None):
        pass
    return answers


def completions(answers: list[Answer]) -> dict[int, Completion]:
    """Return the completions by op."""
    return {answer.op_id: answer for answer in answers if type(answer) is Completion}


@given(schedules(), st.sampled_from([None, FAULTS]), st.sampled_from([LINK, HALF]))
def test_each_op_has_one_completion_and_settles_once_if_it_timed_out(
    schedule: list[tuple[int, Command]], faults: FaultConfig | None, links: LinkConfig
) -> None:
    answers = play(schedule, faults=faults, links=links)
    num_ops = sum(type(command) in (Forward, Transfer) for _, command in schedule)
    counts = Counter(answer.op_id for answer in answers if type(answer) is Completion)
    assert counts == dict.fromkeys(range(num_ops), 1)
    timed_out = {
        op_id: answer.finished_at
        for op_id, answer in completions(answers).items()
        if answer.outcome is Outcome.TIMED_OUT
    }
    settled = [answer for answer in answers if type(answer) is Settled]
    assert sorted(answer.op_id for answer in settled) == sorted(timed_out)
    assert all(answer.finished_at >= timed_out[answer.op_id] for answer in settled)
    seen: set[int] = set()
    for answer in answers:  # a Settled comes after its Completion
        assert (answer.op_id in seen) == (type(answer) is Settled)
        seen.add(answer.op_id)


@given(schedules(), st.sampled_from([None, FAULTS]))
def test_gates_and_queues_are_kept(
    schedule: list[tuple[int, Command]], faults: FaultConfig | None
) -> None:
    answers = play(schedule, faults=faults)
    done = completions(answers)
    at_rest = {answer.op_id: answer.finished_at for answer in answers}
    free_at = {0: 0, 1: 0}
    for _, command in schedule:
        if type(command) not in (Forward, Transfer):
            continue
        assert isinstance(command, Forward | Transfer)
        answer = done[command.op_id]
        for predecessor in (done[op_id] for op_id in command.after):
            if answer.outcome is Outcome.DONE:
                assert predecessor.outcome is Outcome.DONE
                assert answer.finished_at >= predecessor.finished_at
                if command.gate is Gate.OP:
                    assert answer.started_at >= predecessor.finished_at
        if isinstance(command, Forward) and answer.outcome is Outcome.DONE:
            assert 1 <= answer.steps_done <= command.num_steps
            assert answer.started_at >= free_at[command.instance]
            free_at[command.instance] = at_rest[command.op_id]


@given(schedules(), st.sampled_from([None, FAULTS]))
def test_recording_layers_changes_nothing_else(
    schedule: list[tuple[int, Command]], faults: FaultConfig | None
) -> None:
    plain = play(schedule, faults=faults)
    recorded = play(schedule, faults=faults, record_layers=True)
    stripped = [
        answer._replace(layers_finished_at=()) if type(answer) is Completion else answer
        for answer in recorded
    ]
    assert stripped == plain
    for answer in completions(recorded).values():
        layers = answer.layers_finished_at
        if answer.outcome is Outcome.DONE:
            assert len(layers) == 3
            assert list(layers) == sorted(layers)
            assert answer.started_at <= layers[0]
            assert layers[-1] == answer.finished_at
        else:
            assert layers == ()
