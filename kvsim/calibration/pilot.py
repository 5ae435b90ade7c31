"""A short run of made-up chats: what copies and steps cost while an engine decides beside them.

Copies that are handed out one after another cost less than those of a run, where the engine, the
ranks and their checks share the cores and the caches. So the copies that are measured are probes
between those of a run. The run also tells what a step takes beyond its timer: the engine's turn,
the way to the ranks and back, and the bytes that are written and checked.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from kvsim.backends import open_backend
from kvsim.backends.setup import ForwardTime
from kvsim.building import build_core
from kvsim.calibration.drive import drive
from kvsim.calibration.probe import MOST_BLOCKS, Prober
from kvsim.core.engine import run
from kvsim.core.ops import Completion, Forward, Outcome
from kvsim.cost import prefill_attention_tokens
from kvsim.errors import UserError
from kvsim.execution import Job
from kvsim.policies import policy_factory
from kvsim.sizing import resolve, tight_tiers
from kvsim.trace import scale_time, synthesize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.calibration.drive import Bare
    from kvsim.calibration.probe import Sample
    from kvsim.core.ops import Answer, Command
    from kvsim.cost import CostModel
    from kvsim.replay_config import ReplayConfig
    from kvsim.trace import Trace
    from kvsim.types import OpId

_FEWEST, _MOST = 60, 2000  # requests
_WORKLOAD: Final = "chat"
_SEED_STEP: Final = 1_000_003
"""The pilot's own draw: the trace that is validated may be a sample made with a small seed."""


class StepSample(NamedTuple):
    """A step of the pilot: blocks of prompts that it computed, and what it took beyond its time."""

    num_blocks: int
    extra_ns: int


class Pilot(NamedTuple):
    """What a pilot has measured."""

    probes: list[Sample]
    steps: list[StepSample]
    bare: list[Bare]
    turns_ns: list[int]
    rank_block_bytes: int


class StepLog:
    """A `TurnObserver` that measures what a step takes from its cause to its end.

    Its cause is the end of the step before if it follows at once, else the turn that issued it.

    Parameters
    ----------
    cost, time_scale
        What the ranks' timer lets a step take.
    block_size
        Tokens of a block.
    """

    def __init__(self, cost: CostModel, *, time_scale: float, block_size: int) -> None:
        self._cost = cost
        self._time_scale = time_scale
        self._block_size = block_size
        self._open: dict[OpId, tuple[Forward, int]] = {}
        self._just_ended_at: int | None = None
        self.samples: list[StepSample] = []

    def turn(self, now: int, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
        """Take one turn."""
        for command in commands:
            if isinstance(command, Forward):
                began = now if self._just_ended_at is None else self._just_ended_at
                self._open[command.op_id] = (command, began)
        self._just_ended_at = None
        for answer in answers:
            if answer.op_id in self._open and isinstance(answer, Completion):
                forward, began = self._open.pop(answer.op_id)
                self._just_ended_at = answer.finished_at
                if answer.outcome is Outcome.DONE:
                    self._take(forward, answer.finished_at - began, answer.steps_done)

    def _take(self, forward: Forward, took_ns: int, steps_done: int) -> None:
        num_tokens = sum(piece.num_tokens for piece in forward.prefill)
        attention_tokens = sum(
            prefill_attention_tokens(piece.first_token, piece.num_tokens)
            for piece in forward.prefill
        )
        planned_ns = self._cost.forward_ns(
            num_tokens,
            attention_tokens,
            forward.num_decodes,
            forward.context_tokens,
            max(1, steps_done),
        )
        extra_ns = took_ns - round(planned_ns / self._time_scale)
        self.samples.append(StepSample(num_tokens // self._block_size, max(1, extra_ns)))


def fly(config: ReplayConfig, *, requests_per_s: float, lasts_s: float) -> Pilot:
    """Run the pilot: some seconds of chats, as dense as the run to come, on tiers that overflow.

    Parameters
    ----------
    config
        As for the run; the sizes of the tiers are the pilot's own.
    requests_per_s
        How many requests a second arrive, on the wall clock.
    lasts_s
        How long they arrive, in seconds.

    Raises
    ------
    UserError
        If a byte is wrong: then nothing that was measured is worth anything.
    """
    num_requests = min(_MOST, max(_FEWEST, round(requests_per_s * lasts_s)))
    trace = synthesize(_WORKLOAD, num_requests=num_requests, seed=config.seed + _SEED_STEP)
    scale = trace.requests[-1].arrived_at / 1e9 / (num_requests / requests_per_s)
    trace = scale_time(trace, speed=scale)
    _, new_policy, _ = policy_factory("lru")
    job = Job(
        config=resolve(_pilot_config(config, trace, scale), trace),
        trace=trace,
        new_policy=new_policy,
    )
    core = build_core(job.config, trace, new_policy)
    tier_blocks = core.manager.config.tier_blocks
    rng = Random(config.seed)
    prober = Prober(most_blocks=MOST_BLOCKS, rng=rng, same_way=False)
    steps = StepLog(job.cost, time_scale=scale, block_size=trace.block_size)
    setup = job.setup(tuple(num + prober.num_extra_blocks for num in tier_blocks))
    opened = open_backend(config.backend, setup)
    try:
        run(core.decider, prober.around(opened, tier_blocks), observer=steps)
        bare = drive(opened, num_blocks=MOST_BLOCKS // 2, rng=rng)
    finally:
        opened.backend.close()
    figures = None if opened.tensors is None else opened.tensors()
    if figures is not None and figures["wrong_bytes"]:
        raise UserError(f"calibration read {figures['wrong_bytes']:,} wrong bytes")
    return Pilot(prober.samples, steps.samples, bare, prober.turns_ns, opened.rank_block_bytes)


def _pilot_config(config: ReplayConfig, trace: Trace, scale: float) -> ReplayConfig:
    unsized = replace(
        config,
        gpu_blocks=None,
        cpu_blocks=None,
        gpu_gib=None,
        cpu_gib=None,
        swap_batch_blocks=None,
        low_watermark_blocks=None,
        policy="lru",
        interventions=(),
        block_size=None,
        partial=None,
        format=None,
        limit=None,
        time_scale=scale,
        forward=ForwardTime.COST.value,
    )
    return tight_tiers(unsized, trace)
