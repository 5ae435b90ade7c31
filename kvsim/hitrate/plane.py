"""Hits on every tier for every combination of sizes, from one LRU histogram."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, product
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from kvsim.analysis.metrics import DEFINITIONS, TIER_NAMES
from kvsim.collector import paused_collector
from kvsim.errors import ConfigError, UnknownNameError
from kvsim.hitrate.counting import Tally, checked_capacities
from kvsim.hitrate.paths import find_pieces
from kvsim.hitrate.stack import stack_histogram
from kvsim.hitrate.tables import evenly, html_table, percent, tidy_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    from kvsim.analysis.metrics import HitFigure
    from kvsim.hitrate.counting import Basis
    from kvsim.hitrate.stack import StackHistogram
    from kvsim.trace import Trace

Mode: TypeAlias = Literal["exclusive", "inclusive"]

MODES: Final = {
    "exclusive": "a block is in one tier: what leaves the GPU goes to the CPU; a hit comes up",
    "inclusive": "every block is written to the CPU too, and a hit on the GPU refreshes that copy",
}
"""Name -> what it means."""

_MOST_ROWS: Final = 24


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TierPlane:
    """Hits on each tier at some combinations of sizes, by every definition.

    Parameters
    ----------
    mode
        One of `MODES`.
    basis
        The trace, the warm-up and the partial rule.
    names
        Of the tiers, nearest first: gpu, cpu, tier2, ...
    sizes
        The combinations: blocks of each tier.
    histogram, totals
        The hits of one LRU stack, and what can be hit at most.
    """

    mode: str
    basis: Basis
    names: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]
    histogram: StackHistogram
    totals: Mapping[str, int]

    def at(self, *sizes: int) -> dict[str, dict[str, HitFigure]]:
        """Return the hit rates of each tier, and of "all" together, for any sizes in blocks.

        Raises
        ------
        ConfigError
            If there are not as many sizes as tiers, or one cannot be used.
        """
        if len(sizes) != len(self.names):
            raise ConfigError(f"{len(self.names)} sizes are needed, {', '.join(self.names)}")
        checked_capacities(sizes, name="sizes", least=0)
        by_tier = self._hits(sizes)
        whole = {name: sum(hits[name] for hits in by_tier) for name in DEFINITIONS}
        named = zip((*self.names, "all"), (*by_tier, whole), strict=True)
        return {tier: self._figures(hits) for tier, hits in named}

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a combination of sizes and definition; hits of each tier and of all."""
        columns = {f"{name}_blocks": "int64" for name in self.names}
        columns |= {"definition": "string"}
        columns |= {f"{name}_hits": "int64" for name in self.names}
        columns |= {"hits": "int64", "total": "int64", "rate": "float64"}
        rows: list[tuple[object, ...]] = []
        for sizes in self.sizes:
            by_tier = self._hits(sizes)
            for name, total in self.totals.items():
                hits = [each[name] for each in by_tier]
                rate = sum(hits) / total if total else 0.0
                rows.append((*sizes, name, *hits, sum(hits), total, rate))
        return tidy_frame(columns, rows, self.basis.attrs() | {"policy": "lru", "mode": self.mode})

    def points(self) -> list[dict[str, object]]:
        """Return the plane as JSON values: what `kvsim plane --json` prints."""
        found: list[dict[str, object]] = []
        for sizes in self.sizes:
            figures = self.at(*sizes)
            point: dict[str, object] = dict(zip(self.names, sizes, strict=True))
            point |= {f"{name}_hits": figures[name] for name in self.names}
            found.append(point | {"hits": figures["all"]})
        return found

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return self.basis.attrs() | {"policy": "lru", "mode": self.mode, "points": self.points()}

    def plot(self, ax: Axes | None = None, *, definition: str = "prefix_token") -> Axes:
        """Draw lines of equal hit rate over the sizes of the GPU and the CPU tier.

        Raises
        ------
        UserError
            If there are not just two tiers.
        """
        from kvsim.hitrate.plots import plot_plane

        return plot_plane(self, definition=definition, ax=ax)

    @property
    def title(self) -> str:
        """One line that says what this is."""
        return f"lru on {self.basis.trace}, {self.mode} tiers: {', '.join(self.names)}"

    def table_rows(self, definition: str = "prefix_token") -> list[tuple[str, ...]]:
        """Return sizes and rates of each tier and of all as text."""
        rows: list[tuple[str, ...]] = []
        for sizes in (self.sizes[i] for i in evenly(len(self.sizes), _MOST_ROWS)):
            rates = [figure[definition]["rate"] for figure in self.at(*sizes).values()]
            rows.append((" + ".join(f"{each:,}" for each in sizes), *map(percent, rates)))
        return rows

    def __repr__(self) -> str:
        return f"<TierPlane {self.title}; {len(self.sizes)} combinations>"

    def _repr_html_(self) -> str:
        notes = [f"rates: prefix_token; {MODES[self.mode]}", self.basis.caption]
        head = (f"blocks ({' + '.join(self.names)})", *self.names, "all")
        return html_table(self.title, head, self.table_rows(), notes)

    def _hits(self, sizes: Sequence[int]) -> list[dict[str, int]]:
        """Return the hits of each tier: the stack is cut at its lower edge."""
        edges = list(accumulate(sizes, max if self.mode == "inclusive" else None))
        above = dict.fromkeys(DEFINITIONS, 0)
        by_tier: list[dict[str, int]] = []
        for edge in edges:
            within = self.histogram.hits(edge)
            by_tier.append({name: within[name] - above[name] for name in DEFINITIONS})
            above = within
        return by_tier

    def _figures(self, hits: Mapping[str, int]) -> dict[str, HitFigure]:
        return {
            name: {"hits": hits[name], "total": total, "rate": hits[name] / total if total else 0.0}
            for name, total in self.totals.items()
        }


@paused_collector()
def tier_plane(
    trace: Trace,
    mode: Mode = "exclusive",
    gpu: Iterable[int] | None = None,
    cpu: Iterable[int] | None = None,
    *,
    tiers: Iterable[Iterable[int]] | None = None,
    warmup: float = 0.0,
) -> TierPlane:
    """Return the exact hits of LRU tiers for all combinations of sizes, from one pass.

    Exclusive tiers are one LRU stack cut at the running sums of their sizes. With inclusive ones
    the GPU hits the first G of the stack, and the CPU what is beyond that within the first H. The
    conditions, which docs/hit-rate.md explains: one request at a time; copies on their way up free
    their CPU blocks before others come down; what of a path is too long for the GPU goes to the
    CPU; in inclusive mode every block is written at once and a GPU hit refreshes its CPU copy.

    Parameters
    ----------
    trace
        What is asked for.
    mode
        One of `MODES`.
    gpu, cpu
        Sizes in blocks; 0 is no tier.
    tiers
        Instead of those two: the sizes of each tier, nearest first, of any number of exclusive
        tiers, or of two inclusive ones.
    warmup
        Share of the requests, from the first, whose hits are not counted.

    Raises
    ------
    UserError
        If a size, the mode or the warm-up cannot be used, or there is nothing to hit.
    """
    if mode not in MODES:
        raise UnknownNameError("mode", str(mode), MODES)
    if (tiers is None) == (gpu is None and cpu is None):
        raise ConfigError("sizes must be given either as gpu=[...] and cpu=[...], or as tiers=")
    given = [gpu or [0], cpu or [0]] if tiers is None else list(tiers)
    chosen = [
        checked_capacities(sizes, name=name, least=0)
        for name, sizes in zip(_tier_names(len(given)), given, strict=True)
    ]
    if mode == "inclusive" and len(chosen) > 2:
        raise ConfigError(f"inclusive tiers are two, not {len(chosen)}; exclusive ones may be more")
    tally = Tally(trace, warmup)
    return TierPlane(
        mode=mode,
        basis=tally.basis,
        names=_tier_names(len(chosen)),
        sizes=tuple(product(*chosen)),
        histogram=stack_histogram(find_pieces(trace), trace, tally.first),
        totals=tally.totals,
    )


def _tier_names(count: int) -> tuple[str, ...]:
    return tuple(TIER_NAMES[i] if i < len(TIER_NAMES) else f"tier{i}" for i in range(count))
