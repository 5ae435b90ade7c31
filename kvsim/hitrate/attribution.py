"""Why references miss: new blocks, a cache that is too small, a policy that chose badly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from kvsim.analysis.metrics import DEFINITIONS
from kvsim.collector import paused_collector
from kvsim.hitrate.bounds import opt_runs
from kvsim.hitrate.counting import Tally, check_capacity
from kvsim.hitrate.paths import find_pieces
from kvsim.hitrate.replays import Replayer
from kvsim.hitrate.tables import html_table, percent, tidy_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd
    from matplotlib.axes import Axes

    from kvsim.hitrate.counting import Basis
    from kvsim.hitrate.replays import AnyPolicy
    from kvsim.trace import Trace

CAUSES: Final = {
    "hit": "found",
    "policy": "missed, though the optimum of this capacity would have had it",
    "capacity": "missed, though asked for before: even the optimum would not have had it",
    "cold": "asked for the first time",
    "partial_tail": "a last block that is not full, asked for the first time; in tokens also those"
    " that are in no block that can be used",
}
"""What can become of a reference -> what it means. They add up to all references."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MissAttribution:
    """What became of all references, by every definition, with no requests in flight.

    Parameters
    ----------
    policy, capacity
        Its name; in blocks.
    basis
        The trace, the warm-up and the partial rule.
    counts
        By definition and cause (`CAUSES`), in blocks or tokens.
    """

    policy: str
    capacity: int
    basis: Basis
    counts: Mapping[str, Mapping[str, int]]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a definition and cause."""
        columns = {
            "policy": "string", "capacity_blocks": "int64", "definition": "string",
            "cause": "string", "count": "int64", "total": "int64", "share": "float64",
        }  # fmt: skip
        rows = [
            (self.policy, self.capacity, name, cause, count, total, _share(count, total))
            for name, causes in self.counts.items()
            for total in [sum(causes.values())]
            for cause, count in causes.items()
        ]
        return tidy_frame(columns, rows, self._attrs())

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return self._attrs() | {"counts": {name: dict(each) for name, each in self.counts.items()}}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the share of each cause, by definition."""
        from kvsim.hitrate.plots import plot_causes

        return plot_causes(self, ax=ax)

    @property
    def title(self) -> str:
        """One line that says what this is."""
        return f"{self.policy} on {self.basis.trace}, {self.capacity:,} blocks: why it misses"

    def __repr__(self) -> str:
        return f"<MissAttribution {self.title}>"

    def _repr_html_(self) -> str:
        rows = [
            (cause, *(percent(_share(each[cause], sum(each.values()))) for each in by_definition))
            for by_definition in [self.counts.values()]
            for cause in CAUSES
        ]
        notes = [*(f"{cause}: {meaning}" for cause, meaning in CAUSES.items()), self.basis.caption]
        return html_table(self.title, ("", *DEFINITIONS), rows, notes)

    def _attrs(self) -> dict[str, object]:
        return self.basis.attrs() | {
            "policy": self.policy,
            "capacity_blocks": self.capacity,
            "causes": dict(CAUSES),
        }


@paused_collector()
def miss_attribution(
    trace: Trace,
    policy: AnyPolicy,
    capacity: int,
    *,
    warmup: float = 0.0,
    seed: int = 0,
    recompute_ns: Callable[[int], int] | None = None,
) -> MissAttribution:
    """Return what became of each reference: a hit, or why not.

    Each reference has one cause, so that they add up to all of them. "policy" misses are what the
    clairvoyant optimum ("resident") of the same capacity hits; where a policy hits what the
    optimum does not, that is a hit.

    Parameters
    ----------
    trace, policy, capacity, warmup, seed, recompute_ns
        As for `kvsim.hitrate.replay`.

    Raises
    ------
    UserError
        As `kvsim.hitrate.replay`.
    """
    check_capacity(capacity)
    tally = Tally(trace, warmup)
    replayer = Replayer(trace, policy, seed=seed, recompute_ns=recompute_ns)
    pieces = find_pieces(trace)
    known = pieces.known()
    found = replayer.runs(capacity)
    best = list(map(max, found, opt_runs(pieces.following(), pieces.lengths, capacity)))
    tails = tally.partial_tails(known)
    hits, with_opt, with_all = tally.hits(found), tally.hits(best), tally.hits(known)
    whole = tally.whole()
    counts = {
        name: {
            "hit": hits[name],
            "policy": with_opt[name] - hits[name],
            "capacity": with_all[name] - with_opt[name],
            "cold": whole[name] - with_all[name] - tails[name],
            "partial_tail": tails[name] + total - whole[name],
        }
        for name, total in tally.totals.items()
    }
    return MissAttribution(
        policy=replayer.name, capacity=int(capacity), basis=tally.basis, counts=counts
    )


def _share(count: int, total: int) -> float:
    return count / total if total else 0.0
