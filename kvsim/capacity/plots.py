"""The plot of a sizing. It takes and returns `Axes`, and never shows a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter

from kvsim.analysis.plots import new_axes
from kvsim.capacity.answer import KNEE_PERCENTS
from kvsim.capacity.room import GIB
from kvsim.hitrate.plots import plot_curves
from kvsim.hitrate.style import COLOURS, FAINT, INK, finish, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from kvsim.capacity.answer import Sizing

_KNEE, _ANSWER, _FIXED = COLOURS[5], COLOURS[1], COLOURS[2]
_GIB_AXIS_AT: Final = -0.21
"""Below the axis of blocks, in axes heights: title and caption are above."""


def plot_sizing(sizing: Sizing, *, ax: Axes | None = None) -> Axes:
    """Draw the LRU curve with the target, the answer, the fixed GPU tier and the knees."""
    ax = ax or new_axes()
    plot_curves([sizing.curve], definition=sizing.definition, ax=ax)
    for text in list(ax.texts):
        if "trace" in text.get_text():
            text.remove()  # written again by `finish`
    ax.axhline(
        sizing.target, color=_ANSWER, linewidth=1.2, linestyle=":",
        label=f"target {sizing.target:.2%}",
    )  # fmt: skip
    if sizing.fixed.gpu_blocks:
        ax.axvline(
            sizing.fixed.gpu_blocks, color=_FIXED, linewidth=1.2, linestyle="-.",
            label=f"GPU tier {sizing.fixed.gpu_blocks:,}: {sizing.fixed.rate:.2%}",
        )  # fmt: skip
    shares = f"{', '.join(map(str, KNEE_PERCENTS))} % of infinite"
    shown = [point for point in sizing.knees if point.gpu_blocks]
    for index, point in enumerate(shown):
        is_knee = point.name == "knee"
        ax.plot(
            point.gpu_blocks, point.rate, marker="D" if is_knee else "o", linestyle="",
            color=INK if is_knee else _KNEE, markersize=6 if is_knee else 5, zorder=4,
            label=f"knee {point.gpu_blocks:,}" if is_knee
            else "_nolegend_" if index else shares,
        )  # fmt: skip
    if sizing.answers and sizing.answers[0].gpu_blocks:
        answer = sizing.answers[0]
        ax.plot(
            answer.gpu_blocks, answer.rate, marker="*", linestyle="", color=_ANSWER,
            markersize=12, zorder=5, label=f"answer {answer.gpu_blocks:,} blocks",
        )  # fmt: skip
    top = max(sizing.infinite["rate"], sizing.target)
    ax.set_ylim(0, min(1.05, 1.15 * top) or 1.0)
    _add_gib_axis(ax, sizing)
    legend(ax)
    finish(ax, "How large must the cache be?", sizing.curve.basis.caption)
    return ax


def _add_gib_axis(ax: Axes, sizing: Sizing) -> None:
    """Draw a second axis below, of what the blocks take."""
    per_block = sizing.block_bytes / GIB

    def to_gib(blocks: ArrayLike) -> ArrayLike:
        return np.asarray(blocks, dtype=np.float64) * per_block

    def to_blocks(gib: ArrayLike) -> ArrayLike:
        return np.asarray(gib, dtype=np.float64) / per_block

    below = ax.secondary_xaxis(_GIB_AXIS_AT, functions=(to_gib, to_blocks))
    below.xaxis.set_major_formatter(
        FuncFormatter(lambda gib, _: f"{gib:,.0f}" if gib >= 1 else f"{gib:g}")
    )
    below.xaxis.set_minor_formatter(NullFormatter())
    below.set_xlabel(f"GiB ({sizing.model}, {sizing.kv_bits}-bit KV, all ranks)", color=FAINT)
    below.tick_params(colors=FAINT)
