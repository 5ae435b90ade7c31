from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.fitting.counting import Detail, Step, bin_means, classes_of, quantiles

DETAIL = Detail(delays=3, dropped=2, new=2, first=4)


def test_bin_means_by_hand() -> None:
    # sorted 1 2 3 | 5 6 10
    assert bin_means([10, 2, 1, 6, 5, 3], 2) == (2.0, 7.0)
    # fewer values than bins: each bin has one
    assert bin_means([4, 8], 4) == (4.0, 4.0, 8.0, 8.0)
    assert bin_means([3], 3) == (3.0, 3.0, 3.0)


@given(st.lists(st.integers(0, 1_000), min_size=1).map(lambda each: each * 4))
def test_equal_bins_keep_the_total(values: list[int]) -> None:
    assert sum(bin_means(values, 4)) / 4 == pytest.approx(sum(values) / len(values), abs=0.01)


def test_weighted_quantiles_by_hand() -> None:
    # weights 1, 2, 1 of 4: at half of the weight stands 20
    assert quantiles([(30, 1), (10, 1), (20, 2)], 3) == (10.0, 20.0, 30.0)
    # 40 has half of the weight, so it is the median too
    assert quantiles([(10, 1), (40, 1.5), (20, 0.5)], 3) == (10.0, 20.0, 40.0)
    assert quantiles([(5, 1)], 3) == (5.0, 5.0, 5.0)


def test_classes_split_what_is_continued_evenly() -> None:
    step = Step(delay=2, dropped=1, new=3, weight=1.5)
    members = [(length, [step]) for length in (1, 2, 3, 4, 5, 6)] + [(2, []), (9, [])]
    found = classes_of(members, DETAIL, 9)
    # a third of 1..6 each: edges are the values at positions 2 and 4, which are 3 and 5
    assert [each.up_to_blocks for each in found] == [3, 5, 9]
    # up to 3: four requests, three of them continued, each for 1.5; 4 and 5: both; 6 of 6 and 9
    assert [each.continuations for each in found] == [1.125, 1.5, 0.75]
    assert found[0].delay_requests == (2.0, 2.0, 2.0)
    assert (found[0].dropped_blocks, found[0].new_blocks) == ((1.0, 1.0), (3.0, 3.0))


def test_a_class_that_is_never_continued_has_no_lists() -> None:
    (only,) = classes_of([(3, []), (4, [])], DETAIL, 4)
    assert (only.up_to_blocks, only.continuations, only.new_blocks) == (4, 0, ())
    (none,) = classes_of([], DETAIL, 4)
    assert none == only
