"""The paired table of two runs, its totals, and what changed most."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.comparing.phases import PHASES, phases_ns
from kvsim.comparing.saved_run import SavedRun, as_run
from kvsim.errors import UserError
from kvsim.setting_checks import check_int
from kvsim.sweeping.compare import Interval, paired_interval, resampling_units

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from kvsim.result import ReplayResult

_NS_PER_MS: Final = 10**6
_TAKEN: Final = {
    "ttft_ms": "ttft_ms",
    "gpu_hit_blocks": "num_gpu_hit_blocks",
    "cpu_hit_blocks": "num_cpu_hit_blocks",
    "hit_tokens": "num_hit_tokens",
    "preemptions": "num_preemptions",
}
"""Column of the paired table -> that of the requests' frame."""
_SAME: Final = ("num_input_tokens", "num_output_tokens", "num_blocks", "arrived_at_ns")
TOTAL_HEAD: Final = ("a request, mean", "A", "B", "B - A", "95 % interval")
SLOWER_HEAD: Final = ("request", "latency A (ms)", "B (ms)", "B - A (ms)", "most of it", "(ms)")
REASON_HEAD: Final = ("largest change", "slower", "by (s)", "faster", "by (s)")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Comparison:
    """Two runs of one trace, request by request. Made by `kvsim.compare`.

    Parameters
    ----------
    a, b
        The runs. Every difference is b's less a's.
    frame
        One row a request that finished in both: `request_id`, `session_id`, `arrived_at_ns`; for
        `ttft_ms`, `latency_ms`, each of `PHASES` (`queue_ms` ...), `gpu_hit_blocks`,
        `cpu_hit_blocks`, `preemptions` and `hit_tokens` three columns, with `_a`, `_b` and
        `_change` behind; `largest_change`: the phase that changed most the way the latency did.
    seed
        Of the resampling.
    """

    a: SavedRun
    b: SavedRun
    frame: pd.DataFrame
    seed: int

    @cached_property
    def totals(self) -> dict[str, tuple[float, float, Interval]]:
        """Mean of a and b, and the difference with its 95 % interval, by column.

        Times are in ms. `hit_rate` is `prefix_token` of these requests.
        """
        units = self._units()
        ones = np.ones(len(self.frame), dtype=np.int64)
        found = {}
        for name in ("ttft_ms", "latency_ms", *_columns(PHASES)):
            scale = _NS_PER_MS
            found[name] = self._total(name, scale, ones, units)
        for name in ("gpu_hit_blocks", "cpu_hit_blocks", "preemptions"):
            found[name] = self._total(name, 1, ones, units)
        tokens = self.frame["num_input_tokens"].to_numpy(dtype=np.int64)
        found["hit_rate"] = self._total("hit_tokens", 1, tokens, units)
        return found

    @property
    def reasons(self) -> dict[str, tuple[int, float, int, float]]:
        """By the phase that changed most: requests slower, by how many ms, faster, by how many."""
        change = self.frame["latency_ms_change"].to_numpy(dtype=np.float64)
        why = self.frame["largest_change"].to_numpy()
        found = {}
        for phase in PHASES:
            those = change[why == phase]
            slower, faster = those[those > 0], those[those < 0]
            found[phase] = len(slower), float(slower.sum()), len(faster), float(-faster.sum())
        return found

    def slowest(self, n: int = 10) -> pd.DataFrame:
        """Return the rows of the requests that lost most, worst first."""
        rows = self.frame[self.frame["latency_ms_change"] > 0]
        return rows.sort_values(
            ["latency_ms_change", "request_id"], ascending=[False, True], kind="stable"
        ).head(n)

    def total_rows(self) -> list[tuple[str, ...]]:
        """Return the totals as text, under `TOTAL_HEAD`."""
        return [_total_row(name, *each) for name, each in self.totals.items()]

    def slowest_rows(self, n: int = 10) -> list[tuple[str, ...]]:
        """Return the requests that lost most as text, under `SLOWER_HEAD`."""
        rows = self.slowest(n).to_dict("records")
        return [
            (
                f"{row['request_id']}",
                f"{row['latency_ms_a']:,.1f}",
                f"{row['latency_ms_b']:,.1f}",
                f"{row['latency_ms_change']:+,.1f}",
                f"{row['largest_change']}",
                f"{row[str(row['largest_change']) + '_ms_change']:+,.1f}",
            )
            for row in rows
        ]

    def reason_rows(self) -> list[tuple[str, ...]]:
        """Return the reasons as text, under `REASON_HEAD`."""
        return [
            (phase, f"{slower:,}", f"{lost / 1000:,.1f}", f"{faster:,}", f"{won / 1000:,.1f}")
            for phase, (slower, lost, faster, won) in self.reasons.items()
            if slower or faster
        ]

    @property
    def notes(self) -> list[str]:
        """What the figures rest on."""
        notes = [
            _described(run) if run.label == name else f"{name}: {_described(run)}"
            for name, run in (("A", self.a), ("B", self.b))
        ]
        left = max(len(self.a.requests), len(self.b.requests)) - len(self.frame)
        if left:
            notes.append(f"{left:,} requests did not finish in both and are left out")
        kind = self._unit_kind
        return [
            *notes,
            f"the intervals are those of a paired bootstrap over each {kind}, seed {self.seed}",
            *(f"{phase}: {text}" for phase, text in PHASES.items()),
        ]

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON values; bounds that cannot be had are None."""
        return {
            "a": _described(self.a),
            "b": _described(self.b),
            "num_requests": len(self.frame),
            "totals": {
                name: {"a": a, "b": b, "difference": each.difference, "low": _or_none(each.low),
                       "high": _or_none(each.high)}
                for name, (a, b, each) in self.totals.items()
            },
            "reasons": {
                name: {"slower": each[0], "slower_ms": each[1], "faster": each[2],
                       "faster_ms": each[3]}
                for name, each in self.reasons.items()
            },
        }  # fmt: skip

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw by how much each phase changed on average, with its interval."""
        from kvsim.comparing.plots import plot_changes

        return plot_changes(self, ax=ax)

    def __repr__(self) -> str:
        _, _, latency = self.totals["latency_ms"]
        return (
            f"<Comparison of {len(self.frame):,} requests: latency {latency.difference:+,.1f} ms"
            f" [{latency.low:+,.1f}, {latency.high:+,.1f}]>"
        )

    def _repr_html_(self) -> str:
        from kvsim.hitrate.tables import html_table

        return (
            html_table("B less A", TOTAL_HEAD, self.total_rows())
            + html_table("Why requests changed", REASON_HEAD, self.reason_rows())
            + html_table("Those that lost most", SLOWER_HEAD, self.slowest_rows(5), self.notes)
        )

    @property
    def _unit_kind(self) -> str:
        return "session" if self.frame["session_id"].notna().any() else "run of requests"

    def _units(self) -> NDArray[np.int64]:
        sessions = self.frame["session_id"]
        numbers = None
        if sessions.notna().any():
            codes = sessions.astype("category").cat.codes.to_numpy(dtype=np.int64)
            # One without a session stands alone.
            alone = codes.max() + 1 + np.arange(len(codes))
            numbers = np.where(codes < 0, alone, codes)
        return resampling_units(len(self.frame), numbers).of_request

    def _total(
        self, name: str, scale: int, weights: NDArray[np.int64], units: NDArray[np.int64]
    ) -> tuple[float, float, Interval]:
        a, b = (
            np.rint(self.frame[f"{name}_{run}"].to_numpy(dtype=np.float64) * scale).astype(np.int64)
            for run in "ab"
        )
        found = paired_interval(b, a, weights, units, seed=self.seed)
        total = int(weights.sum()) * scale
        interval = Interval(
            found.difference / scale, found.low / scale, found.high / scale, found.num_units
        )
        return int(a.sum()) / total, int(b.sum()) / total, interval


def compare(
    run_a: ReplayResult | str | PathLike[str],
    run_b: ReplayResult | str | PathLike[str],
    *,
    seed: int = 0,
) -> Comparison:
    """Compare two runs of the same trace, request by request.

    Parameters
    ----------
    run_a, run_b
        Results, or the folders they were saved to.
    seed
        Of the resampling behind the confidence intervals.

    Raises
    ------
    UserError
        If a folder is not that of a result, the traces or the clocks differ, a run was instant,
        or no request finished in both.
    """
    check_int("seed", seed, 0)
    a, b = as_run(run_a, label="A"), as_run(run_b, label="B")
    _check_same(a, b)
    finished = [(run.requests["status"] == "finished").to_numpy(dtype=bool) for run in (a, b)]
    both = finished[0] & finished[1]
    if not both.any():
        raise UserError("no request finished in both runs: there is nothing to compare")
    return Comparison(a=a, b=b, frame=_paired(a, b, both), seed=seed)


def _check_same(a: SavedRun, b: SavedRun) -> None:
    """Raise `UserError` unless both runs took the same requests on the same clock."""
    clocks = [str(run.facts["clock"]) for run in (a, b)]
    if "none" in clocks:
        raise UserError("an instant replay has no times to compare: leave out instant")
    if clocks[0] != clocks[1]:
        raise UserError(
            f"times of two clocks cannot be compared: A ran on the {clocks[0]} clock, B on the"
            f" {clocks[1]} clock"
        )
    names = [str(run.fact("trace", "name")) for run in (a, b)]
    sizes = [len(run.requests) for run in (a, b)]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"both runs must be of one trace: A has {sizes[0]:,} requests of {names[0]}, B"
            f" {sizes[1]:,} of {names[1]}"
        )
    for column in _SAME:
        differs = (a.requests[column] != b.requests[column]).to_numpy(dtype=bool)
        if differs.any():
            first = int(np.flatnonzero(differs)[0])
            values = [run.requests[column].iloc[first] for run in (a, b)]
            raise UserError(
                f"both runs must be of one trace: {column} of request {first} is {values[0]} in A"
                f" ({names[0]}) and {values[1]} in B ({names[1]})"
            )
    hashes = [run.fact("provenance", "trace_sha256") for run in (a, b)]
    if None not in hashes and hashes[0] != hashes[1]:
        raise UserError(
            f"both runs must be of one trace: the files {names[0]} and {names[1]} differ"
        )


def _paired(a: SavedRun, b: SavedRun, both: NDArray[np.bool_]) -> pd.DataFrame:
    import pandas as pd

    base = a.requests[both]
    columns: dict[str, object] = {
        name: base[name].to_numpy() for name in ("request_id", "arrived_at_ns", "num_input_tokens")
    }
    columns["session_id"] = base["session_id"].array
    spans = [phases_ns(run, both) for run in (a, b)]
    for name, old in _TAKEN.items():
        kind = np.float64 if name.endswith("_ms") else np.int64
        of_a, of_b = (run.requests[both][old].to_numpy(dtype=kind) for run in (a, b))
        columns |= {f"{name}_a": of_a, f"{name}_b": of_b, f"{name}_change": of_b - of_a}
    latencies = [np.sum(list(each.values()), axis=0) for each in spans]
    for name, (ns_a, ns_b) in {
        "latency": (latencies[0], latencies[1]),
        **{phase: (spans[0][phase], spans[1][phase]) for phase in PHASES},
    }.items():
        columns |= {
            f"{name}_ms_a": ns_a / _NS_PER_MS,
            f"{name}_ms_b": ns_b / _NS_PER_MS,
            f"{name}_ms_change": (ns_b - ns_a) / _NS_PER_MS,
        }
    columns["largest_change"] = pd.array(_largest(spans), dtype="string")
    return pd.DataFrame(columns)


def _largest(spans: list[dict[str, NDArray[np.int64]]]) -> list[str]:
    """Return for each request the phase that changed most the way its latency did."""
    changes = np.stack([spans[1][phase] - spans[0][phase] for phase in PHASES])
    direction = np.where(changes.sum(axis=0) < 0, -1, 1)
    names = list(PHASES)
    return [names[index] for index in (changes * direction).argmax(axis=0)]


def _columns(phases: dict[str, str]) -> Iterator[str]:
    return (f"{phase}_ms" for phase in phases)


def _total_row(name: str, a: float, b: float, each: Interval) -> tuple[str, ...]:
    if name == "hit_rate":
        values = f"{a:.2%}", f"{b:.2%}", f"{each.difference:+.2%}"
        bounds = f"{each.low:+.2%} to {each.high:+.2%}"
    else:
        values = f"{a:,.2f}", f"{b:,.2f}", f"{each.difference:+,.2f}"
        bounds = f"{each.low:+,.2f} to {each.high:+,.2f}"
    if np.isnan(each.low):
        bounds = "-"
    label = name.removesuffix("_ms").replace("_", " ")
    return (f"{label} (ms)" if name.endswith("_ms") else label, *values, bounds)


def _described(run: SavedRun) -> str:
    config = run.facts["config"]
    assert isinstance(config, dict), "the summary of a result has its settings"
    tiers = f"{config['gpu_blocks']:,} GPU + {config['cpu_blocks']:,} CPU blocks"
    return f"{run.label}: {run.fact('trace', 'name')}, {config['policy']}, {tiers}"


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value
