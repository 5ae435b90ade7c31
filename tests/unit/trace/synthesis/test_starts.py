from __future__ import annotations

from itertools import islice, pairwise
from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import UserError
from kvsim.trace.synthesis import Bursts, Diurnal, Poisson, Starts, parse_starts


def times(spec: str, num: int, seed: int = 0) -> list[int]:
    return list(islice(parse_starts(spec).times_ms(Random(seed)), num))


def test_the_quiet_between_bursts_makes_the_mean_gap_right() -> None:
    # 5 arrivals take 5 gaps of 2 s in the mean: 10 s; 4 of them are 0.5 s, so the fifth is 8 s
    assert Bursts(gap_s=2, size=5, within_s=0.5).quiet_s == 8


def test_bursts_have_the_mean_and_the_spread_that_their_numbers_say() -> None:
    at = times("bursts:gap_s=2,size=5,within_s=0.5", 40_000)
    gaps = [after - before for before, after in pairwise(at)]
    # E[g] = .8 * .5 + .2 * 8 = 2 s; E[g^2] = 2 (.8 * .25 + .2 * 64) = 26; sd = sqrt(22) = 4.69
    assert fmean(gaps) == pytest.approx(2_000, rel=0.05)
    assert pstdev(gaps) == pytest.approx(4_690, rel=0.05)


def test_a_poisson_process_has_burstiness_one() -> None:
    at = times("poisson:gap_s=2", 40_000)
    gaps = [after - before for before, after in pairwise(at)]
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1, rel=0.03)


def test_by_half_a_period_more_load_has_come_than_time() -> None:
    day = Diurnal(swing=0.5, period_s=2.0)
    # t + swing * period / (2 pi) * (1 - cos(2 pi t / period)), in ms: at 1000 ms
    # 1000 + .5 * 2000 / 6.2832 * 2 = 1318.3; a whole period is even again
    assert day.load_ms(1_000) == pytest.approx(1318.31, abs=0.01)
    assert day.load_ms(2_000) == pytest.approx(2_000)
    assert day.when_ms(1_318) == 1_000
    assert day.when_ms(0) == 0


def test_there_are_three_times_as_many_at_the_peak_as_in_the_trough() -> None:
    at = times("poisson:gap_s=0.01+diurnal:swing=0.5,period_s=100", 9_000)
    # a tenth of the period about the peak (25 s) and the trough (75 s): means of the sine there
    # are 1 +- .5 * sin(pi/10) / (pi/10) = 1.492 and .508
    peak = sum(20_000 <= each < 30_000 for each in at)
    trough = sum(70_000 <= each < 80_000 for each in at)
    assert peak == pytest.approx(1_492, rel=0.1)
    assert trough == pytest.approx(508, rel=0.15)


@given(
    gap_s=st.floats(0, 100),
    size=st.floats(1, 50),
    ratio=st.floats(0, 1),
    swing=st.floats(0, 1),
    period_s=st.floats(1e-3, 1e6),
    seed=st.integers(0, 99),
)
def test_times_begin_at_zero_and_never_fall(
    gap_s: float, size: float, ratio: float, swing: float, period_s: float, seed: int
) -> None:
    starts = Starts(
        process=Bursts(gap_s=gap_s, size=size, within_s=gap_s * ratio),
        diurnal=Diurnal(swing=swing, period_s=period_s),
    )
    found = list(islice(starts.times_ms(Random(seed)), 20))
    assert found[0] == 0
    assert found == sorted(found)
    assert parse_starts(starts.spec) == starts


def test_a_diurnal_load_alone_is_of_a_poisson_process() -> None:
    assert parse_starts("diurnal:swing=0.2") == Starts(
        process=Poisson(), diurnal=Diurnal(swing=0.2)
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("uniform", "unknown arrival model 'uniform'"),
        ("poisson:gap_s=-1", "gap_s of poisson must be a number of at least 0"),
        ("poisson:gap=1", "unknown number of arrival model poisson 'gap'"),
        ("bursts:size=0.5", "size of bursts must be a number of at least 1"),
        ("bursts:gap_s=1,within_s=2", r"within_s of bursts must be at most gap_s \(1.0\), not 2.0"),
        ("diurnal:swing=1.5", "swing of diurnal must .* at most 1, not 1.5"),
        ("poisson+bursts", "arrivals must be one of poisson and bursts"),
        ("diurnal+diurnal", "and one diurnal at most, not 'diurnal.diurnal'"),
        ("", "unknown arrival model ''"),
    ],
)
def test_arrivals_that_cannot_be_are_refused(text: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        parse_starts(text)
