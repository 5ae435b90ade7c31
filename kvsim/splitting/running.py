"""A split run put together: instances, their schedulers, the one above them, and a backend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvsim.analysis.records import EventLog
from kvsim.analysis.steps import RunLog
from kvsim.analysis.timeline import TimelineBackend
from kvsim.backends import open_cluster
from kvsim.backends.setup import ClusterSetup, InstanceSetup
from kvsim.building import build_instance
from kvsim.collector import paused_collector
from kvsim.config import Role
from kvsim.core.engine import run
from kvsim.core.ops import OpIds
from kvsim.core.sharding import KVLayout
from kvsim.core.split import SplitScheduler
from kvsim.cost import KvKind
from kvsim.policies.retention import has_retention, with_retention
from kvsim.sizing import cost_model, without_excess
from kvsim.splitting.watch import SplitWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.analysis.timeline import TurnRecord
    from kvsim.backends.setup import TensorFigures, WireFigures
    from kvsim.core.handoff import AttemptFailure, Handoff, Instance
    from kvsim.core.ports import EvictionPolicy, PolicyContext
    from kvsim.cost import ModelShape
    from kvsim.replay_config import ReplayConfig
    from kvsim.splitting.settings import SplitSettings
    from kvsim.splitting.watch import PieceRecord, SendRecord
    from kvsim.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitJob:
    """What is to be replayed on which instances. `config` has nothing left open.

    `keep_events`: whether the events of each instance and the turns of the engine are kept.
    """

    config: ReplayConfig
    settings: SplitSettings
    trace: Trace
    new_policy: Callable[[PolicyContext], EvictionPolicy]
    keep_events: bool = False
    progress: Callable[[int, int], None] | None = None

    @property
    def roles(self) -> tuple[Role, ...]:
        """The role of each instance, by number."""
        settings = self.settings
        return (*(Role.PREFILL,) * settings.prefill, *(Role.DECODE,) * settings.decode)

    def config_of(self, role: Role) -> ReplayConfig:
        """Return the settings of an instance with a role: its machine has its number of GPUs."""
        sizes = dict(zip((Role.PREFILL, Role.DECODE), self.settings.sizes, strict=True))
        return replace(
            self.config, hardware=self.settings.machine(self.config.machine, sizes[role])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOutcome:
    """What a split run leaves. `end_at` is the time of its last answer, in nanoseconds.

    `logs` are the events of each instance, by its number; empty unless they were asked for.
    """

    handoffs: tuple[Handoff, ...]
    failures: tuple[AttemptFailure, ...]
    sends: tuple[SendRecord, ...]
    pieces: tuple[PieceRecord, ...]
    num_early_starts: int
    end_at: int
    wires: tuple[WireFigures, ...]
    instances: tuple[InstanceSetup, ...]
    tensors: TensorFigures | None
    notes: tuple[str, ...]
    logs: tuple[RunLog, ...] = ()


def kv_layout(model: ModelShape, num_ranks: int) -> KVLayout:
    """Return how the KV of a model lies over the ranks of an instance."""
    is_latent = model.kv_kind is KvKind.MLA
    return KVLayout(
        num_ranks=num_ranks,
        num_kv_heads=1 if is_latent else model.num_kv_heads,
        num_layers=model.num_layers,
        is_latent=is_latent,
    )


@paused_collector()
def run_split(job: SplitJob) -> SplitOutcome:
    """Run a job to its end.

    Raises
    ------
    UserError
        If the backend cannot be had, or the instances do not fit each other.
    """
    logs = [EventLog() for _ in job.roles] if job.keep_events else []
    scheduler, instances = _build(job, logs)
    setup = _cluster(job, instances)
    opened = open_cluster(job.config.backend, setup)
    # Each notes how far the events of its own instance had come in a turn.
    turns: list[list[TurnRecord]] = [[] for _ in logs]
    backend = opened.backend
    for log, own in zip(logs, turns, strict=True):
        backend = TimelineBackend(backend, log.events, own)
    total = job.trace.num_requests
    progress = job.progress
    tell = None if progress is None else lambda: progress(len(scheduler.ended), total)
    watch = SplitWatch(tell)
    try:
        run(scheduler, backend, observer=watch)
    finally:
        backend.close()
    for each in instances:
        each.manager.check()
    return SplitOutcome(
        handoffs=tuple(sorted(scheduler.ended, key=lambda each: each.request.request_id)),
        failures=tuple(scheduler.failures),
        sends=tuple(watch.sends),
        pieces=tuple(watch.pieces),
        num_early_starts=watch.num_early_starts,
        end_at=watch.last_at,
        wires=tuple(opened.wires()),
        instances=setup.instances,
        tensors=None if opened.tensors is None else opened.tensors(),
        notes=tuple(opened.notes()),
        logs=tuple(
            RunLog(
                events=log.events,
                turns=own,
                requests=job.trace.requests,
                tier_blocks=each.manager.config.tier_blocks,
                clock=job.config.clock.value,
            )
            for log, own, each in zip(logs, turns, instances, strict=False)  # no logs, or one each
        ),
    )


def _build(job: SplitJob, logs: Sequence[EventLog]) -> tuple[SplitScheduler, list[Instance]]:
    """Return the scheduler of a split run before its first turn, and its instances."""
    trace, new_policy = job.trace, job.new_policy
    if has_retention(trace.requests):
        new_policy = with_retention(new_policy)
    new_op_id = OpIds()
    instances: list[Instance] = []
    for number, role in enumerate(job.roles):
        config = job.config_of(role)
        sized = without_excess(config, trace, can_fail=_can_fail(job))
        instances.append(
            build_instance(
                number,
                role,
                cache=sized.cache(block_size=trace.block_size),
                scheduler=config.scheduler(),
                new_policy=new_policy,
                seed=config.seed,
                recompute_ns=cost_model(config, trace.block_size).recompute_ns,
                new_op_id=new_op_id,
                sink=logs[number] if logs else None,
            )
        )
    rules = job.settings.core(max_attempts=job.config.max_attempts)
    return SplitScheduler(instances, trace.requests, rules, new_op_id=new_op_id), instances


def _can_fail(job: SplitJob) -> bool:
    settings = job.settings
    return bool(settings.send_timeout_ns or settings.reserve_timeout_ns)


def _cluster(job: SplitJob, instances: Sequence[Instance]) -> ClusterSetup:
    config, trace = job.config, job.trace
    setups: list[InstanceSetup] = []
    for each in instances:
        own = job.config_of(each.role)
        setups.append(
            InstanceSetup(
                role=each.role,
                tier_blocks=each.manager.config.tier_blocks,
                cost=cost_model(own, trace.block_size),
                host_link=own.machine.host_link,
                layout=kv_layout(config.model_shape, own.machine.num_gpus),
            )
        )
    scale = config.time_scale
    return ClusterSetup(
        requests=trace.requests,
        block_size=trace.block_size,
        instances=tuple(setups),
        network=job.settings.network,
        faults=config.faults,
        seed=config.seed,
        shape=config.shape or "tiny",
        device=config.device or "cpu",
        forward=config.forward_time,
        time_scale=scale if isinstance(scale, int | float) else 1.0,
    )
