"""The calibrated simulator on the arrivals of a tensor run."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from kvsim.analysis.records import RequestRecord, TransferLog, TransferRecord, record_of
from kvsim.backends.paddle.shape import OF_MODEL, find_shape
from kvsim.backends.setup import ForwardTime
from kvsim.backends.sim import SimBackend
from kvsim.building import build_core
from kvsim.collector import paused_collector
from kvsim.core.engine import run
from kvsim.policies import policy_factory
from kvsim.sizing import cost_model
from kvsim.trace import annotate_next_use, scale_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.calibration import Calibration
    from kvsim.calibration.fit import Line
    from kvsim.core.ops import Answer
    from kvsim.core.ports import Backend
    from kvsim.cost import CostModel
    from kvsim.replay_config import ReplayConfig
    from kvsim.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledCost:
    """A `CostModel` of a tensor run: steps a scale faster than `inner` has them, its own blocks.

    Parameters
    ----------
    inner
        What steps cost in the trace's time.
    time_scale
        By what they are divided, as the ranks divide them; None: steps take no time.
    step
        What a step takes beyond that, by the blocks of prompts that it computes.
    turn_ns
        The part of it that is the engine's, and passes elsewhere: see `ThinkingBackend`.
    block_size
        Tokens of a block.
    block_bytes
        Of a block on a rank.
    """

    inner: CostModel
    time_scale: float | None
    step: Line
    turn_ns: int
    block_size: int
    block_bytes: int
    num_layers: int

    def forward_ns(
        self,
        num_prefill_tokens: int,
        prefill_attention_tokens: int,
        num_decodes: int,
        context_tokens: int,
        num_steps: int,
    ) -> int:
        """Return the time of the first `num_steps` steps of a batch (see `CostModel`)."""
        extra_ns = round(self.step.ns(num_prefill_tokens // self.block_size)) - self.turn_ns
        extra_ns = max(0, extra_ns)
        if self.time_scale is None:
            return extra_ns
        whole_ns = self.inner.forward_ns(
            num_prefill_tokens, prefill_attention_tokens, num_decodes, context_tokens, num_steps
        )
        return ceil(whole_ns / self.time_scale) + extra_ns

    def transfer_bytes(self, num_blocks: int) -> int:
        """Return the bytes that a copy of `num_blocks` blocks moves on each rank."""
        return self.block_bytes * num_blocks

    def recompute_ns(self, depth: int) -> int:
        """Return what the block at `depth` adds to a step; policies are told in trace time."""
        return self.inner.recompute_ns(depth)


class ThinkingBackend:
    """A simulator whose engine takes its time; a `kvsim.core.ports.Backend` itself.

    Between the answers and the next turn pass `turn_ns`, and what ends meanwhile is answered with
    them, as in a run on the wall clock: an engine that thinks longer has fewer turns, with more in
    each.
    """

    __slots__ = ("_inner", "_turn_ns", "now", "submit")

    def __init__(self, inner: Backend, *, turn_ns: int) -> None:
        self._inner = inner
        self._turn_ns = turn_ns
        self.now = inner.now
        self.submit = inner.submit

    def wait(self, until: int | None) -> Sequence[Answer]:
        """Wait for an answer; then let the engine think, and return what has come by then."""
        first = self._inner.wait(until)
        if not first:
            return first
        answers = list(first)
        thought_at = self._inner.now() + self._turn_ns
        while more := self._inner.wait(thought_at):
            answers += more
        return answers

    def close(self) -> None:
        """Close the simulator. Idempotent."""
        self._inner.close()


class Prediction(NamedTuple):
    """What the simulator says of the run."""

    requests: tuple[RequestRecord, ...]
    transfers: tuple[TransferRecord, ...]


def _num_layers(config: ReplayConfig) -> int:
    """Return the layers that the blocks of a run on tensors have."""
    shape = config.shape or "tiny"
    return config.model_shape.num_layers if shape == OF_MODEL else find_shape(shape).num_layers


@paused_collector()
def predict(config: ReplayConfig, trace: Trace, calibration: Calibration) -> Prediction:
    """Simulate the run that `config` describes, its arrivals as much faster as they were there.

    Parameters
    ----------
    config
        As the tensor run has used it, its time scale included.
    trace
        In its own time.
    calibration
        What copies cost.
    """
    scale = config.time_scale if isinstance(config.time_scale, int | float) else 1.0
    _, new_policy, needs_future = policy_factory(config.policy)
    scaled = scale_time(annotate_next_use(trace) if needs_future else trace, speed=scale)
    cost = ScaledCost(
        inner=cost_model(config, trace.block_size),
        time_scale=scale if config.forward_time is ForwardTime.COST else None,
        step=calibration.step,
        turn_ns=calibration.turn_ns,
        block_size=trace.block_size,
        block_bytes=calibration.conditions.rank_block_bytes,
        num_layers=_num_layers(config),
    )
    core = build_core(config, scaled, new_policy)
    backend = ThinkingBackend(
        SimBackend(cost, links=calibration.links, num_ranks=config.ranks or 1),
        turn_ns=calibration.turn_ns,
    )
    transfers = TransferLog()
    try:
        run(core.decider, backend, observer=transfers)
    finally:
        backend.close()
    ended = map(record_of, core.scheduler.ended)
    in_order = sorted(ended, key=lambda record: record.request.request_id)
    return Prediction(tuple(in_order), tuple(transfers.records))
