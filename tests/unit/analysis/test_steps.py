"""The frames of steps and residency, by hand and against the manager."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.analysis.frames import frame_of
from kvsim.analysis.occupancy import BlockUse
from kvsim.analysis.steps import RunLog, residency_frame, steps_frame
from kvsim.analysis.timeline import TimelineBackend, TurnRecord
from kvsim.backends.sim import SimBackend
from kvsim.config import FaultConfig
from kvsim.core.engine import run
from kvsim.core.manager import CacheManager
from kvsim.core.ops import Forward
from kvsim.core.residency import INCOMING, LEAVING, READY
from kvsim.core.scheduler import Scheduler
from kvsim.errors import UserError
from kvsim.policies import policy_factory
from kvsim.testing import EventMirror
from tests.property.scheduler_machine import COST, LINK, make_story
from tests.unit.stories import back_from_below, three_prompts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ops import Command


def test_a_step_says_what_it_computed_and_what_the_blocks_were_used_for() -> None:
    result = kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=3, events=True)
    steps = result.steps
    # The third prompt is found below as a whole, and computes its last token behind the copy.
    assert steps["num_prefill_tokens"].tolist() == [12, 12, 1]
    assert steps["num_awaited_ops"].tolist() == [0, 0, 1]
    assert steps["num_cpu_hit_blocks"].tolist() == [0, 0, 3]
    assert steps["num_admitted"].tolist() == [1, 1, 1]
    # The blocks that a step will write are reserved as it is submitted; nothing else fits.
    assert steps["num_gpu_incoming_blocks"].tolist() == [3, 3, 3]
    assert steps["num_gpu_free_blocks"].tolist() == [0, 0, 0]
    # abc went down for the second prompt, def was dropped for the third: its place was taken.
    assert steps["num_cpu_ready_blocks"].tolist() == [0, 3, 3]
    assert steps["outcome"].tolist() == ["done"] * 3
    assert (steps["started_at_ns"] >= steps["submitted_at_ns"]).all()


def test_waiting_and_running_are_counted_after_the_step_has_decided() -> None:
    trace = back_from_below()
    together = replace(
        trace,
        requests=tuple(replace(each, arrived_at=0, num_output_tokens=2) for each in trace.requests),
    )
    result = kvsim.replay(together, gpu_blocks=4, decode_reserve_blocks=1, events=True)
    steps = result.steps
    # Each needs three blocks and one of reserve: one runs, the others wait.
    assert steps["num_running"].max() == 1
    assert steps["num_waiting"].iloc[0] == 2
    assert steps["num_waiting"].iloc[-1] == 0
    assert steps["num_steps_done"].sum() == 2 * 3  # two tokens each


def test_residency_has_a_row_for_every_change_and_counts_all_blocks() -> None:
    result = kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=3, events=True)
    frame = result.residency
    uses = [name for name in frame.columns if name.startswith("num_")]
    assert (frame[uses].sum(axis=1) == frame["capacity_blocks"]).all()
    gpu = frame[frame["tier"] == "gpu"].set_index("at_ns")
    # At 1 s the second prompt needs all three: abc leaves.
    assert gpu.loc[10**9, "num_leaving_blocks"] == 3
    assert frame["at_ns"].is_monotonic_increasing
    last = frame.groupby("tier").last()
    assert last["num_ready_blocks"].to_dict() == {"gpu": 3, "cpu": 0}  # exclusive: back above


def test_the_capacity_of_a_tier_that_was_resized_is_the_one_it_has_then() -> None:
    trace = back_from_below()
    orders = (f"{trace.requests[1].arrived_at - 1}ns resize cpu=5",)
    result = kvsim.replay(trace, gpu_blocks=3, cpu_blocks=3, events=True, interventions=orders)
    frame = result.residency
    # Three blocks before the second prompt comes, five from then on; the GPU tier has three.
    assert frame.groupby("tier")["capacity_blocks"].unique().map(list).to_dict() == {
        "cpu": [3, 5],
        "gpu": [3],
    }


def test_an_empty_run_keeps_the_columns_and_their_types() -> None:
    log = RunLog(events=[], turns=[], requests=[], tier_blocks=(3, 2), clock="virtual")
    full = kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=3, events=True)
    assert steps_frame(log).dtypes.equals(full.steps.dtypes)
    empty = frame_of([], {str(name): str(kind) for name, kind in full.residency.dtypes.items()})
    assert empty.dtypes.equals(residency_frame(log).dtypes)


def test_frames_need_events_and_a_clock() -> None:
    with pytest.raises(UserError, match="events=True"):
        _ = kvsim.replay(three_prompts(), gpu_blocks=5).steps
    with pytest.raises(UserError, match="no clock"):
        _ = kvsim.replay(three_prompts(), gpu_blocks=5, instant=True, events=True).residency


class _Clerk:
    """A `Decider` that writes down what manager and queue have when a Forward is submitted."""

    def __init__(self, manager: CacheManager, scheduler: Scheduler) -> None:
        self.manager, self.scheduler = manager, scheduler
        self.rows: list[dict[str, int]] = []
        self.has_work = scheduler.has_work
        self.next_wakeup_at = scheduler.next_wakeup_at
        self.settle = scheduler.settle

    def step(self, now: int) -> Sequence[Command]:
        commands = self.scheduler.step(now)
        if any(isinstance(command, Forward) for command in commands):
            self.rows.append(self._row())
        return commands

    def _row(self) -> dict[str, int]:
        cache = self.manager._cache  # noqa: SLF001
        row = {
            "num_waiting": len(self.scheduler._queue.waiting),  # noqa: SLF001
            "num_running": len(cache.live),
        }
        for tier, name in zip(cache.tiers, ("gpu", "cpu", "disk"), strict=False):
            num_in = tier.copies.num_in
            row |= {
                f"num_{name}_free_blocks": len(tier.pool.free),
                f"num_{name}_ready_blocks": num_in[READY],
                f"num_{name}_incoming_blocks": num_in[INCOMING],
                f"num_{name}_leaving_blocks": num_in[LEAVING],
                f"num_{name}_quarantined_blocks": tier.pool.num_quarantined,
            }
        return row


@pytest.mark.parametrize("seed", range(12))
def test_every_row_is_what_the_manager_had(seed: int) -> None:
    story = make_story(Random(seed), max_requests=12)
    mirror = EventMirror(3)
    _, make, _ = policy_factory(story.policy)
    manager = CacheManager(
        story.cache,
        make,
        rng=Random(0),
        transfer_timeout_ns=story.scheduler.transfer_timeout_ns,
        sink=mirror,
    )
    scheduler = Scheduler(manager, story.requests, story.scheduler, sink=mirror)
    turns: list[TurnRecord] = []
    rate = 0.05 * (seed % 3)
    faults = FaultConfig(fail_rate=rate, hang_rate=rate, settle_ns=9)
    backend = TimelineBackend(
        SimBackend(COST, links=LINK, faults=faults, seed=seed), mirror.events, turns
    )
    clerk = _Clerk(manager, scheduler)
    run(clerk, backend)
    backend.close()
    log = RunLog(
        events=mirror.events,
        turns=turns,
        requests=story.requests,
        tier_blocks=tuple(filter(None, story.cache.tier_blocks)),
        clock="virtual",
    )
    steps = steps_frame(log)
    assert len(steps) == len(clerk.rows) > 0
    for name in clerk.rows[0]:
        assert steps[name].tolist() == [row[name] for row in clerk.rows], name
    assert not steps[f"num_gpu_{BlockUse.DETACHED}_blocks"].any()


def test_the_turns_that_are_kept_change_nothing() -> None:
    plain = kvsim.replay("sample:chat", limit=40, gpu_blocks=300, cpu_blocks=300)
    kept = kvsim.replay("sample:chat", limit=40, gpu_blocks=300, cpu_blocks=300, events=True)
    assert plain.requests.equals(kept.requests)
    assert plain.transfers.equals(kept.transfers)
    assert plain.turns is None
    assert kept.turns is not None
    assert sum(len(turn.commands) for turn in kept.turns) >= len(kept.steps)
