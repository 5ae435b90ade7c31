"""Plots of a split run. Each takes and returns `Axes`, labels its units, and shows no window."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter

from kvsim.analysis.plots import finish, new_axes
from kvsim.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_QUEUE, _COMPUTE, _SEND, _DECODE = "#c9c9c9", "#3b6fb6", "#e08a3c", "#7fb069"
_BAD: Final = "#c0392b"
_NUM_BINS: Final = 8
_WAYS: Final = {
    "layerwise": ("sent layer by layer", _COMPUTE),
    "at_end": ("sent at the end", _SEND),
}
"""Way of sending -> what a legend calls it, and its colour."""


def plot_request(
    requests: pd.DataFrame,
    pieces: pd.DataFrame,
    sends: pd.DataFrame,
    *,
    caption: str,
    request_id: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw one request over time: its wait, the pieces of its prompt, its sends, its decoding.

    By default the finished request with the most sends, the first of equals.

    Raises
    ------
    UserError
        If there is no such request, or no piece of its prompt was computed.
    """
    row = _chosen(requests, request_id)
    request_id, start = int(row["request_id"]), int(row["arrived_at_ns"])
    own_pieces = pieces[pieces["request_id"] == request_id]
    own_sends = sends[sends["request_id"] == request_id]
    if own_pieces.empty:
        raise UserError(f"request {request_id} was never computed: there is nothing to draw")
    ax = ax or new_axes()
    bar = partial(_bar, ax, start)
    first, span = int(own_pieces["started_at_ns"].min()), _span(own_pieces, own_sends)
    # Seen from the first computation: a long wait would leave no room for what follows.
    shown = max(start, first - max(1, span // 10))
    if shown < first:
        bar(3, shown, first, _QUEUE, "waits" if shown == start else "waits (cut off)")
    for i, (begin, until) in enumerate(_spans(own_pieces)):
        bar(2, begin, until, _COMPUTE, "" if i else "computes")
    labels = {"done": "sends", "other": "send that failed"}
    for (begin, until), outcome in zip(_spans(own_sends), own_sends["outcome"], strict=True):
        name, color = ("done", _SEND) if outcome == "done" else ("other", _BAD)
        bar(1, begin, until, color, labels.pop(name, ""))
    if not pd.isna(row["decode_started_at_ns"]):
        begin = int(row["decode_started_at_ns"])
        until = min(int(row["ended_at_ns"]), begin + max(1, span // 5))
        is_cut = until < row["ended_at_ns"]
        bar(0, begin, until, _DECODE, "decodes (cut off)" if is_cut else "decodes")
    ax.set_yticks([0, 1, 2, 3], ["decode", "network", "prefill", "queue"])
    ax.set(ylim=(-0.5, 3.5), xlabel="time since arrival (ms)")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    title = f"Request {request_id}: {int(row['num_input_tokens']):,} tokens, chunk by chunk"
    finish(ax, title, caption)
    ax.grid(axis="x", alpha=0.25, linewidth=0.6)
    ax.grid(visible=False, axis="y")
    return ax


def plot_parts(requests: pd.DataFrame, *, caption: str, ax: Axes | None = None) -> Axes:
    """Draw the mean parts of the time to first token by the length of the prompt.

    The requests are dealt out to at most eight groups of about equal number.
    """
    ax = ax or new_axes()
    known = requests.dropna(subset=["ttft_ms"]).sort_values("num_input_tokens", kind="stable")
    groups = [
        g for g in np.array_split(np.arange(len(known)), min(_NUM_BINS, len(known))) if len(g)
    ]
    names, bottom = [], np.zeros(len(groups))
    for group in groups:
        tokens = known["num_input_tokens"].iloc[group]
        names.append(f"{tokens.iloc[0]:,}\nto {tokens.iloc[-1]:,}")
    for column, label, color in (
        ("queue_ms", "queue", _QUEUE),
        ("compute_ms", "compute", _COMPUTE),
        ("exposed_transfer_ms", "exposed transfer", _SEND),
    ):
        values = known[column].fillna(0).to_numpy(dtype=np.float64)
        heights = np.array([values[group].mean() for group in groups])
        ax.bar(range(len(groups)), heights, bottom=bottom, color=color, label=label, width=0.75)
        bottom = bottom + heights
    ax.set_xticks(range(len(groups)), names, fontsize=7)
    ax.set_xlabel("tokens of the prompt")
    ax.set_ylabel("mean time to first token (ms)")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    finish(ax, "Where the time to first token goes", caption)
    return ax


def plot_sweep(frame: pd.DataFrame, *, over: str, caption: str, ax: Axes | None = None) -> Axes:
    """Draw the exposed transfer, as a mean, against what was varied.

    Parameters
    ----------
    frame
        As `kvsim.split_sweep` returns it: a row for each value and way of sending.
    over
        What was varied.
    """
    ax = ax or new_axes()
    for mode, (label, color) in _WAYS.items():
        part = frame[frame["send"] == mode]
        if not part.empty:
            ax.plot(part[over], part["exposed_transfer_ms"], "o-", color=color, label=label)
    bound = frame[frame["is_network_bound"]]
    if not bound.empty:
        ax.plot(
            bound[over],
            bound["exposed_transfer_ms"],
            "o",
            markersize=10,
            markerfacecolor="none",
            markeredgecolor=_BAD,
            label="a wire is full",
        )
    if len(frame) > 1 and frame[over].max() > 4 * frame[over].min():
        ax.set_xscale("log")
        ticks = sorted(set(frame[over]))
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
    positive = frame["exposed_transfer_ms"]
    if positive.min() > 0 and positive.max() > 30 * positive.min():
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    else:
        ax.set_ylim(bottom=0)
    units = {
        "link": "speed of a card (GB/s)",
        "token_budget": "most tokens a step computes",
        "layers": "layers of the model",
    }
    ax.set_xlabel(units.get(over, over))
    ax.set_ylabel("mean exposed transfer (ms)")
    ax.legend(frameon=False, fontsize=8)
    finish(ax, "What sending adds to the time to first token", caption)
    return ax


def _bar(
    ax: Axes, start_ns: int, lane: float, begin_ns: int, end_ns: int, color: str, label: str = ""
) -> None:
    ax.barh(
        lane,
        (end_ns - begin_ns) / 1e6,
        left=(begin_ns - start_ns) / 1e6,
        height=0.6,
        color=color,
        edgecolor="white",
        linewidth=0.6,
        label=label,
    )


def _chosen(requests: pd.DataFrame, request_id: int | None) -> pd.Series:
    if request_id is not None:
        found = requests[requests["request_id"] == request_id]
        if found.empty:
            raise UserError(f"there is no request {request_id} in this run")
        return found.iloc[0]
    finished = requests[requests["status"] == "finished"]
    if finished.empty:
        raise UserError("no request finished: there is nothing to draw")
    return finished.iloc[int(finished["num_sends"].to_numpy().argmax())]


def _spans(frame: pd.DataFrame) -> list[tuple[int, int]]:
    starts, ends = frame["started_at_ns"].tolist(), frame["finished_at_ns"].tolist()
    return [(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]


def _span(pieces: pd.DataFrame, sends: pd.DataFrame) -> int:
    ends = [pieces["finished_at_ns"].max()]
    if not sends.empty:
        ends.append(sends["finished_at_ns"].max())
    return int(max(ends) - pieces["started_at_ns"].min())
