"""The plot of an explanation. It takes and returns `Axes`, and never shows a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.ticker import PercentFormatter

from kvsim.analysis.plots import new_axes
from kvsim.hitrate.style import COLOURS, FAINT, INK, finish, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kvsim.engines.explanation import Explanation

_RULES: Final = {  # rule -> what the legend says, colour, hatch in print
    "evicts": ("what it evicts", COLOURS[0], ""),
    "tail": ("rest of split nodes", COLOURS[4], "xxx"),
    "keys": ("which blocks have keys", COLOURS[5], "///"),
    "unit": ("blocks or tokens", COLOURS[2], "..."),
    "last_token": ("the last token", COLOURS[1], "\\\\\\"),
}
_BAR: Final = 0.16


def plot_waterfalls(found: Explanation, *, ax: Axes | None = None) -> Axes:
    """Draw the steps from our figure to each engine's: one floating bar a rule that matters."""
    ax = ax or new_axes()
    ours = found.ours["rate"]
    ax.axvline(ours, color=FAINT, linewidth=1, linestyle="--", label=f"kvsim block {ours:.2%}")
    named: set[str] = set()
    rates = [ours]
    for row_index, row in enumerate(found.rows):
        before = ours
        for step_index, step in enumerate(row.steps[1:]):
            y = row_index + (step_index - 2) * _BAR
            after = step.figure["rate"]
            text, colour, hatch = _RULES[step.rule]
            label = "_nolegend_" if step.rule in named else text
            named.add(step.rule)
            ax.barh(
                y, after - before, left=before, height=_BAR, color=colour, hatch=hatch,
                edgecolor="white", linewidth=0, label=label,
            )  # fmt: skip
            ax.plot([after, after], [y - _BAR / 2, y + 1.5 * _BAR], color=INK, linewidth=0.8)
            before = after
            rates.append(after)
        ax.annotate(
            f"{before:.2%}", (before, row_index + 2 * _BAR), textcoords="offset points",
            xytext=(4, 0), va="center", fontsize=8,
        )  # fmt: skip
    margin = 0.12 * (max(rates) - min(rates)) or 0.01
    ax.set_xlim(min(rates) - margin, max(rates) + 1.6 * margin)
    ax.set_yticks(range(len(found.rows)), [row.engine.name for row in found.rows])
    ax.invert_yaxis()
    ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel("hit rate, one rule after another (each engine from the top)")
    legend(ax)
    finish(ax, f"What engines would report at {found.gpu_blocks:,} blocks", found.basis.caption)
    ax.grid(visible=False)
    ax.grid(axis="x", alpha=0.25, linewidth=0.6)
    return ax
