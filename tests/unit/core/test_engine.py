"""The loop: what it calls, when it ends, and that it never waits for what will not come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from kvsim.config import CacheConfig, FaultConfig, SchedulerConfig
from kvsim.core.engine import run
from kvsim.core.ops import Cancel, Completion, Outcome
from kvsim.errors import StalledError
from tests.unit.core.stage import Engine, ask, engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ops import Answer, Command


def answer(op_id: int) -> Completion:
    return Completion(op_id=op_id, outcome=Outcome.DONE, started_at=0, finished_at=0)


@dataclass
class Script:
    """A decider and a backend that follow a script and write down what they are asked."""

    steps: list[list[Command]]
    wakeups: list[int | None]
    answers: list[list[Answer]]
    calls: list[object] = field(default_factory=list)
    turns: list[object] = field(default_factory=list)
    time: int = 0

    def has_work(self) -> bool:
        return bool(self.steps)

    def step(self, now: int) -> Sequence[Command]:
        self.calls.append(("step", now))
        return self.steps.pop(0)

    def next_wakeup_at(self) -> int | None:
        return self.wakeups.pop(0)

    def settle(self, answer: Answer) -> None:
        self.calls.append(("settle", answer.op_id))

    def now(self) -> int:
        self.time += 1
        return self.time

    def submit(self, command: Command) -> None:
        self.calls.append(("submit", command.op_id))

    def wait(self, until: int | None) -> Sequence[Answer]:
        self.calls.append(("wait", until))
        return self.answers.pop(0)

    def close(self) -> None:
        self.calls.append("close")

    def turn(self, now: int, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
        self.turns.append((now, [c.op_id for c in commands], [a.op_id for a in answers]))


def test_a_turn_decides_submits_waits_and_settles_in_this_order() -> None:
    script = Script(
        steps=[[Cancel(op_id=1), Cancel(op_id=2)], [Cancel(op_id=3)]],
        wakeups=[50, None],
        answers=[[answer(1), answer(2)], [answer(3)]],
    )
    assert run(script, script, observer=script) == 2
    assert script.calls == [
        *[("step", 1), ("submit", 1), ("submit", 2), ("wait", 50), ("settle", 1), ("settle", 2)],
        *[("step", 2), ("submit", 3), ("wait", None), ("settle", 3)],
    ]
    assert script.turns == [(1, [1, 2], [1, 2]), (2, [3], [3])]


def test_without_work_the_loop_does_nothing() -> None:
    script = Script(steps=[], wakeups=[], answers=[])
    assert run(script, script) == 0
    assert script.calls == []


def test_a_turn_in_which_only_time_passes_is_no_stall() -> None:
    script = Script(steps=[[], [Cancel(op_id=1)]], wakeups=[9, None], answers=[[], [answer(1)]])
    assert run(script, script) == 2


def test_work_that_nothing_will_ever_move_is_a_stall() -> None:
    script = Script(steps=[[], []], wakeups=[None], answers=[[]])
    with pytest.raises(StalledError, match="work is left at 1 ns, but nothing is in flight"):
        run(script, script)


def test_time_passes_to_the_next_arrival_when_all_is_quiet() -> None:
    stage = engine(ask(0, range(4), at=100), ask(1, range(4), at=10_000), gpu=2).play()
    assert [record.admitted_at for record in stage.records.values()] == [100, 10_000]
    assert [turn.now for turn in stage.turns] == [0, 100, 114, 10_000]


def test_no_requests_are_no_work() -> None:
    assert engine(gpu=2).play().turns == []


def test_a_write_back_that_nobody_waits_for_any_more_is_still_settled() -> None:
    # 1 needs the blocks of 0, which go down from 100 to 120; its client gives up at 105.
    stage = engine(
        ask(0, range(8)),
        ask(1, range(20, 28), at=100, cancelled_at=105),
        ask(2, range(40, 48), at=500),
        gpu=2,
        cpu=2,
    ).play()
    assert [turn.now for turn in stage.turns if turn.answers] == [0, 105, 500]
    # 2 finds the room made, and does not wait.
    assert stage.records[2].admitted_at == 500
    assert stage.statuses == {0: "finished", 1: "cancelled", 2: "finished"}


def test_the_last_write_back_is_waited_for() -> None:
    stage = engine(
        ask(0, range(8)), ask(1, range(20, 28), at=100, cancelled_at=105), gpu=2, cpu=2
    ).play()
    assert not stage.manager.has_open_ops
    assert stage.manager.num_free_blocks() == 2


@pytest.mark.parametrize("kind", ["fail", "hang"])
def test_an_idle_instance_whose_write_backs_never_succeed_comes_to_an_end(kind: str) -> None:
    faults = FaultConfig(
        fail_rate=float(kind == "fail"), hang_rate=float(kind == "hang"), kinds=("transfer",)
    )
    config = CacheConfig(
        block_size=4, tier_blocks=(6, 6), swap_batch_blocks=6, low_watermark_blocks=6
    )
    requests = [ask(i, range(20 * i, 20 * i + 16), at=1000 * i) for i in range(3)]
    scheduler = SchedulerConfig(decode_reserve_blocks=0, transfer_timeout_ns=50)
    stage = Engine(requests, config, scheduler).play(faults=faults)
    assert set(stage.statuses.values()) == {"finished"}
    assert len(stage.turns) < 40


def test_a_broken_link_costs_hits_and_nothing_else() -> None:
    requests = [ask(i, range(1, 9) if i % 2 else range(21, 29), at=100 * i) for i in range(6)]
    whole = engine(*requests, gpu=2, cpu=8).play()
    broken = engine(*requests, gpu=2, cpu=8).play(
        faults=FaultConfig(fail_rate=1.0, kinds=("transfer",))
    )
    assert set(broken.statuses.values()) == {"finished"}
    assert sum(record.num_cpu_hit_blocks for record in whole.records.values()) > 0
    assert sum(record.num_cpu_hit_blocks for record in broken.records.values()) == 0
