"""Plots of a run. Each takes and returns `Axes`, labels its units, and never shows a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes

_GPU, _CPU, _DISK = "#3b6fb6", "#9ecae1", "#deebf7"
_LINE, _FAINT, _WARMUP = "#1b2a41", "#666666", "#e8e8e8"
_FIGURE_INCHES: Final = (7.0, 3.8)
_MAX_BINS: Final = 40
_REQUESTS_PER_BIN: Final = 50
_SECOND_NS: Final = 10**9
_MINUTE_NS: Final = 60 * _SECOND_NS
_LOG_SPAN: Final = 30
"""Above this ratio of the largest to the smallest time the axis is logarithmic."""


def new_figure() -> Figure:
    """Return an empty figure that pyplot does not know: nobody has to close it."""
    return Figure(figsize=_FIGURE_INCHES, layout="constrained")


def save_plot(file: Path, plot: Callable[..., Axes]) -> None:
    """Draw a plot on a figure of its own, by its argument `ax`, and write the picture."""
    figure = new_figure()
    plot(ax=figure.add_subplot())
    figure.savefig(file, dpi=130)


def new_axes() -> Axes:
    """Return the axes of a new figure of pyplot, which a notebook shows by itself."""
    from matplotlib import pyplot as plt  # slow to import, and not needed to save files

    return plt.subplots(figsize=_FIGURE_INCHES, layout="constrained")[1]


def plot_ttft(requests: pd.DataFrame, *, caption: str, ax: Axes | None = None) -> Axes:
    """Draw the cumulative distribution of the time to first token; return the axes.

    Parameters
    ----------
    requests
        The requests' frame; those without a first token are left out.
    caption
        What was replayed, how, and on which clock.
    """
    ax = ax or new_axes()
    times_ms = np.sort(requests["ttft_ms"].dropna().to_numpy(dtype=np.float64))
    percentiles = {
        percent: times_ms[-(-len(times_ms) * percent // 100) - 1] for percent in (50, 90, 99)
    }
    unit, unit_ms = ("s", 1000) if percentiles[50] >= 1000 else ("ms", 1)
    times = times_ms / unit_ms
    share = np.arange(len(times) + 1) / len(times)
    ax.step([times[0], *times], share, where="post", color=_GPU, linewidth=1.8)
    for percent, at_ms in percentiles.items():
        at = at_ms / unit_ms
        ax.plot([at, at], [0, percent / 100], color=_FAINT, linewidth=0.8, linestyle=":")
        ax.plot(at, percent / 100, "o", color=_LINE, markersize=4)
        ax.annotate(
            f"p{percent}  {_readable_ms(at_ms)}",
            (at, percent / 100),
            textcoords="offset points",
            xytext=(-7, 4),
            horizontalalignment="right",
            fontsize=8,
            color=_LINE,
        )
    if times[-1] > _LOG_SPAN * times[0] > 0:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    else:
        ax.set_xlim(0, 1.05 * times[-1] or 1)
    ax.set_ylim(0, 1.07)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel(f"time to first token ({unit})")
    ax.set_ylabel("share of the requests")
    finish(ax, "Time to first token", caption)
    return ax


def plot_hits(
    requests: pd.DataFrame, *, block_size: int, caption: str, ax: Axes | None = None
) -> Axes:
    """Draw the share of the input tokens that hit, by tier, over the time of arrival.

    Each step is one of at most 40 equal spans of time; the figure is `prefix_token`. A span
    without a request is a gap. The warm-up is shaded.
    """
    ax = ax or new_axes()
    at_ns = requests["arrived_at_ns"].to_numpy(dtype=np.float64)
    unit, unit_ns = ("minutes", _MINUTE_NS) if at_ns[-1] >= 2 * _MINUTE_NS else ("s", _SECOND_NS)
    at = at_ns / unit_ns
    num_bins = max(1, min(_MAX_BINS, len(at) // _REQUESTS_PER_BIN))
    edges = np.linspace(0, at[-1] or 1, num_bins + 1)
    tokens = requests["num_input_tokens"].to_numpy()
    hits = requests["num_hit_tokens"].to_numpy()
    gpu_hits = np.minimum(requests["num_gpu_hit_blocks"].to_numpy() * block_size, tokens)

    def by_span(values: np.ndarray) -> np.ndarray:
        return np.histogram(at, bins=edges, weights=values)[0]

    total = by_span(tokens)
    total = np.where(total > 0, total, np.nan)
    near_blocks = requests["num_gpu_hit_blocks"] + requests["num_cpu_hit_blocks"]
    near_hits = np.minimum(near_blocks.to_numpy() * block_size, tokens)
    gpu, both = by_span(gpu_hits) / total, by_span(hits) / total
    near = by_span(near_hits) / total
    ax.stairs(gpu, edges, fill=True, color=_GPU, label="GPU")
    if requests["num_cpu_hit_blocks"].any():
        ax.stairs(near, edges, baseline=gpu, fill=True, color=_CPU, label="CPU")
    if requests["num_disk_hit_blocks"].any():
        ax.stairs(both, edges, baseline=near, fill=True, color=_DISK, label="disk")
    ax.stairs(both, edges, color=_LINE, linewidth=1.2, baseline=None)
    is_measured = ~requests["is_warmup"].to_numpy()
    start = 0.0 if is_measured.all() else float(at[is_measured][0])
    if start:
        ax.axvspan(0, start, color=_WARMUP, linewidth=0, label="warm-up", zorder=0)
    mean = hits[is_measured].sum() / tokens[is_measured].sum()
    label = f"{mean:.1%} {'after warm-up' if start else 'overall'}"
    ax.hlines(mean, start, edges[-1], color=_FAINT, linewidth=1, linestyle="--", label=label)
    ax.set_xlim(0, edges[-1])
    ax.set_ylim(0, min(1.0, 1.25 * float(np.nanmax(both)) or 1.0))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel(f"time of arrival ({unit})")
    ax.set_ylabel("input tokens that hit")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    finish(ax, "Hit rate (prefix_token) over time", caption)
    return ax


def finish(ax: Axes, title: str, caption: str) -> None:
    """Give a plot its title, its caption and the look of all others."""
    ax.set_title(title, loc="left", fontsize=11, pad=20)
    ax.text(0, 1.025, caption, transform=ax.transAxes, fontsize=7.5, color=_FAINT)
    ax.grid(axis="y", alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def _readable_ms(value_ms: float) -> str:
    return f"{value_ms / 1000:,.3g} s" if value_ms >= 1000 else f"{value_ms:.3g} ms"
