from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib import pyplot as plt

from kvsim.analysis.plots import new_figure
from kvsim.errors import UserError
from kvsim.hitrate import (
    TierCosts,
    lru_curve,
    miss_attribution,
    opt_curve,
    pin_effect,
    policy_league,
    replay,
    replay_curve,
    reuse,
    sampled_replay,
    tier_plane,
    two_tier_bound,
)
from kvsim.hitrate.plots import _round_levels
from kvsim.testing import PerBlockLRU
from tests.unit.stories import SECOND_NS, three_prompts, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes

    from kvsim.trace import Trace


def loop() -> Trace:
    """Return abc, de and abc again: then a, b and c are at 3, 4 and 5 of the LRU stack."""
    return trace_of(("abc", 12), ("de", 8), ("abc", 12), gap_ns=1000 * SECOND_NS)


PLOTS: dict[str, Callable[[Axes], Axes]] = {
    "curve": lambda ax: lru_curve(loop()).plot(ax),
    "curves": lambda ax: lru_curve(loop()).plot(
        ax, others=[replay_curve(loop(), "fifo", [3, 4]), opt_curve(loop(), [3, 4])]
    ),
    "plane": lambda ax: tier_plane(loop(), gpu=[1, 4], cpu=[0, 4]).plot(ax),
    "bound": lambda ax: two_tier_bound(loop(), 3, 2, TierCosts()).plot(ax),
    "league": lambda ax: policy_league(loop(), ["lru", "fifo"], 4).plot(ax),
    "causes": lambda ax: miss_attribution(loop(), "lru", 4).plot(ax),
    "distance": lambda ax: reuse(loop()).plot(ax),
    "time": lambda ax: reuse(loop()).plot_time(ax),
    "hits": lambda ax: replay(loop(), "lru", 4).plot(ax),
    "sample": lambda ax: sampled_replay(loop(), "lru", [3, 4], 0.5).plot(ax),
    "pins": lambda ax: pin_effect(loop(), [4, 5]).plot(ax),
}


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_labels_its_axes_and_says_what_it_rests_on(name: str) -> None:
    ax = new_figure().add_subplot()
    assert PLOTS[name](ax) is ax
    assert ax.get_title(loc="left")
    assert ax.get_xlabel() or name == "bound"
    assert ax.get_ylabel() or name in {"league", "causes"}
    caption = next(text.get_text() for text in ax.texts if "trace story" in text.get_text())
    assert "no requests in flight" in caption
    ax.figure.canvas.draw()


def test_a_plot_without_axes_makes_a_figure_of_its_own() -> None:
    ax = lru_curve(loop()).plot()
    assert plt.get_fignums()
    assert ax.figure is plt.gcf()
    plt.close("all")


def test_a_curve_is_drawn_at_every_capacity() -> None:
    ax = lru_curve(loop(), [5]).plot(new_figure().add_subplot(), definition="block")
    line = ax.lines[0]
    assert np.asarray(line.get_xdata()).tolist() == [1, 2, 3, 4, 5]
    assert np.asarray(line.get_ydata()).tolist() == [0, 0, 1 / 8, 2 / 8, 3 / 8]
    assert "infinite cache 37.5%" in [text.get_text() for text in ax.texts]


def test_lines_differ_by_dashes_as_well_as_by_colour() -> None:
    curve = replay_curve(loop(), "fifo", [3, 4])
    others = [replace(curve, policy=f"policy {i}") for i in range(5)]
    ax = curve.plot(new_figure().add_subplot(), others=others)
    lines = ax.lines[:6]
    assert len({line.get_color() for line in lines}) == 6
    assert len({str(line._dash_pattern) for line in lines}) == 6  # type: ignore[attr-defined]  # noqa: SLF001
    assert len({line.get_marker() for line in lines}) == 6


def test_hits_over_time_show_the_warm_up_and_what_could_be_hit() -> None:
    found = replay(three_prompts(), "lru", 1, warmup=0.4)
    ax = found.plot(new_figure().add_subplot())
    names = ax.get_legend_handles_labels()[1]
    assert names == ["lru", "infinite cache", "warm-up"]


def test_a_plane_that_cannot_be_drawn_says_so() -> None:
    with pytest.raises(UserError, match="a plane of 3 tiers cannot be drawn: it must have two"):
        tier_plane(loop(), tiers=[[1], [1], [1]]).plot()
    with pytest.raises(UserError, match="from two sizes of each tier on"):
        tier_plane(loop(), gpu=[1], cpu=[0, 1]).plot()


def test_levels_are_whole_percentages_and_few() -> None:
    assert _round_levels(0.04, 0.37) == [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]
    assert len(_round_levels(0.2, 0.2)) >= 2


def test_a_sample_plots_where_nothing_is_known_of_the_error() -> None:
    curve = sampled_replay(loop(), PerBlockLRU, [3, 4], 0.5)
    ax = curve.plot(new_figure().add_subplot())
    assert "error not known" in ax.get_title(loc="left")
