"""Runs a replay: puts manager, scheduler and backend together, and keeps what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Final, Protocol

from kvsim.analysis.records import (
    ProgressLog,
    RequestRecord,
    TransferLog,
    TransferRecord,
    record_of,
    record_of_instant,
)
from kvsim.analysis.timeline import TimelineBackend
from kvsim.backends import open_backend
from kvsim.backends.setup import BackendSetup, Clock, ForwardTime
from kvsim.building import build_core, build_manager
from kvsim.collector import paused_collector
from kvsim.core.engine import run
from kvsim.core.instant import replay_instantly
from kvsim.core.ops import Completion, Forward
from kvsim.interventions import peak_blocks
from kvsim.recording import recorder
from kvsim.sizing import cost_model
from kvsim.trace import scale_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from kvsim.analysis.records import EventLog
    from kvsim.analysis.timeline import TurnRecord
    from kvsim.backends.setup import OpenBackend, TensorFigures
    from kvsim.core.engine import TurnObserver
    from kvsim.core.interventions import InterventionRecord
    from kvsim.core.ops import Answer, Command
    from kvsim.core.ports import Backend, EventSink, EvictionPolicy, PolicyContext
    from kvsim.cost import RooflineCost
    from kvsim.replay_config import ReplayConfig
    from kvsim.trace import Trace
    from kvsim.types import OpId, Request

_LONGEST_NS: Final = 10 * 10**9
"""What `time_scale="auto"` lets the arrivals, and the steps together, take at most."""


class Instrument(Protocol):
    """Measures in the midst of a run: it stands between the engine and the backend.

    `num_extra_blocks` are added to every tier of the backend, not of the engine.
    """

    num_extra_blocks: int

    def around(self, opened: OpenBackend, tier_blocks: tuple[int, ...]) -> Backend:
        """Return the backend for the engine, which has `tier_blocks` of the tiers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be replayed, with what, who watches, and the file that its turns go to.

    `log` and `turns` take the events and the turns of the run; without the first, no second.
    """

    config: ReplayConfig
    trace: Trace
    new_policy: Callable[[PolicyContext], EvictionPolicy]
    log: EventLog | None = None
    progress: Callable[[int, int], None] | None = None
    record: str | PathLike[str] | None = None
    turns: list[TurnRecord] | None = None
    instrument: Instrument | None = None

    @property
    def cost(self) -> RooflineCost:
        """What steps and copies cost."""
        return cost_model(self.config, self.trace.block_size)

    def tell(self, num_ended: int) -> None:
        """Say how many requests have ended."""
        if self.progress is not None:
            self.progress(num_ended, self.trace.num_requests)

    def setup(self, tier_blocks: tuple[int, ...]) -> BackendSetup:
        """Return what a backend is made from."""
        config, trace = self.config, self.trace
        is_real = config.clock is Clock.WALL
        scale = config.time_scale
        return BackendSetup(
            requests=trace.requests,
            block_size=trace.block_size,
            tier_blocks=tier_blocks,
            cost=self.cost,
            host_link=config.machine.host_link,
            disk_link=config.disk_link,
            num_ranks=(config.ranks or 1) if is_real else config.machine.num_gpus,
            faults=config.faults,
            seed=config.seed,
            shape=config.shape or "tiny",
            device=config.device or "cpu",
            model=config.model_shape,
            kv_dtype=str(config.kv_dtype),
            layout=config.layout or "block-major",
            extra_layers=config.extra_layers or 0,
            expand_ratio=1.0 if config.expand_ratio is None else config.expand_ratio,
            forward=config.forward_time,
            time_scale=scale if isinstance(scale, int | float) else 1.0,
            workers=config.worker_kind,
            worker_timeout_ns=config.longest_silence_ns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """What a run leaves."""

    records: tuple[RequestRecord, ...]
    transfers: tuple[TransferRecord, ...] = ()
    num_preemptions: int = 0
    num_duplicate_blocks: int
    rank_block_bytes: int
    num_ranks: int
    num_turns: int = 0
    tensors: TensorFigures | None = None
    notes: tuple[str, ...] = ()
    interventions: tuple[InterventionRecord, ...] = ()


def with_time_scale(job: Job) -> Job:
    """Return the job with its time scale found, and the times of its trace divided by it.

    "auto" is the smallest whole number that brings both the arrivals and the steps, as the
    simulator has them, down to ten seconds.
    """
    config = job.config
    scale = config.time_scale
    if not isinstance(scale, int | float):
        arrivals_ns = job.trace.requests[-1].arrived_at
        busy_ns = 0
        if config.forward_time is ForwardTime.COST:
            busy_ns = _simulated_steps_ns(job)
        scale = max(1, ceil(max(arrivals_ns, busy_ns) / _LONGEST_NS))
    return replace(
        job,
        config=replace(config, time_scale=scale),
        trace=scale_time(job.trace, speed=scale),
    )


@paused_collector()
def run_timed(job: Job) -> RunOutcome:
    """Run a job on its backend, and record it if it says where.

    Raises
    ------
    UserError
        If the backend cannot be had, or the run cannot be recorded.
    """
    if job.record is None:
        return _run_timed(job, sink=job.log, around=lambda backend: backend)
    with recorder(job.record, job.config, job.trace) as recording:
        return _run_timed(job, sink=recording.sink(job.log), around=recording.backend)


def _run_timed(
    job: Job, *, sink: EventSink | None, around: Callable[[Backend], Backend]
) -> RunOutcome:
    core = build_core(job.config, job.trace, job.new_policy, sink=sink)
    manager, scheduler = core.manager, core.scheduler
    tier_blocks = peak_blocks(job.config.interventions, manager.config.tier_blocks)
    instrument = job.instrument
    num_extra = 0 if instrument is None else instrument.num_extra_blocks
    setup = job.setup(tuple(num_blocks + num_extra for num_blocks in tier_blocks))
    transfers = TransferLog()
    observer: TurnObserver | None = transfers if job.config.cpu_blocks else None
    if job.progress is not None:
        observer = ProgressLog(transfers, scheduler.ended, job.tell)
    opened = open_backend(job.config.backend, setup)
    inner = opened.backend if instrument is None else instrument.around(opened, tier_blocks)
    backend = around(inner)
    if job.log is not None and job.turns is not None:
        backend = TimelineBackend(backend, job.log.events, job.turns)
    try:
        num_turns = run(core.decider, backend, observer=observer)
    finally:
        backend.close()
    if job.config.clock is Clock.WALL:
        manager.check()  # real time comes in orders that no simulation has tried
    job.tell(job.trace.num_requests)
    ended = sorted(map(record_of, scheduler.ended), key=lambda record: record.request.request_id)
    return RunOutcome(
        records=tuple(ended),
        transfers=tuple(_with_copy_ns(transfers.records, opened.copy_ns())),
        num_preemptions=scheduler.num_preemptions,
        num_duplicate_blocks=manager.num_duplicate_blocks,
        rank_block_bytes=opened.rank_block_bytes,
        num_ranks=setup.num_ranks,
        num_turns=num_turns,
        tensors=None if opened.tensors is None else opened.tensors(),
        notes=tuple(opened.notes()),
        interventions=() if core.operator is None else tuple(core.operator.records),
    )


def _with_copy_ns(
    records: Sequence[TransferRecord], copy_ns: Mapping[OpId, int]
) -> Iterable[TransferRecord]:
    """Return the records with how long was copied, where that was measured."""
    if not copy_ns:
        return records
    return (each._replace(copy_ns=copy_ns.get(each.op_id)) for each in records)


@paused_collector()
def run_instantly(job: Job) -> RunOutcome:
    """Run a job without a backend, one request after another."""
    manager = build_manager(job.config, job.trace, job.new_policy, sink=job.log)
    records = tuple(map(record_of_instant, replay_instantly(manager, _counted(job))))
    job.tell(job.trace.num_requests)
    return RunOutcome(
        records=records,
        num_duplicate_blocks=manager.num_duplicate_blocks,
        rank_block_bytes=job.cost.transfer_bytes(1),
        num_ranks=job.config.machine.num_gpus,
    )


def _counted(job: Job) -> Iterator[Request]:
    for request in job.trace.requests:
        if not request.request_id % 64:
            job.tell(request.request_id)
        yield request


class _StepTimes:
    """A `TurnObserver` that adds up how long the Forwards took."""

    def __init__(self) -> None:
        self.total_ns = 0
        self._open: set[OpId] = set()

    def turn(self, now: int, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
        """Take note of the Forwards of one turn."""
        del now
        self._open.update(each.op_id for each in commands if isinstance(each, Forward))
        for answer in answers:
            if isinstance(answer, Completion) and answer.op_id in self._open:
                self._open.remove(answer.op_id)
                self.total_ns += answer.finished_at - answer.started_at


@paused_collector()
def _simulated_steps_ns(job: Job) -> int:
    """Return how long all steps of a job take together in the simulator."""
    job = replace(job, config=job.config.simulated())
    core = build_core(job.config, job.trace, job.new_policy)
    opened = open_backend("sim", job.setup(core.manager.config.tier_blocks))
    times = _StepTimes()
    try:
        run(core.decider, opened.backend, observer=times)
    finally:
        opened.backend.close()
    return times.total_ns
