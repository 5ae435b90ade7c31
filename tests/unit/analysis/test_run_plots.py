"""What the plots of a run over time draw."""

from __future__ import annotations

from itertools import pairwise

import pandas as pd
import pytest

import kvsim
from kvsim.analysis.plots import new_figure
from kvsim.analysis.run_plots import plot_crowd, plot_residency
from kvsim.errors import UnknownNameError, UserError
from tests.unit.stories import back_from_below


@pytest.fixture(scope="module")
def result() -> kvsim.ReplayResult:
    return kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=3, events=True)


def test_the_uses_of_a_tier_are_stacked_up_to_its_capacity(result: kvsim.ReplayResult) -> None:
    for tier in ("gpu", "cpu"):
        ax = plot_residency(result.residency, tier=tier, caption="c", ax=new_figure().add_subplot())
        *layers, capacity = [patch.get_data() for patch in ax.patches]  # type: ignore[attr-defined]
        assert set(capacity.values) == {3}
        assert layers[-1].values.tolist() == capacity.values.tolist()  # the top of the stack
        for lower, upper in pairwise(layers):
            assert upper.baseline.tolist() == lower.values.tolist()


def test_only_uses_that_occur_are_in_the_legend(result: kvsim.ReplayResult) -> None:
    ax = plot_residency(result.residency, tier="cpu", caption="c", ax=new_figure().add_subplot())
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "incoming",
        "ready",
        "free",
        "capacity",
    ]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time (s)", "blocks")
    assert ax.get_title(loc="left") == "What the blocks of the CPU tier are used for"


def test_a_tier_that_is_not_there_is_told_with_those_that_are(
    result: kvsim.ReplayResult,
) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown tier 'disk'\. Known: cpu, gpu\."):
        plot_residency(result.residency, tier="disk", caption="c")


def test_who_runs_and_who_waits_has_a_step_for_each_forward() -> None:
    steps = pd.DataFrame(
        {
            "submitted_at_ns": [0, 10**9, 3 * 10**9],
            "finished_at_ns": pd.array([10**9, 3 * 10**9, None], dtype="Int64"),
            "num_running": [1, 2, 1],
            "num_waiting": [0, 1, 0],
        }
    )
    ax = plot_crowd(steps, caption="c", ax=new_figure().add_subplot())
    running, waiting = [patch.get_data() for patch in ax.patches]  # type: ignore[attr-defined]
    assert (running.values.tolist(), waiting.values.tolist()) == ([1, 2, 1], [0, 1, 0])
    # The last one was not answered: it gets a width of 1 ns, so that there is one.
    assert running.edges.tolist() == [0, 1, 3, 3 + 1e-9]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time (s)", "requests")


def test_a_run_in_which_nothing_was_computed_has_nothing_to_draw() -> None:
    with pytest.raises(UserError, match="nothing was computed"):
        plot_crowd(pd.DataFrame({"submitted_at_ns": []}), caption="c")


def test_of_axes_that_are_shared_the_higher_one_sets_the_limit() -> None:
    low, high = new_figure().subplots(1, 2, sharey=True)
    for ax, most in ((low, 4), (high, 40)):
        steps = pd.DataFrame(
            {
                "submitted_at_ns": [0],
                "finished_at_ns": pd.array([10**9], dtype="Int64"),
                "num_running": [most],
                "num_waiting": [0],
            }
        )
        plot_crowd(steps, caption="c", ax=ax)
    assert low.get_ylim() == high.get_ylim() == (0, 42)  # 1.05 * 40
