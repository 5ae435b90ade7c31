"""`kvsim.calibrate`: a short run with copies of many sizes in between, and a line through them."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypedDict

from kvsim.backends.setup import Clock
from kvsim.calibration.file import save_calibration
from kvsim.calibration.fit import Line, duplex_factor, fit_line
from kvsim.calibration.pilot import fly
from kvsim.calibration.result import DEFAULT_LAYOUT, Calibration, Conditions, Measured, Origin
from kvsim.collector import paused_collector
from kvsim.errors import ConfigError, UserError
from kvsim.replay_config import ReplayConfig
from kvsim.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from typing import Unpack

    from kvsim.calibration.pilot import Pilot
    from kvsim.calibration.probe import Sample
    from kvsim.settings import Settings

_FEWEST_SIZES: Final = 3
_BASE: Final = "h200-8x"
_CPUINFO: Final = Path("/proc/cpuinfo")

REQUESTS_PER_S: Final = 30.0
"""Of the pilot: as dense as 300 requests of the sample of chats in ten seconds."""
LASTS_S: Final = 8.0
"""Some hundred copies each way, so that their mean is known to a few percent."""


def calibrate(
    config: ReplayConfig | None = None,
    *,
    requests_per_s: float = REQUESTS_PER_S,
    lasts_s: float = LASTS_S,
    out: str | PathLike[str] | None = None,
    **settings: Unpack[Settings],
) -> Calibration:
    """Measure what copies between the tiers cost, with the copier and the ranks of a tensor run.

    A short run of made-up chats, with copies of 1, 2, 4, ... 256 blocks in between: a line goes
    through the medians of each way (`kvsim.calibration.fit`). Then copies one way, back, and both.

    Parameters
    ----------
    config
        What the run will have: backend, shape, device, ranks. Default: backend "paddle".
    requests_per_s
        How dense the run will be, on the wall clock.
    lasts_s
        How long requests arrive, in seconds; twice as long measures twice as many copies.
    out
        Path of a TOML file to keep it in, which `hardware` reads back.
    settings
        Fields of `ReplayConfig` by their names; they go before those of `config`.

    Raises
    ------
    ConfigError
        If a setting is impossible, or the backend is not on the wall clock.
    UserError
        If the file cannot be written.
    """
    config = (config or ReplayConfig(backend="paddle")).with_settings(settings)
    _check(config, requests_per_s=requests_per_s, lasts_s=lasts_s)
    began = perf_counter()
    with paused_collector():
        pilot = fly(config, requests_per_s=requests_per_s, lasts_s=lasts_s)
    found = Calibration(
        base=config.hardware if isinstance(config.hardware, str) else _BASE,
        conditions=_conditions(config, pilot),
        origin=_origin(perf_counter() - began),
        **fit_probes(pilot.probes),
        step=_step(pilot),
        turn_ns=round(fmean(pilot.turns_ns)),
        duplex_factor=_duplex(pilot),
    )
    if out is not None:
        save_calibration(found, out)
    return found


def _check(config: ReplayConfig, **numbers: float) -> None:
    for name, value in numbers.items():
        if not 0 < value < inf:
            raise ConfigError(f"{name} must be a number above 0, not {value!r}")
    if config.clock is Clock.VIRTUAL:
        raise ConfigError(
            f"backend {config.backend!r} has no time of its own to measure: calibrate one on the"
            " wall clock, such as 'paddle'"
        )


def _conditions(config: ReplayConfig, pilot: Pilot) -> Conditions:
    return Conditions(
        backend=config.backend,
        shape=config.shape or "tiny",
        device=config.device or "cpu",
        ranks=config.ranks or 1,
        workers=config.worker_kind.value,
        layout=config.layout or DEFAULT_LAYOUT,
        rank_block_bytes=pilot.rank_block_bytes,
    )


def _origin(took_s: float) -> Origin:
    return Origin(
        kvsim_version=__version__,
        python_version=platform.python_version(),
        paddle_version=_version("paddlepaddle") or _version("paddlepaddle-gpu") or "none",
        machine=machine_name(),
        date=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        took_s=round(took_s, 3),
    )


class Fitted(TypedDict):
    """What probes tell; the names are those of `Calibration`."""

    swap_in: Line
    swap_out: Line
    wait_ns: int
    sizes: tuple[Measured, ...]


def fit_probes(samples: Sequence[Sample]) -> Fitted:
    """Return the lines through what probes have measured.

    Raises
    ------
    UserError
        If there are too few of them.
    """
    times: dict[bool, dict[int, list[float]]] = {True: {}, False: {}}
    for each in samples:
        times[each.is_in].setdefault(each.num_blocks, []).append(each.copy_ns)
    if min(map(len, times.values())) < _FEWEST_SIZES:
        raise UserError(
            f"calibration measured {len(samples)} copies, too few for a line: the run must have"
            " more steps"
        )
    up, down = times[True], times[False]
    return Fitted(
        swap_in=fit_line(up),
        swap_out=fit_line(down),
        wait_ns=max(0, round(median(each.wait_ns for each in samples))),
        sizes=tuple(
            Measured(num, round(median(up[num])), round(median(down[num])))
            for num in sorted(up.keys() & down.keys())
        ),
    )


def _step(pilot: Pilot) -> Line:
    times: dict[int, list[float]] = {}
    for each in pilot.steps:
        times.setdefault(each.num_blocks, []).append(each.extra_ns)
    return fit_line(times)


def _duplex(pilot: Pilot) -> float:
    up, down, both = (
        median(each.took_ns for each in pilot.bare if (each.has_in, each.has_out) == way)
        for way in ((True, False), (False, True), (True, True))
    )
    return duplex_factor((up, down), both)


def machine_name() -> str:
    """Return the processor and the number of its cores, for people."""
    name = platform.processor() or platform.machine()
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
            break
    return f"{name}, {os.cpu_count()} cores"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
