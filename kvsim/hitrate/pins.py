"""Which curve may be trusted: hit rates without requests in flight against a timed simulation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from kvsim.analysis.metrics import DEFINITIONS
from kvsim.api import replay as replay_timed
from kvsim.errors import ConfigError
from kvsim.hitrate.counting import NOTHING_IN_FLIGHT, checked_capacities
from kvsim.hitrate.curves import replay_curve
from kvsim.hitrate.tables import check_definition, html_table, percent, tidy_frame
from kvsim.replay_config import ReplayConfig
from kvsim.trace import scale_time

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Unpack

    import pandas as pd
    from matplotlib.axes import Axes

    from kvsim.analysis.metrics import HitFigure
    from kvsim.hitrate.counting import Basis
    from kvsim.hitrate.replays import AnyPolicy
    from kvsim.settings import Settings
    from kvsim.trace import Trace

PIN_COLUMNS: Final = {
    "policy": "string",
    "capacity_blocks": "int64",
    "load": "float64",
    "definition": "string",
    "rate": "float64",
    "timed_rate": "float64",
    "difference_points": "float64",
    "refused": "int64",
    "preemptions": "int64",
}
"""Column of `PinEffect.frame` -> dtype. The difference is timed less instant, in points."""


_SIZES: Final = "the capacities are GPU blocks, and there is no CPU tier"
_NOT_HERE: Final = {
    "gpu_blocks": _SIZES,
    "gpu_gib": _SIZES,
    "cpu_blocks": _SIZES,
    "cpu_gib": _SIZES,
    "instant": "the comparison is with a timed simulation",
    "limit": "give a shorter trace",
}
"""Field of `ReplayConfig` -> why `pin_effect` does not take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPoint:
    """One capacity at one load: hit rates without and with requests in flight.

    Parameters
    ----------
    capacity, load
        In blocks; arrivals are this many times as fast as in the trace.
    instant, timed
        The hits by definition.
    num_refused, num_preemptions
        Requests that never fit, and how often one lost its blocks, in the timed simulation.
    """

    capacity: int
    load: float
    instant: dict[str, HitFigure]
    timed: dict[str, HitFigure]
    num_refused: int
    num_preemptions: int

    def difference_points(self, definition: str = "prefix_token") -> float:
        """Return timed less instant, in percentage points."""
        return 100 * (self.timed[definition]["rate"] - self.instant[definition]["rate"])


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PinEffect:
    """How far the curve without requests in flight is from the simulation with them.

    Parameters
    ----------
    policy
        Its name.
    basis
        The trace, the warm-up and the partial rule.
    points
        One a capacity and load.
    """

    policy: str
    basis: Basis
    points: tuple[PinPoint, ...]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a capacity, load and definition."""
        rows = [
            (
                self.policy,
                point.capacity,
                point.load,
                name,
                point.instant[name]["rate"],
                point.timed[name]["rate"],
                point.difference_points(name),
                point.num_refused,
                point.num_preemptions,
            )
            for point in self.points
            for name in DEFINITIONS
        ]
        return tidy_frame(PIN_COLUMNS, rows, self._attrs())

    def largest_points(self, definition: str = "prefix_token") -> float:
        """Return the largest difference, in percentage points, whichever way it goes."""
        check_definition(definition)
        return max(abs(point.difference_points(definition)) for point in self.points)

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON values."""
        points = [
            {
                "capacity": point.capacity,
                "load": point.load,
                "hits": point.instant,
                "timed_hits": point.timed,
                "refused": point.num_refused,
                "preemptions": point.num_preemptions,
            }
            for point in self.points
        ]
        return self._attrs() | {"points": points}

    def plot(self, ax: Axes | None = None, *, definition: str = "prefix_token") -> Axes:
        """Draw the difference in points over the capacity, a line for each load."""
        from kvsim.hitrate.plots import plot_pin_effect

        check_definition(definition)
        return plot_pin_effect(self, definition=definition, ax=ax)

    @property
    def title(self) -> str:
        """One line that says what this is."""
        return f"{self.policy} on {self.basis.trace}: timed simulation less {NOTHING_IN_FLIGHT}"

    def __repr__(self) -> str:
        return f"<PinEffect {self.title}, at most {self.largest_points():.2f} points>"

    def _repr_html_(self) -> str:
        rows = [
            (
                f"{point.capacity:,}",
                f"{point.load:g} x",
                percent(point.instant["prefix_token"]["rate"]),
                percent(point.timed["prefix_token"]["rate"]),
                f"{point.difference_points():+.2f}",
            )
            for point in self.points
        ]
        head = ("blocks", "load", "none in flight", "timed", "points")
        return html_table(self.title, head, rows, ["rates: prefix_token", self.basis.caption])

    def _attrs(self) -> dict[str, object]:
        return self.basis.attrs() | {"policy": self.policy}


def pin_effect(
    trace: Trace,
    capacities: Iterable[int],
    *,
    loads: Iterable[float] = (1.0,),
    policy: AnyPolicy = "lru",
    **settings: Unpack[Settings],
) -> PinEffect:
    """Compare hit rates without requests in flight with those of a timed simulation.

    Requests in flight pin their blocks, so the cache has less to choose from, and hits come in
    another order. No rule says beforehand how much that changes: where the difference matters,
    simulate. Blocks of output tokens are not cached here unless `keep_outputs=True`, so that the
    blocks held by requests make the difference and nothing else does.

    Parameters
    ----------
    trace
        What is asked for.
    capacities
        GPU blocks; there is no CPU tier.
    loads
        Arrivals this many times as fast as in the trace.
    policy
        A name, or a class or function that takes a `PolicyContext`.
    settings
        Other fields of `kvsim.ReplayConfig`: model, hardware, token_budget, warmup, seed, ...

    Raises
    ------
    UserError
        If an argument cannot be used, or no request fits.
    """
    for name, why in _NOT_HERE.items():
        if name in settings:
            raise ConfigError(f"{name} cannot be set here: {why}")
    chosen = checked_capacities(capacities)
    speeds = list(loads)
    if not speeds:
        raise ConfigError("loads must have at least one number")
    base = ReplayConfig(keep_outputs=False).with_settings(settings)
    curve = replay_curve(trace, policy, chosen, warmup=base.warmup, seed=base.seed)
    points: list[PinPoint] = []
    for load in speeds:
        fast = scale_time(trace, speed=load)
        for capacity in chosen:
            timed = replay_timed(fast, policy=policy, config=base, gpu_blocks=capacity)
            points.append(
                PinPoint(
                    capacity=capacity,
                    load=float(load),
                    instant=curve.at(capacity),
                    timed=timed.hits,
                    num_refused=timed.num_requests["refused"],
                    num_preemptions=timed.num_preemptions,
                )
            )
    return PinEffect(policy=curve.policy, basis=curve.basis, points=tuple(points))
