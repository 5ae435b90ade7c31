"""Policies side by side at one capacity, as shares of the optimum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from kvsim.analysis.metrics import DEFINITIONS
from kvsim.errors import ConfigError
from kvsim.hitrate.curves import opt_curve, replay_curve
from kvsim.hitrate.tables import check_definition, html_table, percent, tidy_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pandas as pd
    from matplotlib.axes import Axes

    from kvsim.analysis.metrics import HitFigure
    from kvsim.hitrate.counting import Basis
    from kvsim.hitrate.replays import AnyPolicy
    from kvsim.trace import Trace

LEAGUE_COLUMNS: Final = {
    "policy": "string",
    "capacity_blocks": "int64",
    "definition": "string",
    "hits": "int64",
    "total": "int64",
    "rate": "float64",
    "share_of_opt": "float64",
}
"""Column of `PolicyLeague.frame` -> dtype."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PolicyLeague:
    """Hits of several policies at one capacity, and of the optimum, none in flight.

    Parameters
    ----------
    capacity
        In blocks.
    basis
        The trace, the warm-up and the partial rule.
    hits
        By policy, then by definition; in the order in which they were named.
    opt, infinite
        The optimum ("resident"), and a cache that never evicts.
    """

    capacity: int
    basis: Basis
    hits: Mapping[str, Mapping[str, HitFigure]]
    opt: Mapping[str, HitFigure]
    infinite: Mapping[str, HitFigure]

    def share_of_opt(self, policy: str, definition: str = "prefix_token") -> float:
        """Return the hits of a policy as a share of the optimum's; 1.0 if that has none."""
        check_definition(definition)
        best = self.opt[definition]["hits"]
        return self.hits[policy][definition]["hits"] / best if best else 1.0

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a policy and definition, the optimum last."""
        rows = [
            (
                policy,
                self.capacity,
                name,
                each["hits"],
                each["total"],
                each["rate"],
                each["hits"] / self.opt[name]["hits"] if self.opt[name]["hits"] else 1.0,
            )
            for policy, hits in [*self.hits.items(), ("opt", self.opt)]
            for name, each in hits.items()
        ]
        return tidy_frame(LEAGUE_COLUMNS, rows, self._attrs())

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON values."""
        policies = {policy: dict(hits) for policy, hits in self.hits.items()}
        return self._attrs() | {"policies": policies, "opt": dict(self.opt)}

    def plot(self, ax: Axes | None = None, *, definition: str = "prefix_token") -> Axes:
        """Draw a bar for each policy, as a share of the optimum."""
        from kvsim.hitrate.plots import plot_league

        check_definition(definition)
        return plot_league(self, definition=definition, ax=ax)

    @property
    def title(self) -> str:
        """One line that says what this is."""
        return f"policies on {self.basis.trace}, {self.capacity:,} blocks"

    def __repr__(self) -> str:
        return f"<PolicyLeague {self.title}: {', '.join(self.hits)}>"

    def _repr_html_(self) -> str:
        head = ("", *DEFINITIONS, "of the optimum (prefix_token)")
        rows = [
            (policy, *(percent(each["rate"]) for each in hits.values()), self._share_text(policy))
            for policy, hits in self.hits.items()
        ]
        rows.append(("opt", *(percent(each["rate"]) for each in self.opt.values()), "100.0%"))
        return html_table(self.title, head, rows, [self.basis.caption])

    def _share_text(self, policy: str) -> str:
        return f"{self.share_of_opt(policy):.1%}"

    def _attrs(self) -> dict[str, object]:
        return self.basis.attrs() | {
            "capacity_blocks": self.capacity,
            "infinite": dict(self.infinite),
        }


def policy_league(
    trace: Trace,
    policies: Iterable[AnyPolicy],
    capacity: int,
    *,
    warmup: float = 0.0,
    seed: int = 0,
) -> PolicyLeague:
    """Replay several policies at one capacity and compare them with the optimum.

    Parameters
    ----------
    policies
        Names, classes, functions or objects, as for `kvsim.hitrate.replay`.
    trace, capacity, warmup, seed
        As for `kvsim.hitrate.replay`.

    Raises
    ------
    UserError
        As `kvsim.hitrate.replay`, or if there is no policy, or two have one name.
    """
    opt = opt_curve(trace, [capacity], warmup=warmup)
    hits: dict[str, Mapping[str, HitFigure]] = {}
    for policy in policies:
        curve = replay_curve(trace, policy, [capacity], warmup=warmup, seed=seed)
        if curve.policy in hits:
            raise ConfigError(f"policies must have names of their own: two are {curve.policy!r}")
        hits[curve.policy] = curve.at(capacity)
    if not hits:
        raise ConfigError("policies must have at least one policy")
    return PolicyLeague(
        capacity=int(capacity),
        basis=opt.basis,
        hits=hits,
        opt=opt.at(capacity),
        infinite={name: each.figure() for name, each in opt.infinite.items()},
    )
