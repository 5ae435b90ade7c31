"""The Python call: `kvsim.split`. The command line makes the same one."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

from kvsim.api import read_config, read_trace
from kvsim.custom_policy import find_policy
from kvsim.errors import ConfigError, UserError
from kvsim.policies import policy_factory
from kvsim.provenance import provenance
from kvsim.result_parts import TraceFacts
from kvsim.sizing import resolve, tight_tiers
from kvsim.splitting.result import SplitResult
from kvsim.splitting.running import SplitJob, run_split
from kvsim.splitting.settings import SplitSettings
from kvsim.trace import Trace, annotate_next_use

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

    from kvsim.api import AnyPolicy
    from kvsim.core.handoff import Handoff
    from kvsim.replay_config import ReplayConfig

SPLIT_NAMES: Final = tuple(each.name for each in fields(SplitSettings))
"""Settings of the split; all others are those of the instances."""


def split(
    trace: str | PathLike[str] | Trace,
    *,
    policy: AnyPolicy | None = None,
    config: ReplayConfig | str | PathLike[str] | None = None,
    events: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **settings: object,
) -> SplitResult:
    """Replay a trace on prefill and decode instances, and return what the split costs.

    Parameters
    ----------
    trace, policy, config, progress
        As in `kvsim.replay`; `config` is that of every instance.
    events
        Whether to keep every decision of each instance and the turns of the engine: what
        `result.events` and `result.perfetto` need.
    settings
        Fields of `SplitSettings` (`prefill=2, decode=2, tp="4:2", link="ib-400g"`) and of
        `ReplayConfig`. Without sizes each instance has 5 % of the trace's blocks on the GPU (at
        least twice the longest request) and 15 % on the CPU.

    Raises
    ------
    UserError
        If the trace cannot be read, a setting is unknown or impossible, or no request finishes.
        Its message is one line.
    """
    began = perf_counter()
    known = SplitSettings(**_part(settings, of_split=True))  # type: ignore[arg-type]
    own = read_config(config).with_settings(_part(settings, of_split=False))
    asked = own.policy if policy is None else policy
    name, new_policy, needs_future = policy_factory(
        find_policy(asked) if isinstance(asked, str) else asked
    )
    _check(own, known, needs_future=needs_future, name=name)
    loaded = read_trace(trace, own)
    job = SplitJob(
        config=replace(_resolved(own, known, loaded), policy=name),
        settings=known,
        trace=annotate_next_use(loaded) if needs_future else loaded,
        new_policy=new_policy,
        keep_events=events,
        progress=progress,
    )
    loaded_at = perf_counter()
    outcome = run_split(job)
    run_s = perf_counter() - loaded_at
    _require_completion(outcome.handoffs, loaded.name)
    source = loaded.name if isinstance(trace, Trace) else str(trace)
    return SplitResult(
        config=job.config,
        settings=known,
        trace=TraceFacts(
            name=loaded.name,
            format=loaded.format,
            block_size=loaded.block_size,
            partial=loaded.partial.value,
            num_requests=loaded.num_requests,
        ),
        outcome=outcome,
        clock=job.config.clock.value,
        notes=(*loaded.repairs, *outcome.notes),
        provenance=provenance(
            trace=source,
            trace_sha256=loaded.sha256,
            run_s=run_s,
            wall_s=perf_counter() - began,
        ),
    )


def _part(settings: Mapping[str, object], *, of_split: bool) -> dict[str, object]:
    """Return the settings of the split, or those of the instances; None: not given."""
    return {
        name: value
        for name, value in settings.items()
        if value is not None and (name in SPLIT_NAMES) == of_split
    }


def _resolved(config: ReplayConfig, settings: SplitSettings, trace: Trace) -> ReplayConfig:
    """Return the settings with nothing left open, sized for the smaller of the two machines."""
    sized = tight_tiers(config, trace)
    sizes = [settings.machine(config.machine, size) for size in settings.sizes]
    smaller = min(sizes, key=lambda machine: machine.num_gpus)
    return replace(resolve(replace(sized, hardware=smaller), trace), hardware=config.hardware)


def _check(config: ReplayConfig, settings: SplitSettings, *, needs_future: bool, name: str) -> None:
    if config.instant:
        raise ConfigError("instant means without time, and a split is all about time: leave it out")
    if config.interventions:
        raise ConfigError("interventions are orders to one instance, and a split has several")
    if needs_future and settings.prefill + settings.decode > 2:
        raise ConfigError(
            f"policy {name!r} knows the future of one instance, not of several: each of them gets"
            " a part of the requests only"
        )


def _require_completion(handoffs: tuple[Handoff, ...], name: str) -> None:
    """Raise `UserError` if no request finished: figures of nothing would look like figures."""
    ends = Counter(str(each.status) for each in handoffs)
    if not ends["finished"]:
        counted = ", ".join(f"{n} {end}" for end, n in sorted(ends.items()))
        raise UserError(f"no request of {name} finished: {counted}")
