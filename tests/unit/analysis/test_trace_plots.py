from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from matplotlib.figure import Figure

import kvsim
from kvsim.analysis.trace_info import TraceInfo, describe
from kvsim.analysis.trace_plots import (
    draw_all,
    plot_arrivals,
    plot_lengths,
    plot_reuse,
    plot_sharing,
    save_plots,
)
from kvsim.errors import UserError
from kvsim.trace import load
from tests.unit.trace.files import saved

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.axes import Axes

LENGTHS = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,48,10\n"


@pytest.fixture(scope="module")
def info() -> TraceInfo:
    return describe(kvsim.sample("chat"))


@pytest.mark.parametrize("plot", [plot_arrivals, plot_lengths, plot_sharing, plot_reuse])
def test_a_plot_draws_on_the_axes_it_gets_and_labels_them(
    info: TraceInfo, plot: Callable[..., Axes]
) -> None:
    ax = Figure().subplots()
    assert plot(info, ax=ax) is ax
    assert all((ax.get_xlabel(), ax.get_ylabel(), ax.get_title("left")))
    assert ax.get_title("right") == info.trace.name


def test_the_reuse_curve_ends_at_the_unlimited_hit_rate(info: TraceInfo) -> None:
    assert info.infinite_hits is not None
    curve = plot_reuse(info, ax=Figure().subplots()).get_lines()[0]
    assert curve.get_ydata()[-1] == pytest.approx(info.infinite_hits["block"]["rate"])  # type: ignore[index]


def test_arrivals_add_up_to_all_requests(info: TraceInfo) -> None:
    ax = plot_arrivals(info, ax=Figure().subplots())
    data = ax.patches[0].get_data()  # type: ignore[attr-defined]
    width_s = (data.edges[1] - data.edges[0]) * 60  # the sample lasts minutes
    assert sum(data.values) * width_s == pytest.approx(info.trace.num_requests)


def test_a_trace_of_one_request_and_no_prefixes_can_be_drawn(tmp_path: Path) -> None:
    lengths = describe(load(saved(tmp_path, LENGTHS)))
    axes = draw_all(lengths).axes
    assert len(axes) == 4
    assert {text.get_text() for ax in axes[2:] for text in ax.texts} == {
        "lengths only: no prefixes"
    }


def test_plots_are_saved_or_refused_in_one_line(tmp_path: Path, info: TraceInfo) -> None:
    save_plots(info, tmp_path / "plots.png")
    assert (tmp_path / "plots.png").read_bytes().startswith(b"\x89PNG")
    for name, problem in (
        ("plots.txt", "a plot ends in .png, .svg, .pdf, not '.txt'"),
        ("absent/plots.png", "cannot be written: No such file"),
    ):
        with pytest.raises(UserError, match=problem):
            save_plots(info, tmp_path / name)
