"""The plot of what prompt blocks met in a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.ticker import FuncFormatter

from kvsim.analysis.plots import new_axes
from kvsim.errors import UnknownNameError
from kvsim.hitrate.style import finish, legend, percent_axis
from kvsim.hitrate.timed import CLASSES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from kvsim.hitrate.timed import TimedAttribution

_LOOKS: Final = {
    "hit_gpu": ("#0072B2", ""),
    "hit_cpu": ("#56B4E9", ""),
    "hit_disk": ("#a8d8f0", ""),
    "in_flight": ("#009E73", ""),
    "reload_failed": ("#CC79A7", "xx"),
    "duplicate": ("#CC79A7", ""),
    "policy": ("#D55E00", ""),
    "capacity": ("#E69F00", ""),
    "cold": ("#bbbbbb", ""),
    "partial_tail": ("#dddddd", ".."),
    "not_admitted": ("#777777", "//"),
}
_NUM_BINS: Final = 40
_BLOCKS_A_BIN: Final = 200
_S_NS: Final = 10**9


def plot_classes(found: TimedAttribution, *, by: str, ax: Axes | None = None) -> Axes:
    """Draw the share of the blocks of each class, stacked; return the axes.

    Parameters
    ----------
    by
        "time": spans of equal length of the time of arrival; "depth": the block's position in
        its prompt, from 1, in spans that double. A span without a block is a gap.

    Raises
    ------
    UnknownNameError
        If `by` is something else.
    """
    if by not in ("time", "depth"):
        raise UnknownNameError("axis", by, ("time", "depth"))
    ax = ax or new_axes()
    edges, counts = _by_time(found) if by == "time" else _by_depth(found)
    total = sum(counts.values())
    whole = np.where(total > 0, total, np.nan)
    below = np.zeros(len(edges) - 1)
    for name, those in counts.items():
        if not those.any():
            continue
        above = below + those / whole
        colour, hatch = _LOOKS.get(name, ("#f0e442", ""))
        ax.stairs(
            above, edges, baseline=below, fill=True, facecolor=colour, edgecolor="white",
            linewidth=0.4, hatch=hatch, label=name.replace("_", " "),
        )  # fmt: skip
        below = above
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 1)
    percent_axis(ax, "prompt blocks")
    if by == "depth":
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        ax.set_xlabel("block of the prompt (the first is 1)")
    else:
        ax.set_xlabel("time of arrival (s)")
    legend(ax)
    finish(ax, f"What prompt blocks met (optimum: {found.capacity:,} blocks)", found.caption)
    ax.grid(visible=False)
    return ax


def _by_time(found: TimedAttribution) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    frame = found.frame
    at = frame["arrived_at_ns"].to_numpy(dtype=np.float64) / _S_NS
    weights = frame["num_blocks"].to_numpy(dtype=np.float64)
    num_bins = max(1, min(_NUM_BINS, int(weights.sum()) // _BLOCKS_A_BIN))
    edges = np.linspace(0, (at.max() if len(at) else 0) or 1, num_bins + 1)
    names = frame["class"].to_numpy()
    return edges, {
        name: np.histogram(at[names == name], bins=edges, weights=weights[names == name])[0]
        for name in CLASSES
    }


def _by_depth(
    found: TimedAttribution,
) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    most = max((piece.first_block + piece.num_blocks for piece in found.pieces), default=0)
    edges = np.array([2.0**power for power in range(max(1, most).bit_length() + 1)])
    counts = {name: np.zeros(len(edges) - 1) for name in CLASSES}
    for piece in found.pieces:
        first, end = piece.first_block + 1, piece.first_block + piece.num_blocks + 1
        while first < end:
            span = first.bit_length() - 1
            stop = min(end, 1 << (span + 1))
            counts[piece.name][span] += stop - first
            first = stop
    return edges, counts
