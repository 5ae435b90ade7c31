from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib import pyplot as plt

import kvsim
from kvsim.analysis.plots import new_figure
from kvsim.errors import ConfigError, UnknownNameError
from kvsim.sweeping.plots import add_panels
from kvsim.sweeping.result import COMPARISON_COLUMNS, FRAME_COLUMNS, SweepResult
from tests.unit.sweeping.story import table_of, write_traces

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_traces(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def chat() -> SweepResult:
    """Sweep the sample, which names its sessions: 300 requests, of which 150 are measured."""
    table = table_of(
        traces=["sample:chat"],
        policies=["lru", "belady", "nosuch"],
        gpu_blocks=[200],
        settings={"limit": 300, "warmup": 0.5},
    )
    return kvsim.sweep(table, jobs=1)


def test_columns_have_the_types_that_the_page_names(desk: None) -> None:
    table = kvsim.sweep(table_of(policies=["lru", "nosuch"]), jobs=1)
    assert {name: str(dtype) for name, dtype in table.frame.dtypes.items()} == FRAME_COLUMNS
    compared = table.compare("nosuch", baseline="lru")
    assert {name: str(dtype) for name, dtype in compared.dtypes.items()} == COMPARISON_COLUMNS
    assert compared["difference"].isna().all()
    assert compared["unit"].isna().all()
    assert len(compared) == 4


def test_attributes_say_what_the_figures_rest_on(desk: None) -> None:
    attrs = kvsim.sweep(table_of(settings={"warmup": 0.5}), jobs=1).frame.attrs
    assert (attrs["clock"], attrs["kvsim_version"]) == ("none", kvsim.__version__)
    assert attrs["configs"]["default"]["warmup"] == 0.5
    assert "policy" not in attrs["configs"]["default"]
    assert attrs["traces"]["four.jsonl"]["num_requests"] == 4
    assert len(attrs["traces"]["four.jsonl"]["sha256"]) == 64
    assert set(attrs["definitions"]) == {
        "block", "prefix_block", "prefix_token", "prefix_token_usable",
    }  # fmt: skip


def test_policies_are_compared_request_by_request(chat: SweepResult) -> None:
    (row,) = chat.compare("belady", baseline="lru").to_dict("records")
    rates = chat.rates()
    alone = [
        kvsim.replay(
            "sample:chat", policy=policy, gpu_blocks=200, limit=300, warmup=0.5, instant=True
        ).requests[150:]
        for policy in ("belady", "lru")
    ]
    hits = [int(each["num_hit_tokens"].sum()) for each in alone]
    total = int(alone[0]["num_input_tokens"].sum())
    assert row["difference"] == (hits[0] - hits[1]) / total
    assert (row["policy_rate"], row["baseline_rate"]) == (rates["belady"][0], rates["lru"][0])
    assert row["ci_low"] < row["difference"] < row["ci_high"]
    assert (row["num_requests"], row["unit"]) == (150, "session")
    assert row["num_units"] == alone[0]["session_id"].nunique()


def test_a_policy_is_no_better_than_itself(chat: SweepResult) -> None:
    (row,) = chat.compare("lru", baseline="lru").to_dict("records")
    assert [row[name] for name in ("difference", "ci_low", "ci_high")] == [0.0, 0.0, 0.0]


def test_a_trace_without_sessions_is_drawn_in_runs(desk: None) -> None:
    compared = kvsim.sweep(table_of(), jobs=1).compare("fifo", baseline="lru")
    # The cube root of 3 is 1.4 and of 4 is 1.6: runs of 1 and of 2 requests.
    assert compared["unit"].tolist() == ["run"] * 4
    assert compared["num_units"].tolist() == [3, 3, 2, 2]


def test_seeds_are_compared_one_by_one(desk: None) -> None:
    table = kvsim.sweep(table_of(seeds=[0, 7]), jobs=1)
    assert table.compare("fifo", baseline="lru")["seed"].tolist() == [0, 7] * 4


def test_the_bootstrap_is_told(chat: SweepResult) -> None:
    compared = chat.compare("belady", baseline="lru", seed=3, num_resamples=50, confidence=0.5)
    wide = chat.compare("belady", baseline="lru", seed=3, num_resamples=50)
    assert compared.attrs["bootstrap"] == {"seed": 3, "num_resamples": 50, "confidence": 0.5}
    assert wide["ci_low"][0] < compared["ci_low"][0] < compared["ci_high"][0] < wide["ci_high"][0]


def test_names_that_are_not_in_the_sweep_are_refused(chat: SweepResult) -> None:
    with pytest.raises(UnknownNameError, match="unknown policy of this sweep 'fifo'"):
        chat.compare("fifo", baseline="lru")
    with pytest.raises(UnknownNameError, match="unknown definition 'tokens'"):
        chat.rates("tokens")


def test_a_notebook_shows_the_rates_and_what_failed(chat: SweepResult) -> None:
    shown = chat._repr_html_()
    assert "2 of 3 cells done; lru, belady, nosuch" in shown
    assert f"{chat.rates()['lru'][0]:.2%}" in shown
    assert "<td>failed</td>" in shown
    assert "<li>nosuch on sample:chat, config default" in shown


# -- plots


def lines(ax: Axes) -> list[list[float]]:
    return [np.asarray(line.get_ydata()).tolist() for line in ax.lines]


def labels(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_there_is_a_panel_for_each_trace_and_a_line_for_each_policy(desk: None) -> None:
    table = kvsim.sweep(table_of(policies=["lru", "fifo", "nosuch"]), jobs=1)
    three, four = table.plot(ax=add_panels(new_figure(), 2))
    assert (three.get_title(loc="left"), four.get_title(loc="left")) == (
        "three.jsonl",
        "four.jsonl",
    )
    assert lines(four)[:2] == [[12 / 44, 16 / 44]] * 2
    assert np.isnan(lines(four)[2]).all()
    assert labels(four) == ["lru", "fifo", "nosuch: failed"]
    assert (four.get_xlabel(), four.get_ylabel()) == (
        "GPU tier (blocks)",
        "hit rate (prefix_token)",
    )
    assert four.texts[0].get_text() == "clock: none · seed 0 · 0 CPU blocks · 4 tokens a block"
    assert four.get_xscale() == "log"


def test_traces_go_by_their_file_names_where_those_differ(desk: None, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write_traces(tmp_path / "a")

    def names(*traces: str) -> dict[str, str]:
        return kvsim.sweep(table_of(traces=traces, policies=["lru"]), jobs=1).short_names

    assert names("a/four.jsonl", "three.jsonl") == {
        "a/four.jsonl": "four.jsonl",
        "three.jsonl": "three.jsonl",
    }
    same = ("a/four.jsonl", "four.jsonl")
    assert names(*same) == dict(zip(same, same, strict=True))


def test_styles_of_line_are_variants_and_sizes_of_the_other_tier(desk: None) -> None:
    configs = [{"name": "a"}, {"name": "b", "warmup": 0.5}]
    table = kvsim.sweep(
        table_of(traces=["four.jsonl"], policies=["lru"], cpu_blocks=[0, 2000], configs=configs),
        jobs=1,
    )
    (ax,) = table.plot(ax=new_figure().add_subplot())
    assert len(ax.lines) == 4
    assert len({line.get_linestyle() for line in ax.lines}) == 4
    assert labels(ax) == [
        "lru", "a, 0 CPU blocks", "a, 2,000 CPU blocks", "b, 0 CPU blocks", "b, 2,000 CPU blocks",
    ]  # fmt: skip


def test_the_axis_is_the_tier_that_varies(desk: None) -> None:
    table = kvsim.sweep(table_of(gpu_blocks=[4], cpu_blocks=[0, 2, 30]), jobs=1)
    ax, _ = table.plot(ax=add_panels(new_figure(), 2), definition="block")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("CPU tier (blocks)", "hit rate (block)")
    assert ax.get_xscale() == "symlog"
    assert ax.get_xticks().tolist() == [0, 2, 30]


def test_without_axes_a_figure_is_made_and_not_shown(desk: None) -> None:
    before = set(plt.get_fignums())
    axes = kvsim.sweep(table_of(), jobs=1).plot()
    try:
        assert len(axes) == 2
        made = set(plt.get_fignums()) - before
        assert made == {axes[0].figure.number}  # type: ignore[union-attr]
    finally:
        plt.close("all")


def test_axes_must_be_as_many_as_traces(desk: None) -> None:
    table = kvsim.sweep(table_of(), jobs=1)
    with pytest.raises(ConfigError, match="ax must have one Axes for each trace, 2 in all, not 1"):
        table.plot(ax=new_figure().add_subplot())
