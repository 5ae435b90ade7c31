"""Predicted against measured: sums, single copies, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kvsim.analysis.metrics import latency_ms, ttft_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.analysis.records import TransferRecord
    from kvsim.calibration import Calibration
    from kvsim.result import ReplayResult
    from kvsim.validation.predict import Prediction

NUM_DRAWS: Final = 1000
_BOTH_ENDS: Final = (2.5, 97.5)  # percent: 95 % lie between
_NS_PER_MS: Final = 10**6


class Pair(NamedTuple):
    """One figure, predicted and measured."""

    predicted: float
    measured: float

    @property
    def ratio(self) -> float | None:
        """Predicted over measured; None if nothing was measured."""
        return self.predicted / self.measured if self.measured else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Swaps:
    """The copies of one direction.

    Parameters
    ----------
    count, blocks
        How many copies were done, and of how many blocks.
    total_ns
        What the copies take together, each by itself on its slowest rank: those the simulator has
        decided on, and those the run has.
    same_ops
        The same, but the simulator's copies are those of the run: what is left is the error of the
        link alone, without that of the decisions.
    interval
        95 % of `same_ops.ratio` when the copies of the run are drawn again, with replacement.
    waited_ns
        From the issue of each copy to its end, together: with waits, turns and the machine's load.
    """

    count: Pair
    blocks: Pair
    total_ns: Pair
    same_ops: Pair
    interval: tuple[float, float] | None
    waited_ns: Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All figures; `errors` has (blocks, is up, predicted ns, measured ns) of every copy."""

    swap_in: Swaps
    swap_out: Swaps
    ttft_mean_ms: Pair
    ttft_p50_ms: Pair
    ttft_p99_ms: Pair
    hit_rate: Pair
    preemptions: int


def compare(
    result: ReplayResult, prediction: Prediction, calibration: Calibration, *, seed: int
) -> Comparison:
    """Compare a run on tensors with what the calibrated simulator says of it."""
    from kvsim.analysis.metrics import count_hits

    measured, predicted = result.ttft_ms or {}, latency_ms(ttft_ns(prediction.requests)) or {}
    rates = [
        count_hits(records, result.trace.block_size)["prefix_token"].figure()["rate"]
        for records in (prediction.requests, result.records)
    ]
    rng = np.random.default_rng(seed)
    swaps = [
        _swaps(
            _done(prediction.transfers, source=source),
            _done(result.transfer_records, source=source),
            calibration,
            is_in=bool(source),
            rng=rng,
        )
        for source in (1, 0)
    ]
    return Comparison(
        swap_in=swaps[0],
        swap_out=swaps[1],
        ttft_mean_ms=Pair(predicted["mean"], measured["mean"]),
        ttft_p50_ms=Pair(predicted["p50"], measured["p50"]),
        ttft_p99_ms=Pair(predicted["p99"], measured["p99"]),
        hit_rate=Pair(*rates),
        preemptions=result.num_preemptions,
    )


def bootstrap(
    predicted: Sequence[float], measured: Sequence[float], rng: np.random.Generator
) -> tuple[float, float] | None:
    """Return where 95 % of the ratios of the sums lie when the pairs are drawn again.

    None if there are fewer than two. Source: Efron 1979 (percentile bootstrap).
    """
    if len(measured) < 2:
        return None
    tops, bottoms = np.asarray(predicted, np.float64), np.asarray(measured, np.float64)
    ratios = np.empty(NUM_DRAWS)
    for draw in range(NUM_DRAWS):
        chosen = rng.integers(len(bottoms), size=len(bottoms))
        ratios[draw] = tops[chosen].sum() / bottoms[chosen].sum()
    low, high = np.percentile(ratios, _BOTH_ENDS)
    return float(low), float(high)


def _swaps(
    predicted: Sequence[TransferRecord],
    measured: Sequence[TransferRecord],
    calibration: Calibration,
    *,
    is_in: bool,
    rng: np.random.Generator,
) -> Swaps:
    def by_link(records: Iterable[TransferRecord]) -> list[float]:
        return [calibration.copy_ns(each.num_blocks, is_in=is_in) for each in records]

    took = [float(each.copy_ns or 0) for each in measured]
    same = by_link(measured)
    return Swaps(
        count=Pair(len(predicted), len(measured)),
        blocks=Pair(*(sum(each.num_blocks for each in some) for some in (predicted, measured))),
        total_ns=Pair(sum(by_link(predicted)), sum(took)),
        same_ops=Pair(sum(same), sum(took)),
        interval=bootstrap(same, took, rng),
        waited_ns=Pair(
            *(
                sum(each.finished_at - each.issued_at for each in some)
                for some in (predicted, measured)
            )
        ),
    )


def _done(records: Iterable[TransferRecord], *, source: int) -> list[TransferRecord]:
    return [each for each in records if each.source == source and each.outcome == "done"]
