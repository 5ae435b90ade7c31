from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import ConfigError
from kvsim.sweeping.compare import paired_interval, resampling_units


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


REQUESTS = st.lists(
    st.tuples(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 5)),
    min_size=1,
    max_size=60,
)
"""Input tokens, hit tokens, session."""


@given(requests=REQUESTS, seed=st.integers(0, 100))
def test_equal_policies_differ_by_exactly_nothing(
    requests: list[tuple[int, int, int]], seed: int
) -> None:
    tokens, hits, sessions = map(ints, map(list, zip(*requests, strict=True)))
    found = paired_interval(hits, hits, tokens, sessions, seed=seed, num_resamples=50)
    assert found.difference == 0.0
    if found.num_units > 1:
        assert (found.low, found.high) == (0.0, 0.0)


@given(requests=REQUESTS, share=st.integers(-8, 8), seed=st.integers(0, 100))
def test_a_constant_shift_is_found_with_no_uncertainty(
    requests: list[tuple[int, int, int]], share: int, seed: int
) -> None:
    # Each request hits share / 8 of its tokens more, so each resample does.
    tokens, hits, sessions = map(ints, map(list, zip(*requests, strict=True)))
    tokens = tokens * 8
    found = paired_interval(
        hits + tokens // 8 * share, hits, tokens, sessions, seed=seed, num_resamples=50
    )
    assert found.difference == share / 8
    if found.num_units > 1:
        assert (found.low, found.high) == (share / 8, share / 8)


@given(requests=REQUESTS, seed=st.integers(0, 100))
def test_the_other_way_round_is_the_mirror_image(
    requests: list[tuple[int, int, int]], seed: int
) -> None:
    tokens, hits, sessions = map(ints, map(list, zip(*requests, strict=True)))
    other = hits[::-1].copy()
    one = paired_interval(hits, other, tokens, sessions, seed=seed, num_resamples=50)
    two = paired_interval(other, hits, tokens, sessions, seed=seed, num_resamples=50)
    assert one.difference == -two.difference
    if one.num_units > 1:
        assert np.allclose([one.low, one.high], [-two.high, -two.low], rtol=1e-9)
        assert one.low <= one.high


def test_the_difference_is_of_sums_and_not_of_rates() -> None:
    # (10 + 0 - 4 - 0) / (10 + 90); the mean of the two rates' differences would be .3.
    found = paired_interval(ints([10, 0]), ints([4, 0]), ints([10, 90]), ints([0, 1]))
    assert found.difference == 0.06
    # Drawn are both requests, or one of them twice: 6 / 100, 12 / 20 or 0.
    assert (found.low, found.high) == (0.0, 0.6)


def test_the_seed_decides() -> None:
    rng = np.random.default_rng(1)
    tokens, hits = ints([100] * 200), rng.integers(100, size=200)
    units = np.arange(200)
    first, again, other = (
        paired_interval(hits, hits * 0, tokens, units, seed=seed) for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other
    assert (first.difference, first.num_units) == (other.difference, 200)


def test_one_unit_has_no_interval() -> None:
    found = paired_interval(ints([5, 5]), ints([0, 0]), ints([10, 10]), ints([3, 3]))
    assert (found.difference, found.num_units) == (0.5, 1)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_no_tokens_no_difference() -> None:
    nothing = ints([])
    found = paired_interval(nothing, nothing, nothing, nothing)
    assert (found.difference, found.num_units) == (0.0, 0)


def test_many_draws_are_made_in_parts_that_do_not_show() -> None:
    # 3,000 units make parts of 699 resamples. The rate is 0 or 1 with equal chance for each
    # request, so the standard error is .5 / sqrt(3000) = .0091 and the interval +-.0179.
    hits = np.random.default_rng(2).integers(2, size=3000)
    found = paired_interval(hits, hits * 0, np.ones_like(hits), np.arange(3000))
    assert found.high - found.low == pytest.approx(0.0358, rel=0.06)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence": 1.0}, "confidence must be a share between 0 and 1, not 1.0"),
        ({"num_resamples": 0}, "num_resamples must be an integer of at least 1, not 0"),
        ({"seed": -1}, "seed must be an integer of at least 0, not -1"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, float], message: str) -> None:
    one = ints([1])
    with pytest.raises(ConfigError, match=message):
        paired_interval(one, one, one, one, **options)  # type: ignore[arg-type]


def share_covered(*, by_session: bool) -> float:
    """Return how often the interval holds the true difference, .1, in 200 made-up traces.

    A trace has 60 sessions of 10 requests of 100 tokens. A session's requests gain the same:
    10 tokens and a normal deviation of 30 that is the session's.
    """
    rng = np.random.default_rng(3)
    num_covered = 0
    for _ in range(200):
        gains = np.repeat(np.rint(rng.normal(10, 30, size=60)).astype(np.int64), 10)
        tokens = np.full(600, 100)
        units = np.repeat(np.arange(60), 10) if by_session else np.arange(600)
        found = paired_interval(gains, gains * 0, tokens, units, num_resamples=300)
        num_covered += found.low <= 0.1 <= found.high
    return num_covered / 200


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    # .95 within three standard errors of 200 trials, sqrt(.95 * .05 / 200) = .0154; percentile
    # intervals of 60 units are a little narrow.
    assert 0.90 <= share_covered(by_session=True) <= 0.996


def test_requests_drawn_one_by_one_would_promise_too_much() -> None:
    # The true interval is sqrt(10) times as wide: +-1.96 / 3.16 standard errors hold 46 %.
    assert share_covered(by_session=False) < 0.65


def test_whole_sessions_are_drawn_where_there_are_any() -> None:
    units = resampling_units(5, ints([7, -2, 7, 9, -5]))
    assert (units.kind, units.of_request.tolist()) == ("session", [2, 1, 2, 3, 0])


def test_runs_of_requests_are_drawn_where_there_are_no_sessions() -> None:
    # The cube root of 27 is 3; 10 requests: 2.15.
    assert resampling_units(27, None).of_request.tolist() == [i // 3 for i in range(27)]
    assert resampling_units(10, None).of_request.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert (resampling_units(0, None).kind, len(resampling_units(0, None).of_request)) == ("run", 0)
