"""Plots of a run. Each takes and returns `Axes`, labels its units, and never shows a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_GPU, _CPU, _LINE, _FAINT, _WARMUP = "#3b6fb6", "#9ecae1", "#1b2a41", "#666666", "#e8e8e8"
_FIGURE_INCHES: Final = (7.0, 3.8)
_MAX_BINS: Final = 40
_REQUESTS_PER_BIN: Final = 50
_MINUTE_NS: Final = 60 * 10**9
_LOG_SPAN: Final = 30
"""Above this ratio of the largest to the smallest time the axis is logarithmic."""


def new_figure() -> Figure:
    """Return an empty figure that pyplot does not know: nobody has to close it."""
    return Figure(figsize=_FIGURE_INCHES, layout="constrained")


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
    share = np.arange(1, len(times_ms) + 1) / len(times_ms)
    ax.step(times_ms, share, where="post", color=_GPU, linewidth=1.8)
    for percent in (50, 90, 99):
        at_ms = times_ms[-(-len(times_ms) * percent // 100) - 1]
        ax.plot([at_ms, at_ms], [0, percent / 100], color=_FAINT, linewidth=0.8, linestyle=":")
        ax.plot(at_ms, percent / 100, "o", color=_LINE, markersize=4)
        ax.annotate(
            f"p{percent}  {_readable_ms(at_ms)}",
            (at_ms, percent / 100),
            textcoords="offset points",
            xytext=(-7, 4),
            horizontalalignment="right",
            fontsize=8,
            color=_LINE,
        )
    if times_ms[-1] > _LOG_SPAN * times_ms[0] > 0:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    else:
        ax.set_xlim(left=0)
    ax.set_ylim(0, 1.02)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel("time to first token (ms)")
    ax.set_ylabel("share of the requests")
    _finish(ax, "Time to first token", caption)
    return ax


def plot_hits(
    requests: pd.DataFrame, *, block_size: int, caption: str, ax: Axes | None = None
) -> Axes:
    """Draw the share of the input tokens that hit, by tier, over the time of arrival.

    Each step is one of at most 40 equal spans of time; the figure is `prefix_token`. A span
    without a request is a gap. The warm-up is shaded.
    """
    ax = ax or new_axes()
    at_min = requests["arrived_at_ns"].to_numpy(dtype=np.float64) / _MINUTE_NS
    num_bins = max(1, min(_MAX_BINS, len(at_min) // _REQUESTS_PER_BIN))
    edges = np.linspace(0, max(at_min[-1], 1e-9), num_bins + 1)
    tokens = requests["num_input_tokens"].to_numpy()
    hits = requests["num_hit_tokens"].to_numpy()
    gpu_hits = np.minimum(requests["num_gpu_hit_blocks"].to_numpy() * block_size, tokens)

    def by_span(values: np.ndarray) -> np.ndarray:
        return np.histogram(at_min, bins=edges, weights=values)[0]

    total = by_span(tokens)
    total = np.where(total > 0, total, np.nan)
    gpu, both = by_span(gpu_hits) / total, by_span(hits) / total
    ax.stairs(gpu, edges, fill=True, color=_GPU, label="GPU")
    if requests["num_cpu_hit_blocks"].any():
        ax.stairs(both, edges, baseline=gpu, fill=True, color=_CPU, label="CPU")
    ax.stairs(both, edges, color=_LINE, linewidth=1.2, baseline=None)
    is_measured = ~requests["is_warmup"].to_numpy()
    start_min = 0.0 if is_measured.all() else float(at_min[is_measured][0])
    if start_min:
        ax.axvspan(0, start_min, color=_WARMUP, linewidth=0, label="warm-up", zorder=0)
    mean = hits[is_measured].sum() / tokens[is_measured].sum()
    label = f"{mean:.1%} {'after warm-up' if start_min else 'overall'}"
    ax.hlines(mean, start_min, edges[-1], color=_FAINT, linewidth=1, linestyle="--", label=label)
    ax.set_xlim(0, edges[-1])
    ax.set_ylim(0, min(1.0, 1.25 * float(np.nanmax(both)) or 1.0))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel("time of arrival (minutes)")
    ax.set_ylabel("input tokens that hit")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    _finish(ax, "Hit rate (prefix_token) over time", caption)
    return ax


def _finish(ax: Axes, title: str, caption: str) -> None:
    ax.set_title(title, loc="left", fontsize=11, pad=20)
    ax.text(0, 1.025, caption, transform=ax.transAxes, fontsize=7.5, color=_FAINT)
    ax.grid(axis="y", alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def _readable_ms(value_ms: float) -> str:
    return f"{value_ms / 1000:,.3g} s" if value_ms >= 1000 else f"{value_ms:.3g} ms"
