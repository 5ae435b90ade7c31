"""Is the difference between two policies more than chance? Paired, request by request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kvsim.errors import ConfigError
from kvsim.setting_checks import check_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUM_RESAMPLES: Final = 2000
"""Enough for the bounds of a 95 % interval: 50 resamples lie beyond each.

Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), section 13.3: at least
1000 for percentile intervals.
"""

CONFIDENCE: Final = 0.95
_DRAWS_AT_A_TIME: Final = 1 << 21
"""Bounds the memory of the draws: 16 MiB."""


class Interval(NamedTuple):
    """The difference of two rates and the bounds of its confidence interval.

    The bounds are NaN with fewer than two units: nothing can be resampled.
    """

    difference: float
    low: float
    high: float
    num_units: int


class Units(NamedTuple):
    """What is drawn: `of_request[i]` is request i's. `kind` is "session" or "run"."""

    kind: str
    of_request: NDArray[np.int64]


def resampling_units(num_requests: int, sessions: NDArray[np.int64] | None) -> Units:
    """Return what a bootstrap draws as one.

    Requests are not independent: the turns of a session hit the same blocks, so a policy that
    keeps one of them keeps its successors. Drawn one by one they would seem to be more evidence
    than they are. So whole sessions are drawn if the trace names them (a request without one
    stands alone), and else runs of about n**(1/3) consecutive requests, which keep what neighbours
    in time have in common.

    Parameters
    ----------
    sessions
        Number of the session of each request; None if the trace names none.

    Source: C. Field, A. Welsh, Bootstrapping clustered data, JRSS B 69 (2007), for sessions;
    E. Carlstein, The use of subseries values for estimating the variance of a general statistic
    from a stationary sequence, Ann. Statist. 14 (1986), for runs; P. Hall, J. Horowitz, B.-Y. Jing,
    On blocking rules for the bootstrap with dependent data, Biometrika 82 (1995), for n**(1/3).
    """
    if sessions is not None:
        return Units("session", np.unique(sessions, return_inverse=True)[1].astype(np.int64))
    length = max(1, round(num_requests ** (1 / 3)))
    return Units("run", np.arange(num_requests, dtype=np.int64) // length)


def paired_interval(
    hits: NDArray[np.int64],
    baseline_hits: NDArray[np.int64],
    tokens: NDArray[np.int64],
    units: NDArray[np.int64],
    *,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Return by how much one policy's rate is above the baseline's, with a percentile interval.

    The rate is that of `prefix_token`: the sum of the hit tokens by the sum of the input tokens.
    Both policies have seen the same requests, so units are drawn with the hits of both, and what
    they have in common cancels. Sums are integers, so equal hits give exactly 0.

    Parameters
    ----------
    hits, baseline_hits, tokens
        For each request: hit tokens under either policy, and input tokens.
    units
        Which requests are drawn together; see `resampling_units`.
    seed
        Of the draws: the same seed, the same interval.
    confidence
        Share of the resamples between the bounds.

    Raises
    ------
    ConfigError
        If `seed`, `num_resamples` or `confidence` is impossible.

    Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), section 13.3.
    """
    check_int("seed", seed, 0)
    check_int("num_resamples", num_resamples, 1)
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence must be a share between 0 and 1, not {confidence!r}")
    names, index = np.unique(units, return_inverse=True)
    num_units = len(names)
    gains, totals = (_sums(values, index, num_units) for values in (hits - baseline_hits, tokens))
    total = int(totals.sum())
    difference = int(gains.sum()) / total if total else 0.0
    if num_units < 2 or not total:
        return Interval(difference, float("nan"), float("nan"), num_units)
    rng = np.random.default_rng(seed)
    rates = np.empty(num_resamples)
    step = max(1, _DRAWS_AT_A_TIME // num_units)
    for start in range(0, num_resamples, step):
        size = (min(step, num_resamples - start), num_units)
        drawn = rng.integers(num_units, size=size)
        drawn_total = totals[drawn].sum(axis=1)
        rates[start : start + step] = gains[drawn].sum(axis=1) / np.maximum(drawn_total, 1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(rates, (tail, 1 - tail))
    return Interval(difference, float(low), float(high), num_units)


def _sums(values: NDArray[np.int64], index: NDArray[np.intp], num_units: int) -> NDArray[np.int64]:
    sums = np.zeros(num_units, dtype=np.int64)
    np.add.at(sums, index, values)
    return sums
