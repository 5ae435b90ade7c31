"""Plots of a run over time: what blocks are used for, and who waits.

Each takes and returns `Axes`, labels its units, and never shows a window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.analysis.occupancy import BlockUse
from kvsim.analysis.plots import finish, new_axes
from kvsim.errors import UnknownNameError, UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

_LOOKS: Final = {
    BlockUse.PRIVATE: "#1b2a41",
    BlockUse.INCOMING: "#d98032",
    BlockUse.READY: "#3b6fb6",
    BlockUse.LEAVING: "#9ecae1",
    BlockUse.QUARANTINED: "#c0392b",
    BlockUse.DETACHED: "#8e6bb0",
    BlockUse.FREE: "#e8e8e8",
}
"""Use -> colour, from the bottom up."""
_LINES: Final = {"num_running": ("hold blocks", "#3b6fb6"), "num_waiting": ("wait", "#d98032")}
_INK: Final = "#1b2a41"
_S_NS: Final = 10**9


def plot_residency(
    residency: pd.DataFrame, *, tier: str, caption: str, ax: Axes | None = None
) -> Axes:
    """Draw what the blocks of a tier are used for over time, stacked; return the axes.

    Parameters
    ----------
    residency
        As `result.residency` gives it.
    tier
        Name of the tier, such as "gpu".
    caption
        What was replayed, how, and on which clock.

    Raises
    ------
    UnknownNameError
        If the run has no tier of this name.
    """
    tiers = sorted(set(residency["tier"]))
    if tier not in tiers:
        raise UnknownNameError("tier", tier, tiers)
    ax = ax or new_axes()
    rows = residency[residency["tier"] == tier]
    edges = _edges(rows["at_ns"], last_ns=int(residency["at_ns"].max()))
    below = np.zeros(len(rows))
    for use, colour in _LOOKS.items():
        blocks = rows[f"num_{use}_blocks"].to_numpy(dtype=np.float64)
        if not blocks.any():
            continue
        above = below + blocks
        ax.stairs(above, edges, baseline=below, fill=True, color=colour, linewidth=0, label=use)
        below = above
    ax.stairs(rows["capacity_blocks"], edges, baseline=None, color=_INK, label="capacity")
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 1.05 * rows["capacity_blocks"].max())
    ax.set_xlabel("time (s)")
    ax.set_ylabel("blocks")
    _legend(ax)
    finish(ax, f"What the blocks of the {tier.upper()} tier are used for", caption)
    return ax


def plot_crowd(steps: pd.DataFrame, *, caption: str, ax: Axes | None = None) -> Axes:
    """Draw how many requests hold blocks and how many wait for some; return the axes.

    Parameters
    ----------
    steps
        As `result.steps` gives it.
    caption
        What was replayed, how, and on which clock.

    Raises
    ------
    UserError
        If nothing was computed.
    """
    if steps.empty:
        raise UserError("nothing was computed in this run: there is nothing to draw")
    ax = ax or new_axes()
    at = steps["submitted_at_ns"]
    edges = _edges(at, last_ns=int(steps["finished_at_ns"].fillna(at).max()))
    for column, (name, colour) in _LINES.items():
        ax.stairs(steps[column], edges, baseline=None, color=colour, linewidth=1.1, label=name)
    ax.set_xlim(edges[0], edges[-1])
    highest = steps[list(_LINES)].to_numpy().max()
    ax.set_ylim(0, max(1.05 * highest, ax.get_ylim()[1]))  # of axes that are shared, the higher
    ax.set_xlabel("time (s)")
    ax.set_ylabel("requests")
    _legend(ax)
    finish(ax, "Who holds blocks, and who waits for some", caption)
    return ax


def _edges(at_ns: pd.Series, *, last_ns: int) -> NDArray[np.float64]:
    """Return where each row begins, and where the last one ends, in seconds."""
    at = at_ns.to_numpy(dtype=np.float64)
    return np.append(at, max(last_ns, at[-1] + 1)) / _S_NS


def _legend(ax: Axes) -> None:
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
