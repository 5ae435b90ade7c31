"""Where the time of each request went: five spans that add up to its latency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.comparing.saved_run import SavedRun

    Times = NDArray[np.int64]

PHASES: Final = {
    "queue": "from arrival to first admission",
    "reload": "from admission until its own copies up have arrived, with what is computed behind"
    " them",
    "compute": "from then to the first token",
    "decode": "from the first token to the end",
    "interrupted": "from losing its blocks, by a preemption or a failure, to having them again",
}
"""Name of each span -> what it is. `interrupted` is taken out of the others."""


def phases_ns(run: SavedRun, chosen: NDArray[np.bool_]) -> dict[str, Times]:
    """Return the spans of the chosen requests, all of which have finished, in ns."""
    frame = run.requests[chosen]
    arrived, admitted, token, ended = (
        frame[name].to_numpy(dtype=np.int64)
        for name in ("arrived_at_ns", "admitted_at_ns", "first_token_at_ns", "ended_at_ns")
    )
    lost = _from_ms(frame["interrupted_ms"].to_numpy(dtype=np.float64))
    lost_before = _from_ms(frame["interrupted_before_token_ms"].to_numpy(dtype=np.float64))
    prefill = token - admitted - lost_before
    ids = frame["request_id"].to_numpy(dtype=np.int64)
    arrived_up = np.minimum(_last_copy_at(run, ids, token), token)
    reload = np.clip(arrived_up - admitted, 0, prefill)
    return {
        "queue": admitted - arrived,
        "reload": reload,
        "compute": prefill - reload,
        "decode": ended - token - (lost - lost_before),
        "interrupted": lost,
    }


def _last_copy_at(run: SavedRun, ids: Times, token: Times) -> Times:
    """Return when the last copy up for each request arrived that began before its first token."""
    copies = run.transfers
    copies = copies[(copies["direction"] == "swap_in") & copies["request_id"].notna()]
    token_at = dict(zip(ids.tolist(), token.tolist(), strict=True))
    last = dict.fromkeys(token_at, -1)
    columns = ("request_id", "issued_at_ns", "finished_at_ns")
    for request, issued, finished in zip(*(copies[name] for name in columns), strict=True):
        if request in token_at and issued <= token_at[request]:
            last[request] = max(last[request], finished)
    return np.fromiter(last.values(), dtype=np.int64, count=len(last))


def _from_ms(values_ms: NDArray[np.float64]) -> Times:
    return np.rint(values_ms * 1e6).astype(np.int64)
