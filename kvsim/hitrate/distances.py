"""How far apart the uses of a block are: in blocks of the LRU stack, and in time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from kvsim.collector import paused_collector
from kvsim.hitrate.counting import Tally
from kvsim.hitrate.paths import find_pieces
from kvsim.hitrate.stack import stack_histogram
from kvsim.hitrate.tables import html_table, percent, tidy_frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from kvsim.hitrate.counting import Basis
    from kvsim.trace import Trace

_SECOND_NS: Final = 10**9
_QUANTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Reuse:
    """How far back each block reference finds its block, by number of references.

    Parameters
    ----------
    basis
        The trace, the warm-up and the partial rule.
    by_distance
        References by *reuse distance*: the position of the block in the LRU stack when the request
        begins, which is the smallest LRU cache that hits it. In blocks, from 1.
    by_time_ns
        References by the time since the request that had the block before, in ns.
    num_first
        References to blocks that no request had before: they have neither.
    """

    basis: Basis
    by_distance: dict[int, int]
    by_time_ns: dict[int, int]
    num_first: int

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a distinct distance or time: kind ("distance" or "time"), value, references."""
        rows = [
            (kind, value, count)
            for kind, counts in (("distance", self.by_distance), ("time", self.by_time_ns))
            for value, count in counts.items()
        ]
        columns = {"kind": "string", "value": "int64", "references": "int64"}
        units = {"distance": "blocks", "time": "ns"}
        attrs = self.basis.attrs() | {"first_references": self.num_first, "units": units}
        return tidy_frame(columns, rows, attrs)

    def quantiles(self) -> dict[str, dict[str, int]]:
        """Return how far back the reuses are, in blocks and ns.

        The q-th quantile is the smallest distance that at least a share q does not exceed.
        """
        return {
            "distance_blocks": _quantiles(self.by_distance),
            "time_ns": _quantiles(self.by_time_ns),
        }

    def to_dict(self) -> dict[str, object]:
        """Return everything but the whole distributions as JSON values."""
        return self.basis.attrs() | {
            "references": self.num_first + sum(self.by_distance.values()),
            "first_references": self.num_first,
            "quantiles": self.quantiles(),
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw how the reuse distance is distributed, over all references."""
        from kvsim.hitrate.plots import plot_reuse_distance

        return plot_reuse_distance(self, ax=ax)

    def plot_time(self, ax: Axes | None = None) -> Axes:
        """Draw how the reuse time is distributed, over all references."""
        from kvsim.hitrate.plots import plot_reuse_time

        return plot_reuse_time(self, ax=ax)

    @property
    def title(self) -> str:
        """One line that says what this is."""
        return f"reuse of blocks on {self.basis.trace}"

    def __repr__(self) -> str:
        return f"<Reuse {self.title}; {sum(self.by_distance.values()):,} references>"

    def _repr_html_(self) -> str:
        found = self.quantiles()
        rows = [
            (q, f"{found['distance_blocks'][q]:,}", f"{found['time_ns'][q] / _SECOND_NS:,.3g}")
            for q in found["distance_blocks"]
        ]
        total = self.num_first + sum(self.by_distance.values())
        notes = [f"{percent(self.num_first / total)} of the references are first ones"]
        head = ("", "distance (blocks)", "time (s)")
        return html_table(self.title, head, rows, [*notes, self.basis.caption])


@paused_collector()
def reuse(trace: Trace, *, warmup: float = 0.0) -> Reuse:
    """Return how far back the block references of a trace find their blocks.

    Parameters
    ----------
    trace
        What is asked for.
    warmup
        Share of the requests, from the first, whose references are not counted.

    Raises
    ------
    UserError
        If the warm-up cannot be used, or there is nothing to hit.
    """
    tally = Tally(trace, warmup)
    pieces = find_pieces(trace)
    histogram = stack_histogram(pieces, trace, tally.first)
    references = histogram.references()
    positions = references.nonzero()[0]
    by_time: dict[int, int] = {}
    requests = trace.requests
    for request in requests[tally.first :]:
        start = 0
        for end, owner in pieces.previous[request.request_id]:
            gap_ns = request.arrived_at - requests[owner].arrived_at
            by_time[gap_ns] = by_time.get(gap_ns, 0) + end - start
            start = end
    return Reuse(
        basis=tally.basis,
        by_distance=dict(zip(positions.tolist(), references[positions].tolist(), strict=True)),
        by_time_ns=dict(sorted(by_time.items())),
        num_first=tally.totals["block"] - int(histogram.within[-1]),
    )


def _quantiles(counts: dict[int, int]) -> dict[str, int]:
    total, seen = sum(counts.values()), 0
    found: dict[str, int] = {}
    left = list(_QUANTILES)
    for value, count in counts.items():
        seen += count
        while left and seen >= left[0] * total:
            found[f"{left.pop(0):.0%}"] = value
    return found
