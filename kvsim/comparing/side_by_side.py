"""Runs that differ in one setting, a row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.analysis.frames import frame_of
from kvsim.config import TIER_NAMES
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd

    from kvsim.result import ReplayResult

_WAYS: Final = ("swap_in", "swap_out", "disk_in", "disk_out")
COLUMNS: Final = {
    "run": "string",
    "hit_rate": "float64",
    **{f"{tier}_hit_rate": "float64" for tier in TIER_NAMES},
    "ttft_mean_ms": "Float64",
    "ttft_p99_ms": "Float64",
    "num_preemptions": "int64",
    **{f"{way}_gib": "Float64" for way in _WAYS},
}
"""Column of the frame -> dtype. Capital letters: missing if the replay was instant."""

_GIB: Final = 2**30


def side_by_side(runs: Mapping[str, ReplayResult]) -> pd.DataFrame:
    """Return the figures of some runs, a row each, in the order given; the index is their name.

    `hit_rate` is `prefix_token` over all tiers, and of each tier the share of it that was found
    there: they add up to it. `swap_in_gib` and the like are what was copied, of all ranks
    together; a way that a run does not have is 0.

    Raises
    ------
    ConfigError
        If there is no run.
    """
    if not runs:
        raise ConfigError("side_by_side needs at least one run")
    rows = (tuple(_row(name, result)) for name, result in runs.items())
    return frame_of(rows, COLUMNS).set_index("run")


def _row(name: str, result: ReplayResult) -> Iterator[object]:
    yield name
    yield result.hits["prefix_token"]["rate"]
    tiers = result.tiers
    for tier in TIER_NAMES:
        yield tiers[tier]["hits"]["prefix_token"]["rate"] if tier in tiers else 0.0
    times, swaps = result.ttft_ms, result.swaps
    for figure in ("mean", "p99"):
        yield None if times is None else times[figure]
    yield result.num_preemptions
    for way in _WAYS:
        yield None if swaps is None else swaps.get(way, {"bytes": 0})["bytes"] / _GIB
