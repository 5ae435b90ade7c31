"""The gauges of a run over time, under the names of kvsim and of engines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsim.analysis.frames import frame_of
from kvsim.analysis.metric_names import METRICS, Kind, check_names
from kvsim.analysis.windows import WindowFigures, running_windows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from kvsim.analysis.metric_names import Number, Totals

_CROWD = {"kvsim_requests_running": "num_running", "kvsim_requests_waiting": "num_waiting"}


def gauges_frame(totals: Totals, steps: pd.DataFrame, names: str, window: int) -> pd.DataFrame:
    """Return one row a Forward: the time of its submission, and the gauges then.

    Parameters
    ----------
    totals
        Of the run.
    steps
        Its steps' frame.
    names
        Whose names the columns have; only those gauges that have one.
    window
        Requests after which the ratios of the window begin anew.

    Raises
    ------
    UnknownNameError
        If `names` is none that is known.
    """
    check_names(names)
    chosen = [each for each in METRICS if each.kind is Kind.GAUGE and each.name_in(names)]
    columns = {"at_ns": "int64", **{str(each.name_in(names)): "float64" for each in chosen}}
    columns["clock"] = "string"

    def rows() -> Iterator[tuple[object, ...]]:
        num_tiers = len(totals.window.num_hit_tokens)
        seen = WindowFigures(0, None, 0, 0, 0, (0,) * num_tiers)
        asked = running_windows(totals.asked, window)
        following = next(asked, None)
        for step in steps.to_dict("records"):
            at = step["submitted_at_ns"]
            while following is not None and (following.at_ns or 0) <= at:
                seen, following = following, next(asked, None)
            free = step["num_gpu_free_blocks"]
            then = replace(totals, window=seen, num_free_blocks=(free,))
            values: list[Number] = [
                step[_CROWD[each.name]] if each.name in _CROWD else _number(each.value(then))
                for each in chosen
            ]
            yield at, *values, step["clock"]

    return frame_of(rows(), columns)


def _number(value: Number | tuple[Number, int] | None) -> Number:
    assert isinstance(value, int | float), "a gauge is one number, and all is known here"
    return value
