"""Plots of the lab. Each takes and returns `Axes`, labels its units, and never shows a window."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.ticker import FuncFormatter, PercentFormatter

from kvsim.analysis.plots import new_axes
from kvsim.errors import UserError
from kvsim.hitrate.style import (
    BAND,
    COLOURS,
    DASHES,
    FAINT,
    INK,
    MARKERS,
    blocks_axis,
    finish,
    legend,
    percent_axis,
)
from kvsim.hitrate.tables import check_definition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from kvsim.hitrate.attribution import MissAttribution
    from kvsim.hitrate.curves import HitCurve
    from kvsim.hitrate.distances import Reuse
    from kvsim.hitrate.league import PolicyLeague
    from kvsim.hitrate.pins import PinEffect
    from kvsim.hitrate.plane import TierPlane
    from kvsim.hitrate.replays import HitReplay
    from kvsim.hitrate.sampling import SampledCurve
    from kvsim.hitrate.tier_bound import TwoTierBound

_CAUSES: Final = {  # from found to unavoidable: dark to light, and hatched in print
    "hit": ("#0072B2", ""),
    "policy": ("#E69F00", "///"),
    "capacity": ("#D55E00", "\\\\\\"),
    "cold": ("#999999", ""),
    "partial_tail": ("#dddddd", "..."),
}
_MOST_MARKED: Final = 30
_MOST_BINS: Final = 40
_REQUESTS_PER_BIN: Final = 50
_SECOND_NS: Final = 10**9
_NAMES: Final = {"opt": "optimum", "opt-bypass": "optimum, may bypass"}


def plot_curves(
    curves: Sequence[HitCurve], *, definition: str = "prefix_token", ax: Axes | None = None
) -> Axes:
    """Draw hit rates over the capacity, with the bound of an infinite cache.

    An LRU curve is drawn at every capacity; of others the points that were asked for are marked.
    """
    check_definition(definition)
    ax = ax or new_axes()
    bounds = [curve for curve in curves if curve.policy in _NAMES]
    policies = [curve for curve in curves if curve.policy not in _NAMES]
    for curve, colour, dashes, marker in zip(
        policies, cycle(COLOURS), cycle(DASHES), cycle(MARKERS), strict=False
    ):
        at, rates = _curve_points(curve, definition)
        is_marked = curve.histogram is None and len(at) <= _MOST_MARKED
        ax.plot(
            at, rates, color=colour, linestyle=dashes, linewidth=1.8, label=curve.policy,
            marker=marker if is_marked else "", markersize=4.5,
        )  # fmt: skip
    for curve, dashes in zip(bounds, ("-", ":"), strict=False):
        at, rates = _curve_points(curve, definition)
        ax.plot(
            at, rates, color=INK, linestyle=dashes, linewidth=1.2, label=_NAMES[curve.policy],
            marker="x" if len(at) <= _MOST_MARKED else "", markersize=4.5,
        )  # fmt: skip
    infinite = curves[0].infinite[definition].figure()["rate"]
    ax.axhline(infinite, color=FAINT, linewidth=1, linestyle="--")
    ax.annotate(
        f"infinite cache {infinite:.1%}", (1, infinite), xycoords=("axes fraction", "data"),
        textcoords="offset points", xytext=(-2, 3), ha="right", fontsize=8, color=FAINT,
    )  # fmt: skip
    ax.set_xscale("log")
    blocks_axis(ax.xaxis, "capacity (blocks)")
    ax.set_ylim(0, min(1.0, 1.15 * infinite) or 1.0)
    percent_axis(ax, f"hit rate ({definition})")
    if len(curves) > 1:
        legend(ax)
    name = curves[0].policy
    title = "Hit rate by capacity" if len(curves) > 1 else f"Hit rate by capacity: {name}"
    finish(ax, title, curves[0].basis.caption)
    return ax


def plot_sampled(curve: SampledCurve, *, definition: str, ax: Axes | None = None) -> Axes:
    """Draw estimated hit rates, with the error to expect as bars where it is known."""
    ax = ax or new_axes()
    rates = [each[definition] for each in curve.rates]
    error = None if curve.error is None else curve.expected_error
    ax.errorbar(
        curve.capacities, rates, yerr=error, color=COLOURS[0], marker="o", markersize=4.5,
        linewidth=1.5, capsize=3,
    )  # fmt: skip
    ax.set_xscale("log")
    blocks_axis(ax.xaxis, "capacity (blocks)")
    ax.set_ylim(0, min(1.0, 1.25 * max(rates)) or 1.0)
    percent_axis(ax, f"estimated hit rate ({definition})")
    what = "error to expect as bars" if error is not None else "error not known"
    title = f"{curve.policy} from {curve.rate:.0%} of the blocks ({what})"
    finish(ax, title, curve.basis.caption)
    return ax


def plot_plane(
    plane: TierPlane, *, definition: str = "prefix_token", ax: Axes | None = None
) -> Axes:
    """Draw lines of equal hit rate, both tiers together, over their sizes.

    Between the least and the largest sizes that were asked for, exact at every point.
    """
    check_definition(definition)
    if len(plane.names) != 2:
        raise UserError(f"a plane of {len(plane.names)} tiers cannot be drawn: it must have two")
    gpu, cpu = (sorted({sizes[i] for sizes in plane.sizes}) for i in range(2))
    if len(gpu) < 2 or len(cpu) < 2:
        raise UserError("a plane can be drawn from two sizes of each tier on")
    ax = ax or new_axes()
    across, up = _grid(gpu), _grid(cpu)
    rates = np.array(
        [[plane.at(g, h)["all"][definition]["rate"] for g in across] for h in up], dtype=np.float64
    )
    levels = _round_levels(float(rates.min()), float(rates.max()))
    # Every step of the shading has a line with its figure, so that it reads in grey as well.
    filled = ax.contourf(across, up, rates, levels=levels, cmap="Blues", extend="both")
    lines = ax.contour(across, up, rates, levels=levels, colors=INK, linewidths=0.8)
    for label in ax.clabel(lines, fmt=lambda rate: f"{100 * rate:g} %", fontsize=8):
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})
    colours = ax.figure.colorbar(filled, ax=ax, format=PercentFormatter(1.0, decimals=0))
    colours.set_label(f"hit rate, both tiers ({definition})", fontsize=8)
    for axis, name, sizes in ((ax.xaxis, "GPU", gpu), (ax.yaxis, "CPU", cpu)):
        if sizes[-1] > 20 * max(1, sizes[0]):
            rescale = ax.set_xscale if name == "GPU" else ax.set_yscale
            rescale("symlog", linthresh=next(size for size in sizes if size), linscale=0.4)
        blocks_axis(axis, f"{name} tier (blocks)")
    finish(ax, f"Hit rate of two {plane.mode} LRU tiers", plane.basis.caption)
    ax.grid(visible=False)
    return ax


def plot_league(league: PolicyLeague, *, definition: str, ax: Axes | None = None) -> Axes:
    """Draw each policy's hits as a share of the optimum's, the best on top."""
    ax = ax or new_axes()
    shares = {policy: league.share_of_opt(policy, definition) for policy in league.hits}
    ordered = sorted(shares, key=lambda policy: shares[policy])
    widths = [shares[policy] for policy in ordered]
    bars = ax.barh(ordered, widths, color=COLOURS[0], height=0.65)
    texts = [
        f"{shares[policy]:.1%}  (hit rate {league.hits[policy][definition]['rate']:.2%})"
        for policy in ordered
    ]
    ax.bar_label(bars, texts, padding=4, fontsize=8, color=INK)
    ax.axvline(1, color=INK, linewidth=1.2)
    best = league.opt[definition]["rate"]
    ax.annotate(
        f"optimum {best:.2%}", (1, 1), xycoords=("data", "axes fraction"),
        textcoords="offset points", xytext=(-3, -2), ha="right", va="top", rotation=90, fontsize=8,
    )  # fmt: skip
    ax.set_xlim(0, 1.32)
    ax.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_xlabel(f"hits as a share of the optimum's ({definition})")
    finish(ax, f"Policies at {league.capacity:,} blocks", league.basis.caption)
    ax.grid(visible=False)
    return ax


def plot_reuse_distance(found: Reuse, *, ax: Axes | None = None) -> Axes:
    """Draw the share of references whose block is found within so many blocks of the stack."""
    ax = ax or new_axes()
    _distribution(ax, found.by_distance, found, unit=1)
    blocks_axis(ax.xaxis, "reuse distance (blocks of the LRU stack)")
    finish(ax, "Reuse distance", found.basis.caption)
    return ax


def plot_reuse_time(found: Reuse, *, ax: Axes | None = None) -> Axes:
    """Draw the share of references whose block was used within so many seconds before."""
    ax = ax or new_axes()
    _distribution(ax, found.by_time_ns, found, unit=_SECOND_NS)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    ax.set_xlabel("reuse time (s, by the trace's clock)")
    finish(ax, "Reuse time", found.basis.caption)
    return ax


def plot_over_time(replay: HitReplay, *, ax: Axes | None = None) -> Axes:
    """Draw the share of input tokens that hit over the time of arrival, and what was known.

    Each step is one of at most 40 equal spans of time; the figure is `prefix_token`. The warm-up is
    shaded. Known is what a cache that never evicts would hit.
    """
    ax = ax or new_axes()
    requests, size = replay.trace.requests, replay.trace.block_size
    at_s = np.array([each.arrived_at for each in requests]) / _SECOND_NS
    unit, scale = ("minutes", 60.0) if at_s[-1] >= 120 else ("s", 1.0)
    tokens = np.array([each.num_input_tokens for each in requests])
    num_bins = max(1, min(_MOST_BINS, len(requests) // _REQUESTS_PER_BIN))
    edges = np.linspace(0, at_s[-1] or 1.0, num_bins + 1)
    totals = np.histogram(at_s, bins=edges, weights=tokens)[0]
    totals = np.where(totals > 0, totals, np.nan)

    def share_of(runs: Sequence[int]) -> NDArray[np.float64]:
        hits = np.minimum(np.array(runs) * size, tokens)
        by_span: NDArray[np.float64] = np.histogram(at_s, bins=edges, weights=hits)[0] / totals
        return by_span

    steps = edges / scale
    ax.stairs(
        share_of(replay.runs), steps, baseline=None, color=COLOURS[0], linewidth=1.8,
        label=replay.policy,
    )  # fmt: skip
    ax.stairs(
        share_of(replay.known), steps, baseline=None, color=FAINT, linewidth=1, linestyle="--",
        label="infinite cache",
    )  # fmt: skip
    warm = replay.basis.num_warmup_requests
    if warm:
        ax.axvspan(0, at_s[warm] / scale, color=BAND, linewidth=0, label="warm-up", zorder=0)
    ax.set_xlim(0, edges[-1] / scale)
    ax.set_ylim(bottom=0)
    ax.set_xlabel(f"time of arrival ({unit}, by the trace's clock)")
    percent_axis(ax, "input tokens that hit")
    legend(ax)
    finish(ax, f"Hits over time: {replay.policy}, {replay.capacity:,} blocks", replay.basis.caption)
    return ax


def plot_causes(causes: MissAttribution, *, ax: Axes | None = None) -> Axes:
    """Draw what became of all references, one bar a definition."""
    ax = ax or new_axes()
    names = [name for name in causes.counts if name != "prefix_block"][::-1]  # as "block"
    left = np.zeros(len(names))
    for cause, (colour, hatch) in _CAUSES.items():
        shares = np.array([_share(causes.counts[name], cause) for name in names])
        ax.barh(
            names, shares, left=left, color=colour, hatch=hatch, edgecolor="white", height=0.6,
            label=cause.replace("_", " "),
        )  # fmt: skip
        for index, share in enumerate(shares):
            if share >= 0.05:
                ax.text(
                    left[index] + share / 2, index, f"{share:.0%}", ha="center", va="center",
                    fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2},
                )  # fmt: skip
        left += shares
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_xlabel("share of block references, or of input tokens")
    legend(ax)
    title = f"What references meet: {causes.policy}, {causes.capacity:,} blocks"
    finish(ax, title, causes.basis.caption)
    ax.grid(visible=False)
    return ax


def plot_pin_effect(effect: PinEffect, *, definition: str, ax: Axes | None = None) -> Axes:
    """Draw timed less instant hit rate, in points, over the capacity: a line for each load."""
    ax = ax or new_axes()
    loads = sorted({point.load for point in effect.points})
    for load, colour, dashes, marker in zip(
        loads, cycle(COLOURS), cycle(DASHES), cycle(MARKERS), strict=False
    ):
        points = sorted(
            (point.capacity, point.difference_points(definition))
            for point in effect.points
            if point.load == load
        )
        ax.plot(
            *zip(*points, strict=True), color=colour, linestyle=dashes, marker=marker,
            markersize=4.5, label=f"{load:g} x load",
        )  # fmt: skip
    ax.axhline(0, color=INK, linewidth=1)
    ax.set_xscale("log")
    blocks_axis(ax.xaxis, "capacity (GPU blocks)")
    ax.set_xticks(sorted({point.capacity for point in effect.points}))
    ax.minorticks_off()
    ax.set_ylabel(f"timed less instant ({definition}, points)")
    legend(ax)
    caption = effect.basis.caption.replace("no requests", "virtual time less no requests")
    finish(ax, f"Effect of requests in flight: {effect.policy}", caption)
    return ax


def plot_bound(bound: TwoTierBound, *, ax: Axes | None = None) -> Axes:
    """Draw what becomes of the block references in the optimum of two tiers."""
    ax = ax or new_axes()
    counts = bound.counts["block"]
    parts = {
        "GPU hit": (counts.gpu, 0.0, COLOURS[0]),
        "CPU hit": (counts.cpu, bound.costs.cpu_hit + bound.costs.demotion, COLOURS[4]),
        "miss": (counts.total - counts.gpu - counts.cpu, bound.costs.miss, "#bbbbbb"),
    }
    names = [f"{name}\n(cost {each[1]:g})" for name, each in parts.items()]
    shares = [each[0] / counts.total if counts.total else 0.0 for each in parts.values()]
    bars = ax.bar(names, shares, color=[each[2] for each in parts.values()], width=0.6)
    ax.bar_label(bars, [f"{share:.1%}" for share in shares], padding=2, fontsize=8)
    ax.set_ylim(0, 1.1 * max(shares))
    percent_axis(ax, "share of the block references")
    title = (
        f"Optimum of {bound.gpu_blocks:,} GPU + {bound.cpu_blocks:,} CPU blocks:"
        f" {bound.cost_per_reference:.3f} a reference"
    )
    finish(ax, title, bound.basis.caption)
    return ax


def _curve_points(
    curve: HitCurve, definition: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if curve.histogram is None:
        order = np.argsort(curve.capacities)
        rates = np.array(curve.rates(definition), dtype=np.float64)
        return np.array(curve.capacities, dtype=np.float64)[order], rates[order]
    hits = curve.histogram.by_capacity(definition)
    total = curve.infinite[definition].total or 1
    # Every capacity would be more points than a picture has dots.
    some = np.geomspace(1, max(1, len(hits) - 1), 2000).round().astype(np.int64)
    at = np.unique(some[some < len(hits)])
    return at.astype(np.float64), hits[at] / total


def _distribution(ax: Axes, counts: Mapping[int, int], found: Reuse, *, unit: int) -> None:
    """Draw the cumulative share of all references, and the share that can never be found."""
    values = np.array(list(counts)) / unit
    shares = np.cumsum(list(counts.values())) / (found.num_first + sum(counts.values()))
    ax.step(values, shares, where="post", color=COLOURS[0], linewidth=1.8)
    ceiling = float(shares[-1]) if len(shares) else 0.0
    ax.axhline(ceiling, color=FAINT, linewidth=1, linestyle="--")
    ax.annotate(
        f"{ceiling:.1%} of references have an earlier use", (0.01, ceiling),
        xycoords=("axes fraction", "data"), textcoords="offset points", xytext=(0, 3), fontsize=8,
        color=FAINT,
    )  # fmt: skip
    positive = values[values > 0]
    if len(positive) and positive[-1] > 30 * positive[0]:
        # equal stamps in a trace give a reuse time of 0, which is left of every logarithm
        ax.set_xscale("log")
    ax.set_ylim(0, min(1.0, 1.15 * ceiling) or 1.0)
    percent_axis(ax, "share of the block references")


def _share(counts: Mapping[str, int], cause: str) -> float:
    total = sum(counts.values())
    return counts[cause] / total if total else 0.0


def _grid(sizes: Sequence[int]) -> list[int]:
    """Return about 50 sizes from the least to the largest, denser where they are small."""
    low, high = sizes[0], sizes[-1]
    steps = np.linspace(0, 1, 50)
    return sorted({round(low + (high - low) * step**2) for step in steps.tolist()})


def _round_levels(low: float, high: float) -> list[float]:
    """Return at most about nine percentages between two rates, evenly spaced, whole if possible."""
    for step in (0.005, 0.01, 0.02, 0.05, 0.1):
        if (high - low) / step <= 9:
            break
    first = int(low / step)
    levels = [round(step * i, 4) for i in range(first, int(high / step) + 2)]
    return levels if len(levels) > 1 else [low, low + step]
