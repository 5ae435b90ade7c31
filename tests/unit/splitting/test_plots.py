"""What the plots of a split run draw and call it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from kvsim.analysis.plots import new_figure
from kvsim.splitting.plots import plot_request, plot_sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MS_NS = 10**6


def legend_of(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def sweep_frame(*, full_at_end: bool) -> pd.DataFrame:
    """Two speeds; layer by layer 10 and 1 ms are exposed, at the end 20 and 8."""
    return pd.DataFrame(
        {
            "link": [1, 1, 4, 4],
            "send": ["layerwise", "at_end"] * 2,
            "exposed_transfer_ms": [10.0, 20.0, 1.0, 8.0],
            "is_network_bound": [False, full_at_end, False, False],
        }
    )


def drawn(frame: pd.DataFrame) -> Axes:
    return plot_sweep(frame, over="link", caption="c", ax=new_figure().add_subplot())


def test_a_sweep_has_a_line_for_each_way_of_sending() -> None:
    ax = drawn(sweep_frame(full_at_end=False))
    assert [np.asarray(line.get_ydata()).tolist() for line in ax.lines] == [
        [10.0, 1.0],
        [20.0, 8.0],
    ]
    assert legend_of(ax) == ["sent layer by layer", "sent at the end"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == (
        "speed of a card (GB/s)",
        "mean exposed transfer (ms)",
    )


def test_a_full_wire_is_ringed_whichever_way_it_was_sent() -> None:
    ax = drawn(sweep_frame(full_at_end=True))
    assert np.asarray(ax.lines[2].get_xdata()).tolist() == [1]
    assert np.asarray(ax.lines[2].get_ydata()).tolist() == [20.0]
    assert legend_of(ax)[2:] == ["a wire is full"]


@pytest.mark.parametrize(("wait_ms", "name"), [(2, "waits"), (500, "waits (cut off)")])
def test_a_long_wait_is_cut_off_and_said_to_be(wait_ms: int, name: str) -> None:
    # Computed for 20 ms and sent until 10 ms later: a tenth of the 30 ms of the wait is shown.
    times = {"prefill": 0, "done": 20, "arrived": 30, "ended": 90}
    at = {each: (wait_ms + ms) * MS_NS for each, ms in times.items()}
    request = {
        "request_id": 0,
        "status": "finished",
        "arrived_at_ns": 0,
        "decode_started_at_ns": at["arrived"],
        "ended_at_ns": at["ended"],
        "num_input_tokens": 64,
        "num_sends": 1,
    }
    piece = {"request_id": 0, "started_at_ns": at["prefill"], "finished_at_ns": at["done"]}
    send = piece | {"finished_at_ns": at["arrived"], "outcome": "done"}
    ax = plot_request(
        *(pd.DataFrame([each]) for each in (request, piece, send)),
        caption="c",
        ax=new_figure().add_subplot(),
    )
    assert legend_of(ax) == [name, "computes", "sends", "decodes (cut off)"]
    assert ax.patches[0].get_width() == min(wait_ms, 3)  # type: ignore[attr-defined]
