"""Plots of a sweep. They take and return `Axes`, label their units, and never show a window."""

from __future__ import annotations

from itertools import cycle
from math import ceil
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#9A8F00",
)  # fmt: skip
"""Told apart by those who see fewer colours, too; the last is darker than its original.

Source: M. Okabe, K. Ito, Color Universal Design (2008).
"""

_MARKERS: Final = "os^Dv<>Pp"
_STYLES: Final[tuple[Literal["-", "--", ":", "-."], ...]] = ("-", "--", ":", "-.")
_FAINT: Final = "#666666"
_PANEL_INCHES: Final = (5.6, 3.8)
_MOST_IN_A_ROW: Final = 2
_MOST_TICKS: Final = 6
_LOG_SPAN: Final = 5
"""From this ratio of the largest to the smallest capacity on, the axis is logarithmic."""


def new_panels(num_panels: int) -> tuple[Axes, ...]:
    """Return the axes of a new figure of pyplot, which a notebook shows by itself."""
    from matplotlib import pyplot as plt  # slow to import, and not needed to save files

    return add_panels(plt.figure(layout="constrained"), num_panels)


def add_panels(figure: Figure, num_panels: int) -> tuple[Axes, ...]:
    """Return new axes in a figure, which gets as large as they need."""
    columns = min(num_panels, _MOST_IN_A_ROW)
    rows = ceil(num_panels / columns)
    figure.set_size_inches(_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows)
    return tuple(figure.add_subplot(rows, columns, index + 1) for index in range(num_panels))


def plot_rates(rates: pd.DataFrame, *, policies: Sequence[str], definition: str, ax: Axes) -> Axes:
    """Draw the rates of one trace over the capacity; return the axes.

    A colour and a marker is a policy; a style of line, if there are several, a variant and the
    size of the other tier. The mark is the mean over the seeds, the band reaches from the least
    to the most. A cell that failed leaves a gap.

    Parameters
    ----------
    rates
        Rows of one trace from `SweepResult.rates`.
    policies
        Which columns are policies, in an order that all panels share.
    """
    x, other = ("gpu_blocks", "cpu_blocks")
    sized = rates.dropna(subset=[x, other])  # settings that do not fit the trace have no size
    if rates[x].nunique() == 1 < rates[other].nunique():
        x, other = other, x
    groups = dict(list(sized.groupby(["config", other], sort=False)))
    looks = _looks(policies)
    for part, style in zip(groups.values(), cycle(_STYLES), strict=False):
        for policy, look in looks.items():
            by_size = part.groupby(x)[policy]
            mean, low, high = (by_size.agg(how).astype("float64") for how in ("mean", "min", "max"))
            sizes = mean.index.to_numpy(dtype=np.float64)
            ax.plot(sizes, mean, linestyle=style, **look)
            if (high > low).any():
                ax.fill_between(sizes, low, high, color=look["color"], alpha=0.18, linewidth=0)
    _finish(ax, rates, x=x, definition=definition)
    handles = [
        Line2D([], [], label=policy if rates[policy].notna().any() else f"{policy}: failed", **look)
        for policy, look in looks.items()
    ]
    handles += _style_handles(list(groups), other=other)
    ax.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8
    )
    return ax


def _looks(policies: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return how the line of each policy looks: what is drawn later is slimmer, and hides none."""
    looks = {}
    for index, policy in enumerate(policies):
        width = max(1.0, 3.0 - 0.7 * index)
        looks[policy] = {
            "color": _COLOURS[index % len(_COLOURS)],
            "marker": _MARKERS[index % len(_MARKERS)],
            "linewidth": width,
            "markersize": 3.5 + 1.5 * width,
            "markerfacecolor": "none",
        }
    return looks


def _finish(ax: Axes, rates: pd.DataFrame, *, x: str, definition: str) -> None:
    sizes = rates[x].dropna().to_numpy(dtype=np.float64)
    above_zero = sizes[sizes > 0]
    if len(above_zero) and sizes.max() >= _LOG_SPAN * above_zero.min():
        if sizes.min() > 0:
            ax.set_xscale("log")
        else:
            ax.set_xscale("symlog", linthresh=float(above_zero.min()))
    ticks = np.unique(sizes)
    if 0 < len(ticks) <= _MOST_TICKS:
        ax.set_xticks(ticks)
        ax.xaxis.set_minor_locator(NullLocator())
    elif ax.get_xscale() == "log":
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    tier = "GPU" if x == "gpu_blocks" else "CPU"
    ax.set_xlabel(f"{tier} tier (blocks)")
    ax.set_ylabel(f"hit rate ({definition})")
    ax.text(0, 1.025, _caption(rates), transform=ax.transAxes, fontsize=7.5, color=_FAINT)
    ax.grid(axis="y", alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def _caption(rates: pd.DataFrame) -> str:
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(rates["seed"]))
    parts = [f"clock: {rates.attrs['clock']}", f"seed {seeds}"]
    for column, tier in (("gpu_blocks", "GPU"), ("cpu_blocks", "CPU")):
        if rates[column].nunique() == 1:
            parts.append(f"{rates[column].dropna().iloc[0]:,} {tier} blocks")
    facts = rates.attrs["traces"][rates["trace"].iloc[0]]
    return " · ".join([*parts, f"{facts['block_size']} tokens a block"])


def _style_handles(groups: Sequence[tuple[object, ...]], *, other: str) -> list[Line2D]:
    """Return what explains the styles of line; nothing if there is one."""
    if len(groups) < 2:
        return []
    tier = "CPU" if other == "cpu_blocks" else "GPU"
    has_variants = len({variant for variant, _ in groups}) > 1
    has_sizes = len({size for _, size in groups}) > 1
    handles = []
    for (variant, size), style in zip(groups, cycle(_STYLES), strict=False):
        words = [str(variant)] * has_variants + [f"{size:,} {tier} blocks"] * has_sizes
        handles.append(Line2D([], [], color=_FAINT, linestyle=style, label=", ".join(words)))
    return handles
