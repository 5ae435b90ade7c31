"""How far what is drawn from a model is from the trace that it was fitted to."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kvsim.errors import ConfigError
from kvsim.hitrate import lru_curve
from kvsim.trace.synthesis import FitReport, synthesize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.hitrate import HitCurve
    from kvsim.trace import Trace
    from kvsim.trace.synthesis import SessionModel

NUM_CAPACITIES: Final = 20
_DECADES: Final = 3
_DIGITS: Final = 5


class Difference(NamedTuple):
    """One draw minus the source.

    Parameters
    ----------
    rates
        LRU hit rates of the draw at each capacity.
    curve
        The same minus those of the source.
    infinite
        The difference of the hit rates of a cache that never evicts.
    reuse_distance
        The largest difference of the cumulative distributions of the reuse distances.
    references
        Block references of the draw over those of the source.
    """

    rates: list[float]
    curve: list[float]
    infinite: float
    reuse_distance: float
    references: float

    @property
    def curve_error(self) -> float:
        """Mean absolute difference of the curves."""
        return fmean(map(abs, self.curve))


class Source:
    """What a model is to reproduce: the exact LRU curve of a trace, by block.

    Parameters
    ----------
    trace
        Where it comes from; not kept.
    capacities
        In blocks, where curves are compared; None: `default_capacities`.

    Raises
    ------
    UserError
        If the trace has nothing to hit, or a capacity is impossible.
    """

    def __init__(self, trace: Trace, capacities: Sequence[int] | None = None) -> None:
        self.capacities = list(default_capacities(trace) if capacities is None else capacities)
        curve = lru_curve(trace, self.capacities)
        self.rates = curve.rates("block")
        self.infinite = _infinite(curve)
        self._reuse = _reuse(curve)
        self._num_references = curve.infinite["block"].total

    def compare(self, model: SessionModel, seed: int) -> Difference:
        """Return how far the workload that `seed` draws is from the source."""
        curve = lru_curve(synthesize(model, seed=seed), self.capacities)
        rates = curve.rates("block")
        return Difference(
            rates=rates,
            curve=[drawn - own for drawn, own in zip(rates, self.rates, strict=True)],
            infinite=_infinite(curve) - self.infinite,
            reuse_distance=_largest_difference(_reuse(curve), self._reuse),
            references=curve.infinite["block"].total / self._num_references,
        )

    def report(self, model: SessionModel, seeds: Sequence[int]) -> FitReport:
        """Return how near `model` comes on `seeds`; none of them may have been used in its fit."""
        if not seeds:
            raise ConfigError("seeds must have at least one number")
        found = [self.compare(model, seed) for seed in seeds]
        errors = [each.curve_error for each in found]
        return FitReport(
            seeds=tuple(seeds),
            capacities=tuple(self.capacities),
            source_rates=tuple(round(rate, _DIGITS) for rate in self.rates),
            model_rates=tuple(
                round(fmean(rates), _DIGITS)
                for rates in zip(*(each.rates for each in found), strict=True)
            ),
            curve_error=round(fmean(errors), _DIGITS),
            worst_curve_error=round(max(errors), _DIGITS),
            largest_error=round(max(max(map(abs, each.curve)) for each in found), _DIGITS),
            source_infinite=round(self.infinite, _DIGITS),
            model_infinite=round(self.infinite + fmean(each.infinite for each in found), _DIGITS),
            reuse_distance=round(fmean(each.reuse_distance for each in found), _DIGITS),
            references=round(fmean(each.references for each in found), _DIGITS),
        )


def default_capacities(trace: Trace) -> list[int]:
    """Return 20 capacities in blocks, evenly spaced in the log over three decades.

    The largest is where the LRU curve ends: more room changes nothing. A small trace has fewer.
    """
    highest = max(lru_curve(trace).capacities)
    steps = NUM_CAPACITIES - 1
    exact = (highest * 10 ** (-_DECADES * step / steps) for step in range(steps, -1, -1))
    return sorted({max(1, round(each)) for each in exact})


def _infinite(curve: HitCurve) -> float:
    return curve.infinite["block"].figure()["rate"]


def _reuse(curve: HitCurve) -> NDArray[np.float64]:
    """Return by distance which share of the reuses is no farther; of no reuse: none is."""
    assert curve.histogram is not None
    within = curve.histogram.within
    return within / max(1, int(within[-1]))


def _largest_difference(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    size = max(len(one), len(other))
    padded = [np.pad(each, (0, size - len(each)), mode="edge") for each in (one, other)]
    return float(np.abs(padded[0] - padded[1]).max())
