"""Plots of a validation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.analysis.plots import finish, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kvsim.validation.result import Validation

_COLORS: Final = {"swap_in": "#3b6fb6", "swap_out": "#c1622d"}
_US_NS: Final = 1000


def plot_copies(found: Validation, *, ax: Axes | None = None) -> Axes:
    """Draw what each copy of the run took over its size, and what was predicted; return the axes.

    Both axes are logarithmic. A point is a copy on its slowest rank.
    """
    ax = ax or new_axes()
    for name, source in (("swap_in", 1), ("swap_out", 0)):
        records = [
            each
            for each in found.run.transfer_records
            if each.source == source and each.outcome == "done" and each.copy_ns
        ]
        if not records:
            continue
        blocks = np.array([each.num_blocks for each in records])
        times = np.array([each.copy_ns or 0 for each in records]) / _US_NS
        color, ratio = _COLORS[name], found.ratios[name]
        ax.plot(blocks, times, ".", color=color, alpha=0.35, markersize=4)
        line = np.unique(np.geomspace(blocks.min(), blocks.max(), 60).round().astype(int))
        predicted = [
            found.calibration.copy_ns(int(num), is_in=bool(source)) / _US_NS for num in line
        ]
        label = f"{name.replace('_', '-')} as predicted; total {ratio:.3f} of the measured"
        ax.plot(line, predicted, color=color, linewidth=1.8, label=label)
    ax.set_xscale("log")
    ax.set_yscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
    ax.set_xlabel("blocks of the copy")
    ax.set_ylabel("time of the slowest rank (us)")
    if ax.lines:
        ax.legend(frameon=False, fontsize=8)
    config = found.run.config
    caption = (
        f"trace {found.run.trace.name} · {config.gpu_blocks:,} GPU + {config.cpu_blocks:,} CPU"
        f" blocks · {found.run.num_ranks} ranks · clock: wall · seed {config.seed}"
    )
    finish(ax, "Copies on tensors, and what the calibration says", caption)
    return ax
