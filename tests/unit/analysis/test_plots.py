from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib import pyplot as plt

from kvsim.analysis.frames import requests_frame
from kvsim.analysis.plots import new_figure, plot_hits, plot_ttft
from kvsim.analysis.records import RequestRecord
from kvsim.core.sequence import Status
from kvsim.types import Request

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SECOND_NS, MS_NS = 10**9, 10**6


def frame_of(
    ttfts_ms: list[int], *, num_warmup: int = 0, gpu: int = 1, cpu: int = 0
) -> pd.DataFrame:
    """Requests of 2 blocks of 4 tokens, a second apart."""
    records = [
        RequestRecord(
            request=Request(
                request_id=index,
                arrived_at=index * SECOND_NS,
                block_keys=("a", "b"),
                num_input_tokens=8,
                num_output_tokens=1,
            ),
            status=Status.FINISHED,
            num_gpu_hit_blocks=gpu,
            num_cpu_hit_blocks=cpu,
            first_token_at=index * SECOND_NS + ttft_ms * MS_NS,
        )
        for index, ttft_ms in enumerate(ttfts_ms)
    ]
    return requests_frame(records, block_size=4, num_warmup=num_warmup, clock="virtual")


def axis_labels(ax: Axes) -> tuple[str, str]:
    return ax.get_xlabel(), ax.get_ylabel()


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_the_curve_of_ttft_goes_through_the_percentiles() -> None:
    ax = plot_ttft(frame_of([40, 10, 30, 20]), caption="c", ax=new_figure().add_subplot())
    curve = ax.lines[0]
    assert np.asarray(curve.get_xdata()).tolist() == [10.0, 10.0, 20.0, 30.0, 40.0]
    assert np.asarray(curve.get_ydata()).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert texts(ax) == ["p50  20 ms", "p90  40 ms", "p99  40 ms", "c"]
    assert axis_labels(ax) == (
        "time to first token (ms)",
        "share of the requests",
    )


def test_a_wide_span_of_times_is_drawn_on_a_logarithmic_axis() -> None:
    wide = plot_ttft(frame_of([1, 31]), caption="c", ax=new_figure().add_subplot())
    narrow = plot_ttft(frame_of([1, 30]), caption="c", ax=new_figure().add_subplot())
    assert (wide.get_xscale(), narrow.get_xscale()) == ("log", "linear")


def test_hits_are_stacked_by_tier_over_the_time_of_arrival() -> None:
    # 100 requests, so 2 spans; 4 of 8 tokens hit on the GPU and 4 below.
    frame = frame_of([1] * 100, gpu=1, cpu=1)
    ax = plot_hits(frame, block_size=4, caption="c", ax=new_figure().add_subplot())
    gpu, cpu, _ = ax.patches
    assert np.allclose(gpu.get_data().values, [0.5, 0.5])  # type: ignore[attr-defined]
    assert np.allclose(cpu.get_data().values, [1.0, 1.0])  # type: ignore[attr-defined]
    assert np.allclose(cpu.get_data().edges, [0, 49.5, 99])  # type: ignore[attr-defined]
    assert axis_labels(ax) == (
        "time of arrival (s)",
        "input tokens that hit",
    )
    assert texts(ax) == ["c"]


def test_long_times_are_in_larger_units() -> None:
    # 121 requests a second apart end at 120 s; half of them wait 1,000 ms.
    frame = frame_of([1000] * 121)
    hits = plot_hits(frame, block_size=4, caption="c", ax=new_figure().add_subplot())
    ttft = plot_ttft(frame, caption="c", ax=new_figure().add_subplot())
    assert hits.get_xlabel() == "time of arrival (minutes)"
    assert (ttft.get_xlabel(), texts(ttft)[0]) == ("time to first token (s)", "p50  1 s")


def test_the_mean_is_that_of_the_requests_after_the_warm_up() -> None:
    frame = frame_of([1] * 4, num_warmup=2)
    frame.loc[2:, ["num_gpu_hit_blocks", "num_hit_tokens"]] = [2, 8]
    ax = plot_hits(frame, block_size=4, caption="c", ax=new_figure().add_subplot())
    labels = [str(text.get_text()) for text in ax.get_legend().get_texts()]  # type: ignore[union-attr]
    assert labels == ["GPU", "warm-up", "100.0% after warm-up"]


@pytest.mark.parametrize("ttfts_ms", [[5], [5, 5]])
def test_a_trace_of_one_instant_can_be_drawn(ttfts_ms: list[int]) -> None:
    frame = frame_of(ttfts_ms)
    frame["arrived_at_ns"] = 0
    plot_hits(frame, block_size=4, caption="c", ax=new_figure().add_subplot())
    plot_ttft(frame, caption="c", ax=new_figure().add_subplot())


def test_without_axes_a_figure_is_made_and_not_shown() -> None:
    before = set(plt.get_fignums())
    ax = plot_ttft(frame_of([1]), caption="c")
    try:
        assert set(plt.get_fignums()) - before == {ax.figure.number}  # type: ignore[union-attr]
    finally:
        plt.close("all")


def test_a_figure_to_be_saved_is_unknown_to_pyplot() -> None:
    before = plt.get_fignums()
    new_figure()
    assert plt.get_fignums() == before
