"""Plots of a trace. Each takes and returns `Axes`, labels its units, and never shows a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from kvsim.analysis.plots import new_axes
from kvsim.errors import UserError
from kvsim.trace.paths import checked_path

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.axes import Axes

    from kvsim.analysis.trace_info import TraceInfo

_INK, _FILL, _FAINT = "#1b2a41", "#3b6fb6", "#666666"
_OUTPUT: Final = "#d98032"
_NUM_BINS: Final = 60
_S_NS: Final = 10**9
_SUFFIXES: Final = (".png", ".svg", ".pdf")


def plot_arrivals(info: TraceInfo, *, ax: Axes | None = None) -> Axes:
    """Draw the requests a second in each of 60 equal spans of time; return the axes."""
    ax = ax or new_axes()
    at_s = np.array([each.arrived_at for each in info.trace.requests]) / _S_NS
    minutes = at_s[-1] >= 120
    at = at_s / 60 if minutes else at_s
    counts, edges = np.histogram(at, bins=_NUM_BINS, range=(0, at[-1] or 1))
    width_s = (edges[1] - edges[0]) * (60 if minutes else 1)
    ax.stairs(counts / width_s, edges, fill=True, color=_FILL, alpha=0.35)
    ax.stairs(counts / width_s, edges, color=_INK, linewidth=1.1)
    mean = len(at) / (at_s[-1] or 1)
    ax.axhline(mean, color=_FAINT, linewidth=1, linestyle="--", label=f"mean {mean:.3g} a second")
    ax.set_xlim(0, edges[-1])
    ax.set_ylim(0, 1.25 * max(counts / width_s))
    ax.set_xlabel(f"time of arrival ({'minutes' if minutes else 's'})")
    ax.set_ylabel("requests a second")
    ax.legend(loc="upper right", frameon=False, fontsize=8)
    spread = "" if info.burstiness is None else f"; burstiness {info.burstiness:.2f}"
    _finish(ax, info, f"Arrivals: {info.ties:,} at the time of the one before{spread}")
    return ax


def plot_lengths(info: TraceInfo, *, ax: Axes | None = None) -> Axes:
    """Draw the cumulative distributions of prompt and answer lengths; return the axes."""
    ax = ax or new_axes()
    requests = info.trace.requests
    for values, color, name in (
        ([each.num_input_tokens for each in requests], _FILL, "prompt"),
        ([each.num_output_tokens for each in requests], _OUTPUT, "answer"),
    ):
        ordered = np.sort(np.array(values))
        share = np.arange(1, len(ordered) + 1) / len(ordered)
        label = f"{name}, mean {ordered.mean():,.0f}"
        ax.step(ordered, share, where="post", color=color, linewidth=1.6, label=label)
    _tokens_axis(ax)
    ax.set_xlabel("length (tokens)")
    ax.set_ylabel("share of the requests")
    ax.legend(loc="upper left", frameon=False, fontsize=8)
    _finish(ax, info, "Lengths")
    return ax


def plot_sharing(info: TraceInfo, *, ax: Axes | None = None) -> Axes:
    """Draw, by depth, the share of the block references that occurred before; return the axes.

    The line below is how many of the requests reach that depth.
    """
    ax = ax or new_axes()
    if info.trace.has_prefixes and info.depth_shares:
        depths = np.array(list(info.depth_shares))
        shares = np.array([share for share, _ in info.depth_shares.values()])
        refs = np.array([refs for _, refs in info.depth_shares.values()])
        enough = refs >= 20 if (refs >= 20).any() else refs > 0  # a few references say little
        ax.step(
            depths[enough], shares[enough], where="mid", color=_FILL, linewidth=1.6, label="shared"
        )
        ax.step(
            depths,
            refs / info.trace.num_requests,
            where="mid",
            color=_FAINT,
            linewidth=1,
            linestyle="--",
            label="requests this long",
        )
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(FuncFormatter(_plain))
        ax.legend(loc="lower left", frameon=False, fontsize=8)
    else:
        _say(ax, "lengths only: no prefixes")
    ax.set_ylim(0, 1.05)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_xlabel(f"block of the prompt ({info.trace.block_size} tokens each, the first is 1)")
    ax.set_ylabel("references seen before")
    _finish(ax, info, "Sharing by depth")
    return ax


def plot_reuse(info: TraceInfo, *, ax: Axes | None = None) -> Axes:
    """Draw the cumulative distribution of the reuse distances over all references; return axes.

    The height at x is what an LRU cache of more than x blocks would hit, one request after
    another; the line at the top is what one of unlimited size would.
    """
    ax = ax or new_axes()
    distances = np.sort(info.reuse_distances)
    if len(distances) and info.trace.has_prefixes:
        share = np.arange(1, len(distances) + 1) / info.num_references
        ax.step(np.maximum(distances, 1), share, where="post", color=_FILL, linewidth=1.6)
        top = len(distances) / info.num_references
        ax.axhline(top, color=_FAINT, linewidth=1, linestyle="--", label=f"unlimited: {top:.1%}")
        ax.set_xscale("log")
        ax.set_xlim(1, 1.3 * max(2, distances[-1]))
        ax.set_ylim(0, 1.25 * top)
        ax.xaxis.set_major_formatter(FuncFormatter(_plain))
        ax.legend(loc="upper left", frameon=False, fontsize=8)
    else:
        _say(
            ax, "no block is used twice" if info.trace.has_prefixes else "lengths only: no prefixes"
        )
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_xlabel("reuse distance (other blocks since the last use)")
    ax.set_ylabel("share of the references")
    _finish(ax, info, "Reuse distances")
    return ax


def draw_all(info: TraceInfo) -> Figure:
    """Return a figure with the four plots, which pyplot does not know: nobody has to close it."""
    figure = Figure(figsize=(11.0, 7.4), layout="constrained")
    axes = figure.subplots(2, 2).flat
    for plot, ax in zip((plot_arrivals, plot_lengths, plot_sharing, plot_reuse), axes, strict=True):
        plot(info, ax=ax)
    figure.suptitle(info.title, fontsize=9, color=_INK)
    return figure


def save_plots(info: TraceInfo, path: str | PathLike[str]) -> None:
    """Save the four plots as one picture: .png, .svg or .pdf.

    Raises
    ------
    UserError
        If the ending is another, or the file cannot be written.
    """
    file = checked_path(path)
    if file.suffix.lower() not in _SUFFIXES:
        raise UserError(f"{file}: a plot ends in {', '.join(_SUFFIXES)}, not {file.suffix!r}")
    try:
        draw_all(info).savefig(file, dpi=130)
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror or error}") from error


def _tokens_axis(ax: Axes) -> None:
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(_plain))
    ax.set_ylim(0, 1.05)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _plain(value: float, position: object) -> str:
    del position
    return f"{value:,g}"


def _say(ax: Axes, text: str) -> None:
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", color=_FAINT)
    ax.set_xticks([])


def _finish(ax: Axes, info: TraceInfo, title: str) -> None:
    ax.set_title(title, loc="left", fontsize=10)
    ax.set_title(info.trace.name, loc="right", fontsize=7, color=_FAINT)
    ax.grid(axis="y", alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
