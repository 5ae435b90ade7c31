"""Hit rate against capacity: LRU at every capacity at once, other policies one by one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from kvsim.analysis.metrics import DEFINITIONS, HitCounts
from kvsim.collector import paused_collector
from kvsim.errors import ConfigError, UnknownNameError
from kvsim.hitrate.bounds import opt_runs
from kvsim.hitrate.counting import Tally, check_capacity, checked_capacities
from kvsim.hitrate.paths import find_pieces
from kvsim.hitrate.replays import Replayer
from kvsim.hitrate.stack import stack_histogram
from kvsim.hitrate.tables import (
    check_definition,
    evenly,
    figures,
    html_table,
    percent,
    tidy_frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    from kvsim.analysis.metrics import HitFigure
    from kvsim.hitrate.counting import Basis
    from kvsim.hitrate.replays import AnyPolicy
    from kvsim.hitrate.stack import StackHistogram
    from kvsim.trace import Trace

Residency: TypeAlias = Literal["resident", "bypass"]

OPT_NAMES: Final[dict[str, str]] = {"resident": "opt", "bypass": "opt-bypass"}
"""Whether a request's path must be cached when it ends -> the name of the optimum then."""

CURVE_COLUMNS: Final = {
    "policy": "string",
    "capacity_blocks": "int64",
    "definition": "string",
    "hits": "int64",
    "total": "int64",
    "rate": "float64",
}
"""Column of `HitCurve.frame` -> dtype."""

_MOST_ROWS: Final = 20
_DEFAULT_POINTS: Final = 60


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HitCurve:
    """Hits at some capacities, by every definition, with no requests in flight.

    Parameters
    ----------
    policy
        Its name.
    basis
        The trace, the warm-up and the partial rule.
    capacities, counts
        In blocks; the hits of each, by definition.
    infinite
        The hits of a cache that never evicts: no capacity has more.
    histogram
        For LRU: the hits at *every* capacity.
    """

    policy: str
    basis: Basis
    capacities: tuple[int, ...]
    counts: tuple[dict[str, HitCounts], ...]
    infinite: dict[str, HitCounts]
    histogram: StackHistogram | None = None

    def at(self, capacity: int) -> dict[str, HitFigure]:
        """Return the hit rates at one capacity: any for LRU, else one that was asked for.

        Raises
        ------
        ConfigError
            If it is not known.
        """
        check_capacity(capacity)
        if self.histogram is not None:
            hits = self.histogram.hits(capacity)
            return figures({k: HitCounts(hits[k], 0, v.total) for k, v in self.infinite.items()})
        if capacity not in self.capacities:
            known = ", ".join(map(str, self.capacities))
            raise ConfigError(f"capacity {capacity} of {self.policy} is not known: {known} are")
        return figures(self.counts[self.capacities.index(capacity)])

    def rates(self, definition: str = "prefix_token") -> list[float]:
        """Return the hit rate at each of `capacities`."""
        check_definition(definition)
        return [each[definition].figure()["rate"] for each in self.counts]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a capacity and definition; `attrs` says what the figures rest on."""
        rows = [
            (self.policy, capacity, name, each.gpu, each.total, each.figure()["rate"])
            for capacity, counts in zip(self.capacities, self.counts, strict=True)
            for name, each in counts.items()
        ]
        attrs = self.basis.attrs() | {"policy": self.policy, "infinite": figures(self.infinite)}
        return tidy_frame(CURVE_COLUMNS, rows, attrs)

    def points(self) -> list[dict[str, object]]:
        """Return the curve as JSON values: what `kvsim curve --json` prints."""
        return [
            {"capacity": capacity, "hits": figures(counts)}
            for capacity, counts in zip(self.capacities, self.counts, strict=True)
        ]

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return self.basis.attrs() | {
            "policy": self.policy,
            "infinite": figures(self.infinite),
            "points": self.points(),
        }

    def plot(
        self,
        ax: Axes | None = None,
        *,
        definition: str = "prefix_token",
        others: Iterable[HitCurve] = (),
    ) -> Axes:
        """Draw the curve, the bound of an infinite cache, and other curves of the same trace."""
        from kvsim.hitrate.plots import plot_curves

        return plot_curves([self, *others], definition=definition, ax=ax)

    @property
    def title(self) -> str:
        """One line that says what this is."""
        return f"{self.policy} on {self.basis.trace}: hit rate by capacity"

    def table_rows(self) -> list[tuple[str, ...]]:
        """Return capacity and rates as text; a long curve is thinned out."""
        shown = evenly(len(self.capacities), _MOST_ROWS)
        rows = [(f"{self.capacities[i]:,}", self.counts[i]) for i in shown]
        rows.append(("infinite", self.infinite))
        return [
            (name, *(percent(each.figure()["rate"]) for each in counts.values()))
            for name, counts in rows
        ]

    def __repr__(self) -> str:
        return f"<HitCurve {self.title}, {len(self.capacities)} capacities>"

    def _repr_html_(self) -> str:
        head = ("blocks", *DEFINITIONS)
        return html_table(self.title, head, self.table_rows(), [self.basis.caption])


@paused_collector()
def lru_curve(
    trace: Trace, capacities: Iterable[int] | None = None, *, warmup: float = 0.0
) -> HitCurve:
    """Return the exact hits of leaf-only LRU at every capacity, from one pass over the trace.

    Parameters
    ----------
    trace
        What is asked for.
    capacities
        In blocks: those that are listed in the result. Default: 60 from 1 to where the curve ends,
        evenly on a logarithmic scale. `HitCurve.at` answers for any other.
    warmup
        Share of the requests, from the first, whose hits are not counted.

    Raises
    ------
    UserError
        If a capacity or the warm-up cannot be used, there is nothing to hit, or the keys of the
        trace do not name their whole prefix.
    """
    chosen = None if capacities is None else checked_capacities(capacities)
    tally = Tally(trace, warmup)
    pieces = find_pieces(trace)
    histogram = stack_histogram(pieces, trace, tally.first)
    if chosen is None:
        chosen = log_spaced(histogram.depth, _DEFAULT_POINTS)
    return HitCurve(
        policy="lru",
        basis=tally.basis,
        capacities=tuple(chosen),
        counts=tuple(tally.as_counts(histogram.hits(capacity)) for capacity in chosen),
        infinite=tally.counts(pieces.known()),
        histogram=histogram,
    )


@paused_collector()
def opt_curve(
    trace: Trace,
    capacities: Iterable[int],
    residency: Residency = "resident",
    *,
    warmup: float = 0.0,
) -> HitCurve:
    """Return the most hits that any policy can have at some capacities (Belady).

    Parameters
    ----------
    residency
        "resident": a request's whole path is cached when it ends, as it is in an engine: can be
        reached. "bypass": blocks may be computed without being cached: a bound, a little higher.
    trace, capacities, warmup
        As for `lru_curve`.

    Raises
    ------
    UserError
        As `lru_curve`, or if there is no such `residency`.
    """
    if residency not in OPT_NAMES:
        raise UnknownNameError("residency", str(residency), OPT_NAMES)
    chosen = checked_capacities(capacities)
    tally = Tally(trace, warmup)
    pieces = find_pieces(trace)
    following = pieces.following()
    is_bypass = residency == "bypass"
    counts = [
        tally.counts(opt_runs(following, pieces.lengths, capacity, may_bypass=is_bypass))
        for capacity in chosen
    ]
    return HitCurve(
        policy=OPT_NAMES[residency],
        basis=tally.basis,
        capacities=tuple(chosen),
        counts=tuple(counts),
        infinite=tally.counts(pieces.known()),
    )


@paused_collector()
def replay_curve(
    trace: Trace,
    policy: AnyPolicy,
    capacities: Iterable[int],
    *,
    warmup: float = 0.0,
    seed: int = 0,
    recompute_ns: Callable[[int], int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> HitCurve:
    """Return the hits of any policy at some capacities, by one replay for each.

    Parameters
    ----------
    policy
        A name, or a class or function that takes a `PolicyContext`. An object only if there is
        one capacity.
    seed, recompute_ns
        As for `replay`.
    progress
        Called with (capacities done, capacities in all).
    trace, capacities, warmup
        As for `lru_curve`.

    Raises
    ------
    UserError
        As `lru_curve`, or if there is no such policy, or it breaks its contract.
    """
    chosen = checked_capacities(capacities)
    tally = Tally(trace, warmup)
    replayer = Replayer(trace, policy, seed=seed, recompute_ns=recompute_ns)
    if not replayer.can_repeat and len(chosen) > 1:
        raise ConfigError(
            f"policy must be a class or a name for more than one capacity: one {replayer.name}"
            " object remembers the capacity before"
        )
    counts: list[dict[str, HitCounts]] = []
    for capacity in chosen:
        counts.append(tally.counts(replayer.runs(capacity)))
        if progress is not None:
            progress(len(counts), len(chosen))
    return HitCurve(
        policy=replayer.name,
        basis=tally.basis,
        capacities=tuple(chosen),
        counts=tuple(counts),
        infinite=tally.counts(replayer.known),
    )


def log_spaced(largest: int, count: int) -> list[int]:
    """Return about `count` capacities from 1 to `largest`, evenly on a logarithmic scale."""
    largest = max(1, largest)
    steps: Sequence[float] = [largest ** (i / max(1, count - 1)) for i in range(count)]
    return sorted({1, largest, *(min(largest, round(step)) for step in steps)})
