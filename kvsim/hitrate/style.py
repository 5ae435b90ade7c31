"""What the plots of the lab have in common: colours, axes, captions.

Colours are told apart by people who are colour-blind, and lines by their dashes in print as well.
Source: M. Okabe and K. Ito, "Color universal design", 2008, for the palette.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES: Final = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
MARKERS: Final = ("o", "s", "^", "D", "v", "P")
INK, FAINT, BAND = "#1b2a41", "#666666", "#e8e8e8"


def blocks_axis(axis: Axis, label: str) -> None:
    """Write whole blocks along an axis."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_label_text(label)


def percent_axis(ax: Axes, label: str) -> None:
    """Write percentages along the y axis."""
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_ylabel(label)


def legend(ax: Axes) -> None:
    """Name the lines beside the picture, where they hide nothing."""
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)


def finish(ax: Axes, title: str, caption: str) -> None:
    """Write title and caption, and take away what says nothing."""
    ax.set_title(title, loc="left", fontsize=11, pad=20)
    ax.text(0, 1.025, caption, transform=ax.transAxes, fontsize=7.5, color=FAINT)
    ax.grid(axis="y", alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
