"""`kvsim.validate`: calibrate, run on tensors, decide again, simulate, compare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Final

from kvsim.api import read_trace, replay_job
from kvsim.backends.setup import Clock
from kvsim.calibration import Calibration, calibrate, load_calibration
from kvsim.calibration.measure import fit_probes
from kvsim.calibration.probe import MOST_BLOCKS, Prober
from kvsim.errors import ConfigError
from kvsim.execution import Job, with_time_scale
from kvsim.policies import policy_factory
from kvsim.recording import rerun
from kvsim.replay_config import ReplayConfig
from kvsim.sizing import resolve, tight_tiers
from kvsim.trace import annotate_next_use
from kvsim.validation.compare import compare
from kvsim.validation.predict import predict
from kvsim.validation.result import Validation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike
    from typing import Unpack

    from kvsim.calibration.probe import Sample
    from kvsim.settings import Settings
    from kvsim.trace import Trace

DEFAULT_TOLERANCE: Final = 0.1
_IN_RUN: Final = "in this call, by copies beside those of the run"
_BEFORE: Final = "in this call, before the run: it has too few copies for others beside them"
_FEWEST_PROBES: Final = 20  # each way
_SHORTEST_S: Final = 1.0
_PILOT_S: Final = 3.0
"""Of the run before the run: the steps are measured there, and the copies once more in the run."""


def validate(
    trace: str | PathLike[str] | Trace,
    *,
    calibration: Calibration | str | PathLike[str] | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
    progress: Callable[[int, int], None] | None = None,
    policy: str | None = None,
    **settings: Unpack[Settings],
) -> Validation:
    """Run a trace on real tensors and in the calibrated simulator, and say how far they differ.

    Parameters
    ----------
    trace
        Path of a trace file, `"sample:chat"`, or a trace that is loaded.
    calibration
        What `kvsim.calibrate` has returned, or the path of the file that it has kept. Default: it
        is measured in this call, in a short run before this one and, for the copies, by probes in
        its midst.
    tolerance
        What |predicted / measured - 1| of the copy times of either direction may be.
    progress
        Called with (requests ended, requests in all), now and then.
    policy
        Name of an eviction policy. Default: lru.
    settings
        Fields of `ReplayConfig` by their names. `backend` is "paddle" by default; `gpu_blocks` and
        `cpu_blocks` are 5 % and 15 % of the blocks of the trace that differ, the first at least
        twice what its longest request takes with its output and the reserve. A `hardware` that
        ends in ".toml" is a calibration.

    Raises
    ------
    UserError
        If the trace cannot be read, a setting is unknown or impossible, the calibration does not
        fit, or no request finishes.
    """
    if isinstance(tolerance, bool) or not 0 < tolerance < 1:
        raise ConfigError(f"tolerance must be a share above 0 and below 1, not {tolerance!r}")
    config, file = _settings({"policy": policy or "lru", **settings})
    calibration = calibration if file is None else file
    began = perf_counter()
    loaded = read_trace(trace, config)
    job = _job(tight_tiers(config, loaded), loaded, progress)
    before, source = _calibration(calibration, job)
    prober = None
    if calibration is None:
        rng = Random(config.seed)
        prober = Prober(most_blocks=MOST_BLOCKS, rng=rng, same_way=True)
    with TemporaryDirectory(prefix="kvsim-") as folder:
        path = Path(folder) / "run.turns"
        measured = replace(job, record=path, instrument=prober)
        result = replay_job(measured, source=str(trace), began=began)
        again = rerun(path)
    found = before
    if prober is not None and _are_enough(prober.samples):
        found, source = replace(before, **fit_probes(prober.samples)), _IN_RUN
    predicted = predict(result.config, loaded, found)
    return Validation(
        run=result,
        again=again,
        prediction=predicted,
        calibration=found,
        before=before,
        calibrated=source,
        tolerance=tolerance,
        comparison=compare(result, predicted, found, seed=config.seed),
    )


def _are_enough(samples: Sequence[Sample]) -> bool:
    """Whether probes have measured enough, of each way, for lines through them."""
    num_in = sum(each.is_in for each in samples)
    return min(num_in, len(samples) - num_in) >= _FEWEST_PROBES


def _settings(settings: Mapping[str, object]) -> tuple[ReplayConfig, str | None]:
    """Return the settings, and the path of a calibration if one is given as the hardware."""
    given = {name: value for name, value in settings.items() if value is not None}
    hardware, file = given.get("hardware"), None
    if isinstance(hardware, str) and hardware.endswith(".toml"):
        del given["hardware"]
        file = hardware
    config = ReplayConfig(backend="paddle").with_settings(given)
    if config.clock is Clock.VIRTUAL:
        raise ConfigError(
            f"backend {config.backend!r} is the simulator itself: validate against one on the wall"
            " clock, such as 'paddle'"
        )
    if config.instant or config.fail_rate or config.hang_rate or config.delay_rate:
        raise ConfigError("validation needs a run in time and without faults: leave them out")
    if config.cpu_blocks == 0 or config.cpu_gib == 0:
        raise ConfigError("validation needs a CPU tier: without one there are no copies to compare")
    return config, file


def _job(config: ReplayConfig, trace: Trace, progress: Callable[[int, int], None] | None) -> Job:
    """Return the run, its time scale found."""
    _, new_policy, needs_future = policy_factory(config.policy)
    job = Job(
        config=resolve(config, trace),
        trace=annotate_next_use(trace) if needs_future else trace,
        new_policy=new_policy,
        progress=progress,
    )
    scale = with_time_scale(job).config.time_scale
    return replace(job, config=replace(job.config, time_scale=scale))


def _calibration(
    given: Calibration | str | PathLike[str] | None, job: Job
) -> tuple[Calibration, str]:
    """Return what copies cost, and where that is from."""
    if given is None:
        scale = job.config.time_scale if isinstance(job.config.time_scale, int | float) else 1.0
        lasts_s = max(job.trace.requests[-1].arrived_at / scale / 1e9, _SHORTEST_S)
        rate = job.trace.num_requests / lasts_s
        return calibrate(job.config, requests_per_s=rate, lasts_s=_PILOT_S), _BEFORE
    if isinstance(given, Calibration):
        found, source = given, f"before, {given.origin.date}"
    else:
        found, source = load_calibration(given), f"in {given}"
    found.check_fits(job.config)
    return found, source
