"""The plot of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.analysis.plots import new_axes
from kvsim.comparing.phases import PHASES
from kvsim.hitrate.style import INK, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kvsim.comparing.comparison import Comparison
    from kvsim.comparing.saved_run import SavedRun

_SLOWER, _FASTER, _WHOLE = "#D55E00", "#0072B2", "#666666"
_SPREAD: Final = 0.18


def plot_changes(found: Comparison, *, ax: Axes | None = None) -> Axes:
    """Draw by how many ms a request the latency and each phase changed, with 95 % intervals."""
    ax = ax or new_axes()
    names = ["latency", *PHASES][::-1]
    for place, name in enumerate(names):
        _, _, each = found.totals[f"{name}_ms"]
        colour = _SLOWER if each.difference > 0 else _FASTER
        ax.barh(
            place,
            each.difference,
            color=_WHOLE if name == "latency" else colour,
            height=0.6,
        )
        ax.plot([each.low, each.high], [place, place], color=INK, linewidth=1.4)
        for bound in (each.low, each.high):
            ax.plot([bound, bound], [place - _SPREAD, place + _SPREAD], color=INK, linewidth=1.4)
    ax.axvline(0, color=INK, linewidth=1)
    ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("change of the mean (ms a request; to the right B is slower)")
    clock = found.a.facts["clock"]
    caption = (
        f"trace {found.a.fact('trace', 'name')} · {len(found.frame):,} requests ·"
        f" {_named('A', found.a)}; {_named('B', found.b)} ·"
        f" lines: 95 % intervals · clock: {clock} · seed {found.seed}"
    )
    finish(ax, "What changed from A to B, in the mean", caption)
    ax.grid(visible=False)
    return ax


def _named(letter: str, run: SavedRun) -> str:
    """Return what a run is called; one that was not saved has no other name than its letter."""
    policy = run.fact("config", "policy")
    return f"{letter}: {policy}" if run.label == letter else f"{letter}: {run.label}, {policy}"
