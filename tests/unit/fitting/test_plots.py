from __future__ import annotations

from matplotlib.figure import Figure

from kvsim.fitting.plots import plot_report
from tests.unit.trace.synthesis.models import REPORT


def test_the_plot_shows_both_curves_and_says_what_they_are() -> None:
    ax = Figure().add_subplot()
    assert plot_report(REPORT, caption="trace x", ax=ax) is ax
    source, model, unlimited = ax.get_lines()
    assert tuple(source.get_ydata()) == REPORT.source_rates  # type: ignore[arg-type]
    assert tuple(model.get_ydata()) == REPORT.model_rates  # type: ignore[arg-type]
    assert set(unlimited.get_ydata()) == {REPORT.source_infinite}  # type: ignore[arg-type]
    assert ax.get_title(loc="left") == "Mean absolute error 10.00 points"
    texts = [each.get_text() for each in ax.texts]
    assert texts == ["trace x · seeds 1, 2 · no requests in flight"]
    assert ax.get_xlabel() == "capacity (blocks)"
