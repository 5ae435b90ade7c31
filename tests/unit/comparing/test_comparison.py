from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.figure import Figure

import kvsim
from kvsim.comparing.phases import PHASES
from kvsim.errors import UserError
from tests.unit.stories import back_from_below, three_prompts, trace_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def small_and_large() -> tuple[kvsim.ReplayResult, kvsim.ReplayResult]:
    """Return two runs of 200 chats: in 300 + 300 blocks, where many wait, and in 2000."""
    settings = {"limit": 200}
    return (
        kvsim.replay("sample:chat", gpu_blocks=300, cpu_blocks=300, **settings),  # type: ignore[arg-type]
        kvsim.replay("sample:chat", gpu_blocks=2000, **settings),  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[kvsim.ReplayResult, Path]:
    """Return a run, and the folder it is saved to."""
    result = kvsim.replay(three_prompts(), gpu_blocks=5)
    folder = tmp_path_factory.mktemp("saved")
    result.save(folder)
    return result, folder


def test_a_run_is_as_fast_as_itself() -> None:
    result = kvsim.replay(three_prompts(), gpu_blocks=5)
    found = kvsim.compare(result, result)
    assert len(found.frame) == 3
    assert all(each.difference == 0 for _, _, each in found.totals.values())
    assert found.slowest().empty
    assert found.reason_rows() == []


def test_the_phases_add_up_to_the_latency(
    small_and_large: tuple[kvsim.ReplayResult, kvsim.ReplayResult],
) -> None:
    frame = kvsim.compare(*small_and_large).frame
    for run in "ab":
        parts = sum(frame[f"{phase}_ms_{run}"] for phase in PHASES)
        assert np.allclose(parts, frame[f"latency_ms_{run}"])
        assert all((frame[f"{phase}_ms_{run}"] >= 0).all() for phase in PHASES)
    for name, result in zip("ab", small_and_large, strict=True):
        done = result.requests[result.requests["request_id"].isin(frame["request_id"])]
        latency = (done["ended_at_ns"] - done["arrived_at_ns"]) / 10**6
        assert np.allclose(latency.to_numpy(dtype=float), frame[f"latency_ms_{name}"])
        assert done["ttft_ms"].tolist() == frame[f"ttft_ms_{name}"].tolist()


def test_a_copy_up_is_a_reload_and_what_is_computed_without_one_is_not() -> None:
    # In 3 + 3 blocks the third prompt comes back from below; in 6 it is on the GPU still.
    below = kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=3)
    above = kvsim.replay(back_from_below(), gpu_blocks=6)
    frame = kvsim.compare(above, below).frame
    assert frame["reload_ms_a"].tolist() == [0.0, 0.0, 0.0]
    copy = below.transfers[below.transfers["direction"] == "swap_in"].iloc[0]
    took_ms = (copy["finished_at_ns"] - copy["issued_at_ns"]) / 10**6
    assert frame["reload_ms_b"].tolist() == [0.0, 0.0, took_ms]
    assert frame["cpu_hit_blocks_change"].tolist() == [0, 0, 3]
    assert frame["gpu_hit_blocks_change"].tolist() == [0, 0, -3]
    # The second waits for abc to go down before it is admitted.
    assert frame["largest_change"].tolist()[1] == "queue"
    slowest = kvsim.compare(above, below).slowest_rows(1)
    assert (slowest[0][0], slowest[0][4]) == ("1", "queue")


def test_a_preemption_is_told_from_slow_decoding() -> None:
    trace = trace_of(("ab", 8), ("xy", 8), gap_ns=0)
    longer = replace(
        trace, requests=tuple(replace(each, num_output_tokens=12) for each in trace.requests)
    )
    tight = kvsim.replay(longer, gpu_blocks=5, decode_reserve_blocks=0)
    roomy = kvsim.replay(longer, gpu_blocks=20)
    assert tight.num_preemptions == 1
    frame = kvsim.compare(roomy, tight).frame
    # The last admitted is the one that loses its blocks.
    assert frame["preemptions_change"].tolist() == [0, 1]
    assert frame["interrupted_ms_a"].tolist() == [0.0, 0.0]
    assert frame["interrupted_ms_b"].iloc[0] == 0.0
    assert frame["interrupted_ms_b"].iloc[1] > 0.0
    assert frame["largest_change"].iloc[1] == "interrupted"
    before = tight.requests["interrupted_before_token_ms"].tolist()
    assert before == [0.0, 0.0]  # both had made a token by then


def test_totals_are_the_means_and_their_interval_holds_the_difference(
    small_and_large: tuple[kvsim.ReplayResult, kvsim.ReplayResult],
) -> None:
    found = kvsim.compare(*small_and_large)
    for name, (a, b, each) in found.totals.items():
        assert each.difference == pytest.approx(b - a, abs=1e-6), name
        assert each.low <= each.difference <= each.high, name
    ttft = found.frame["ttft_ms_a"].mean()
    assert found.totals["ttft_ms"][0] == pytest.approx(ttft)
    tokens = found.frame["num_input_tokens"].sum()
    rate = found.frame["hit_tokens_b"].sum() / tokens
    assert found.totals["hit_rate"][1] == pytest.approx(rate)
    again = kvsim.compare(*small_and_large)
    assert again.totals == found.totals
    assert kvsim.compare(*small_and_large, seed=1).totals != found.totals


def test_every_request_that_changed_has_one_reason(
    small_and_large: tuple[kvsim.ReplayResult, kvsim.ReplayResult],
) -> None:
    found = kvsim.compare(*small_and_large)
    change = found.frame["latency_ms_change"]
    slower = sum(each[0] for each in found.reasons.values())
    faster = sum(each[2] for each in found.reasons.values())
    assert (slower, faster) == ((change > 0).sum(), (change < 0).sum())
    lost = sum(each[1] - each[3] for each in found.reasons.values())
    assert lost == pytest.approx(change.sum())


def test_saved_runs_compare_like_those_in_memory(
    small_and_large: tuple[kvsim.ReplayResult, kvsim.ReplayResult], tmp_path: Path
) -> None:
    for name, result in zip("ab", small_and_large, strict=True):
        result.save(tmp_path / name)
    saved = kvsim.compare(tmp_path / "a", tmp_path / "b")
    memory = kvsim.compare(*small_and_large)
    assert saved.totals == memory.totals
    assert saved.frame.equals(memory.frame)
    assert (saved.a.label, memory.a.label) == ("a", "A")
    assert json.loads(json.dumps(saved.to_dict()))["num_requests"] == len(saved.frame)


def test_other_traces_are_refused_in_one_line() -> None:
    three = kvsim.replay(three_prompts(), gpu_blocks=5)
    back = kvsim.replay(back_from_below(), gpu_blocks=5)
    with pytest.raises(UserError, match=r"num_input_tokens of request 0 is 10 in A .* and 12 in B"):
        kvsim.compare(three, back)
    two = kvsim.replay(three_prompts(), gpu_blocks=5, limit=2)
    with pytest.raises(UserError, match="A has 3 requests of story, B 2 of story"):
        kvsim.compare(three, two)


def test_times_that_are_not_there_are_refused() -> None:
    timed = kvsim.replay(three_prompts(), gpu_blocks=5)
    instant = kvsim.replay(three_prompts(), gpu_blocks=5, instant=True)
    with pytest.raises(UserError, match="an instant replay has no times"):
        kvsim.compare(timed, instant)


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("run.json", None, "no such file"),
        ("run.json", "{", "not what kvsim saves there"),
        ("run.json", "[]", "not the summary of a replay"),
        ("requests.parquet", "x", "not what kvsim saves there"),
        ("transfers.parquet", None, "no such file"),
    ],
)
def test_a_folder_that_is_no_result_is_one_line(
    file: str,
    text: str | None,
    problem: str,
    tmp_path: Path,
    saved: tuple[kvsim.ReplayResult, Path],
) -> None:
    result, folder = saved
    shutil.copytree(folder, tmp_path / "run")
    path = tmp_path / "run" / file
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=problem) as caught:
        kvsim.compare(tmp_path / "run", result)
    assert file in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    result = kvsim.replay(three_prompts(), gpu_blocks=5)
    with pytest.raises(UserError, match="no such folder; name one that kvsim replay --out"):
        kvsim.compare(result, tmp_path / "none")


def test_the_plot_has_a_bar_for_the_latency_and_each_phase(
    small_and_large: tuple[kvsim.ReplayResult, kvsim.ReplayResult],
) -> None:
    found = kvsim.compare(*small_and_large)
    ax = Figure().add_subplot()
    assert found.plot(ax=ax) is ax
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == [*list(PHASES)[::-1], "latency"]
    widths = [bar.get_width() for bar in ax.patches]  # type: ignore[attr-defined]
    assert widths[-1] == pytest.approx(sum(widths[:-1]))
    assert "ms a request" in ax.get_xlabel()


def test_a_notebook_shows_totals_reasons_and_those_that_lost_most(
    small_and_large: tuple[kvsim.ReplayResult, kvsim.ReplayResult],
) -> None:
    shown = kvsim.compare(*small_and_large)._repr_html_()
    assert all(title in shown for title in ("B less A", "Why requests changed", "lost most"))
    assert "<Comparison of" in repr(kvsim.compare(*small_and_large))
