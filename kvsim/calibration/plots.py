"""Plots of a calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.analysis.plots import finish, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kvsim.calibration.result import Calibration

_IN, _OUT = "#3b6fb6", "#c1622d"
_US_NS: Final = 1000
_LINE_POINTS: Final = 100  # a straight line is a curve on these axes


def plot_calibration(found: Calibration, *, ax: Axes | None = None) -> Axes:
    """Draw what a copy took over its number of blocks, and the lines; return the axes."""
    ax = ax or new_axes()
    blocks = [each.blocks for each in found.sizes]
    along = np.geomspace(blocks[0], blocks[-1], _LINE_POINTS)
    for name, color, line, times in (
        ("swap-in", _IN, found.swap_in, [each.in_ns for each in found.sizes]),
        ("swap-out", _OUT, found.swap_out, [each.out_ns for each in found.sizes]),
    ):
        ax.plot(blocks, [at / _US_NS for at in times], "o", color=color, markersize=5, label=name)
        label = f"{line.op_ns / _US_NS:,.0f} us + {line.block_ns / _US_NS:,.2f} us a block"
        ax.plot(along, (line.op_ns + line.block_ns * along) / _US_NS, color=color, label=label)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("blocks of the copy")
    ax.set_ylabel("time of the slowest rank (us)")
    ax.legend(frameon=False, fontsize=8)
    conditions = found.conditions
    caption = (
        f"{conditions.ranks} ranks on {conditions.device} · {conditions.rank_block_bytes:,} bytes a"
        f" block and rank · clock: wall · {found.origin.machine}"
    )
    finish(ax, "What a copy takes: medians, and the line through them", caption)
    return ax
