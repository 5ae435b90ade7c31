"""The Python call: `kvsim.replay`. The command line makes the same one."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import fields, replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

from kvsim.analysis.records import EventLog, RequestRecord
from kvsim.backends.setup import Clock
from kvsim.core.sequence import Status
from kvsim.custom_policy import find_policy
from kvsim.errors import ConfigError, UserError
from kvsim.execution import Job, RunOutcome, run_instantly, run_timed, with_time_scale
from kvsim.policies import policy_factory
from kvsim.provenance import provenance
from kvsim.recording import rerun
from kvsim.replay_config import ReplayConfig
from kvsim.result import ReplayResult
from kvsim.result_parts import RecordingFigures, TraceFacts
from kvsim.run_file import load_run_file, with_shapes
from kvsim.sizing import needed_blocks, resolve
from kvsim.trace import Trace, annotate_next_use, load, load_sample
from kvsim.trace.retaining import retain_blocks
from kvsim.trace.salting import salt_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike
    from typing import TypeAlias, Unpack

    from kvsim.core.ports import BlockPolicy, EvictionPolicy
    from kvsim.policies.registry import PolicyMaker
    from kvsim.settings import Settings

    AnyPolicy: TypeAlias = str | PolicyMaker | EvictionPolicy | BlockPolicy

__all__ = ["ReplayConfig", "ReplayResult", "replay", "resolve", "sample"]

_SAMPLE_PREFIX: Final = "sample:"
_FASTEST_HOST_LINK: Final = 10**12
"""Bytes a second a GPU. No link from a GPU to host memory reaches it: NVLink-C2C of a GH200 has
450 GB/s one way, PCIe gen6 x16 about 121 GB/s. Source: their data sheets."""


def replay(
    trace: str | PathLike[str] | Trace,
    *,
    policy: AnyPolicy | None = None,
    config: ReplayConfig | str | PathLike[str] | None = None,
    events: bool = False,
    record: str | PathLike[str] | None = None,
    verify: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **settings: Unpack[Settings],
) -> ReplayResult:
    """Replay a trace through a simulated prefix cache and return what came of it.

    Parameters
    ----------
    trace
        Path of a trace file, `"sample:chat"`, or a trace that is loaded.
    policy
        Name of an eviction policy, or where to find one (`"module:Name"`,
        `"path/to/file.py:Name"`); a class, or a function that makes one, taking a
        `PolicyContext`; or one policy object, for a single tier. Default: the config's.
    config
        A `ReplayConfig` or the path of a run file (TOML).
    events
        Whether to keep every decision of the core and its turns: what `result.events`, `steps`,
        `residency`, `kv_events`, `perfetto` and `kvsim.attribute_misses` need.
    record
        Path of a file for the turns of the engine, from which the run can be decided again
        (`kvsim.recording`).
    verify
        Decide the recorded run again at once, and tell whether all is the same:
        `result.recording`. Needs `record`.
    progress
        Called with (requests ended, requests in all), now and then.
    settings
        Fields of `ReplayConfig` by their names; they go before those of `config`.

    Raises
    ------
    UserError
        If the trace cannot be read, a setting is unknown or impossible, or no request finishes.
        Its message is one line.
    """
    began = perf_counter()
    config = read_config(config).with_settings(with_shapes(settings))
    asked = config.policy if policy is None else policy
    name, new_policy, needs_future = policy_factory(
        find_policy(asked) if isinstance(asked, str) else asked
    )
    if isinstance(asked, str):
        name = asked  # where it was found, so that the run can be repeated
    loaded = read_trace(trace, config)
    job = Job(
        config=replace(resolve(config, loaded), policy=name),
        trace=annotate_next_use(loaded) if needs_future else loaded,
        new_policy=new_policy,
        log=EventLog() if events else None,
        turns=[] if events and not config.instant else None,
        progress=progress,
        record=record,
    )
    _check_recording(job, policy, verify=verify)
    source = loaded.name if isinstance(trace, Trace) else str(trace)
    result = replay_job(job, source=source, began=began)
    if record is None or not verify:
        return result
    again = rerun(record, policy=policy)
    notes = result.notes if again.difference is None else (*result.notes, again.difference)
    figures = RecordingFigures(turns=again.turns, identical=again.identical)
    return replace(result, recording=figures, notes=notes)


def replay_job(job: Job, *, source: str, began: float) -> ReplayResult:
    """Carry out a job and return what came of it.

    Parameters
    ----------
    job
        Its settings resolved.
    source
        What was asked for as the trace.
    began
        When, by `time.perf_counter`.

    Raises
    ------
    UserError
        If the backend cannot be had, or no request finishes.
    """
    loaded_at = perf_counter()
    if job.config.instant:
        outcome = run_instantly(job)
    else:
        if job.config.clock is Clock.WALL:
            job = with_time_scale(job)
        outcome = run_timed(job)
    run_s = perf_counter() - loaded_at
    _require_completion(outcome.records, job)
    return _result(job, outcome, source=source, run_s=run_s, began=began)


def sample(name: str = "chat") -> Trace:
    """Return a trace that comes with kvsim.

    Raises
    ------
    UnknownNameError
        If there is none of this name.
    """
    return load_sample(name)


def read_config(config: ReplayConfig | str | PathLike[str] | None) -> ReplayConfig:
    """Return the settings, read from a run file if it is the path of one."""
    if config is None:
        return ReplayConfig()
    return config if isinstance(config, ReplayConfig) else load_run_file(config)


def read_trace(trace: str | PathLike[str] | Trace, config: ReplayConfig) -> Trace:
    """Read what is asked for, or look whether what is given fits; salt and retain as settings say.

    Raises
    ------
    UserError
        If it cannot be read, or does not fit.
    """
    loaded = _load(trace, config)
    if config.salt_rule is not None:
        loaded = salt_keys(loaded, config.salt_rule)
    if config.retain is not None:
        loaded = retain_blocks(loaded, config.retain)
    return loaded


def _load(trace: str | PathLike[str] | Trace, config: ReplayConfig) -> Trace:
    """Read what is asked for, or look whether what is given fits the settings."""
    if isinstance(trace, str) and trace.startswith(_SAMPLE_PREFIX):
        trace = load_sample(trace.removeprefix(_SAMPLE_PREFIX))
    if not isinstance(trace, Trace):
        return load(
            trace,
            format=config.format,
            partial=config.partial_rule,
            limit=config.limit,
            block_size=config.block_size,
        )
    for name, asked, found in (
        ("format", config.format, trace.format),
        ("partial", config.partial_rule, trace.partial),
        ("block_size", config.block_size, trace.block_size),
    ):
        if asked is not None and asked != found:
            raise ConfigError(f"{name} of trace {trace.name} is {found!s}, not {asked!s}")
    if not trace.requests:
        raise UserError(f"trace {trace.name} has no requests")
    if config.limit is None:
        return trace
    return replace(trace, requests=trace.requests[: config.limit])


def _check_recording(job: Job, policy: AnyPolicy | None, *, verify: bool) -> None:
    if job.record is None and verify:
        raise ConfigError("verify needs a recording: name a file with record")
    if job.record is not None and job.config.instant:
        raise ConfigError("record is for runs in time, and an instant replay has no turns")
    if verify and not (isinstance(policy, str) or policy is None or callable(policy)):
        raise ConfigError(
            "verify needs a policy that can be made anew: give a name or a class, not an object"
        )


def _require_completion(records: tuple[RequestRecord, ...], job: Job) -> None:
    """Raise `UserError` if no request finished: figures of nothing would look like figures."""
    ends = Counter(record.status for record in records)
    if ends[Status.FINISHED]:
        return
    name, block_size = job.trace.name, job.trace.block_size
    if ends[Status.REFUSED] < len(records):
        raise UserError(
            f"no request of {name} finished: {ends[Status.REFUSED]} refused,"
            f" {ends[Status.CANCELLED]} cancelled by their clients, {ends[Status.FAILED]} failed"
            f" {job.config.max_attempts} times"
        )
    least = min(needed_blocks(each, job.config, block_size) for each in job.trace.requests)
    raise UserError(
        f"no request of {name} finished: all {len(records)} were refused, since the smallest needs"
        f" {least} blocks of {block_size} tokens and a request may have"
        f" {_allowed_blocks(job.config)} (gpu_blocks, max_blocks_per_request)"
    )


def _allowed_blocks(config: ReplayConfig) -> int:
    limits = (config.gpu_blocks, None if config.instant else config.max_blocks_per_request)
    return min(limit for limit in limits if limit is not None)


def _result(
    job: Job, outcome: RunOutcome, *, source: str, run_s: float, began: float
) -> ReplayResult:
    config, trace = job.config, job.trace
    return ReplayResult(
        config=config,
        trace=TraceFacts(
            name=trace.name,
            format=trace.format,
            block_size=trace.block_size,
            partial=trace.partial.value,
            num_requests=trace.num_requests,
        ),
        records=outcome.records,
        transfer_records=outcome.transfers,
        clock="none" if config.instant else config.clock.value,
        num_preemptions=outcome.num_preemptions,
        num_duplicate_blocks=outcome.num_duplicate_blocks,
        rank_block_bytes=outcome.rank_block_bytes,
        num_ranks=outcome.num_ranks,
        tensors=outcome.tensors,
        interventions=outcome.interventions,
        notes=(*trace.repairs, *_notes(job, outcome.records), *outcome.notes),
        events=None if job.log is None else job.log.events,
        turns=job.turns,
        recording=(
            None
            if job.record is None
            else RecordingFigures(turns=outcome.num_turns, identical=None)
        ),
        provenance=provenance(
            trace=source,
            trace_sha256=trace.sha256,
            run_s=run_s,
            wall_s=perf_counter() - began,
        ),
    )


def _notes(job: Job, records: tuple[RequestRecord, ...]) -> Iterator[str]:
    config, machine, block_size = job.config, job.config.machine, job.trace.block_size
    refused = [record.request for record in records if record.status is Status.REFUSED]
    if refused:
        most = max(needed_blocks(each, config, block_size) for each in refused)
        yield (
            f"{len(refused)} requests were refused and count as misses: the largest needs {most}"
            f" blocks, and a request may have {_allowed_blocks(config)}"
        )
    rate = machine.host_link.bytes_per_second
    if rate > _FASTEST_HOST_LINK:
        yield (
            f"the host link of {machine.name} moves {rate / 10**12:g} TB/s a GPU, more than any"
            " that exists (bound: 1 TB/s): hits in the CPU tier will seem to cost nothing"
        )
    if config.instant:
        return
    try:
        room_blocks = job.cost.max_gpu_blocks()
    except ConfigError as error:
        yield str(error)
        return
    if (config.gpu_blocks or 0) > room_blocks:
        yield (
            f"{config.gpu_blocks} GPU blocks are more than {machine.name} has room for beside the"
            f" weights of {config.model_shape.name}: {room_blocks}"
        )


def _signature() -> inspect.Signature:
    """Return the signature with the settings spelt out, for `help` and notebooks."""
    plain = inspect.signature(replay)
    named = [each for each in plain.parameters.values() if each.kind is not each.VAR_KEYWORD]
    settings = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
        )
        for each in fields(ReplayConfig)
        if each.name != "policy"
    ]
    return plain.replace(parameters=[*named, *settings])


vars(replay)["__signature__"] = _signature()
