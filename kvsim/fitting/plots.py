"""The plot of a fitted model. It takes and returns `Axes`, and never shows a window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.analysis.plots import new_axes
from kvsim.hitrate.style import COLOURS, FAINT, blocks_axis, finish, percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kvsim.trace.synthesis import FitReport


def plot_report(report: FitReport, *, caption: str, ax: Axes | None = None) -> Axes:
    """Draw the LRU curves of the source and of draws from its model; return the axes.

    Parameters
    ----------
    caption
        Which trace it is; seeds and the error are added.
    """
    ax = ax or new_axes()
    ax.set_xscale("log")
    for rates, color, line, marker, name in (
        (report.source_rates, COLOURS[0], "-", "o", "the trace"),
        (report.model_rates, COLOURS[1], "--", "s", "its model"),
    ):
        ax.plot(
            report.capacities, rates, color=color, linestyle=line, marker=marker, markersize=4,
            label=name,
        )  # fmt: skip
    ax.axhline(
        report.source_infinite,
        color=FAINT,
        linestyle=":",
        linewidth=1,
        label="the trace, unlimited",
    )
    ax.set_ylim(0, min(1.05, 1.15 * max(report.source_infinite, *report.model_rates)) or 1.0)
    blocks_axis(ax.xaxis, "capacity (blocks)")
    percent_axis(ax, "LRU hit rate (blocks)")
    ax.legend(loc="lower right", frameon=False, fontsize=8)
    finish(
        ax,
        f"Mean absolute error {100 * report.curve_error:.2f} points",
        f"{caption} · seeds {', '.join(map(str, report.seeds))} · no requests in flight",
    )
    return ax
