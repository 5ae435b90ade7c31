"""Lines through measured times, by hand."""

from __future__ import annotations

import pytest

from kvsim.calibration.fit import duplex_factor, fit_line


def test_times_on_a_line_give_that_line() -> None:
    # 10 + 3 * blocks
    found = fit_line({1: [13, 13], 2: [16], 8: [34]})
    assert (found.op_ns, found.block_ns) == pytest.approx((10, 3))
    assert (found.residual, found.tail_ns) == (0, 0)
    assert found.num_samples == 4
    assert found.ns(100) == pytest.approx(310)


def test_one_bad_size_does_not_tilt_the_line() -> None:
    # 10 + 3 * blocks, but for 4 blocks, where 22 would be right. The line stays; of its five sizes
    # one is off by (44 - 22) / 44 = 0.5, so the median is 0; and the mean of what they take beyond
    # it is 22 / 5 = 4.4: somebody pays for the bad ones.
    found = fit_line({1: [13], 2: [16], 4: [44], 8: [34], 16: [58]})
    assert found.tail_ns == pytest.approx(4.4)
    assert (found.op_ns, found.block_ns) == pytest.approx((14.4, 3))
    assert found.residual == 0


def test_a_bad_sample_of_a_size_counts_in_the_mean_only() -> None:
    # The medians are 10 and 20: 0 + 10 * blocks. One of six takes 30 more: 5 in the mean.
    found = fit_line({1: [10, 10, 40], 2: [20, 20, 20]})
    assert (found.op_ns, found.block_ns) == pytest.approx((5, 10))


def test_no_part_of_a_line_is_negative() -> None:
    # The straight line through both would be -2 + 3 * blocks: from 0 it is, through one of them.
    # 1 * blocks misses 4 by 2 of 4; 2 * blocks misses 1 by 1 of 1; both constants miss more.
    found = fit_line({1: [1], 2: [4]})
    assert found.block_ns == 1
    # 1 and 4 are 0 and 2 beyond it: 1 in the mean.
    assert found.op_ns == 1
    # Falling: through one of them, without a slope. 8 misses 4 by 1 of it; 4 misses 8 by a half.
    falling = fit_line({1: [8], 2: [4]})
    assert falling.block_ns == 0
    # 8 and 4 are 4 and 0 beyond 4: 2 in the mean.
    assert falling.op_ns == pytest.approx(6)


def test_a_size_counts_as_often_as_it_was_measured() -> None:
    # 10 a block is right for 1 and 2, and misses 4 by 40 of 80: 0.5 in all. 20 a block is right for
    # 4, and misses 1 by 10 of 10 and 2 by 20 of 20: 2 in all. Beyond the first is 40, in one of 3.
    found = fit_line({1: [10], 2: [20], 4: [80]})
    assert (found.op_ns, found.block_ns) == pytest.approx((40 / 3, 10))
    # Nine times 0.5 is more than 2. What is below the line in the mean cannot make it negative.
    found = fit_line({1: [10], 2: [20], 4: [80] * 9})
    assert (found.op_ns, found.block_ns) == (0, 20)
    assert found.tail_ns == pytest.approx(-30 / 11)


def test_steps_without_a_prompt_are_points_at_zero() -> None:
    found = fit_line({0: [7, 7], 10: [27]})
    assert (found.op_ns, found.block_ns) == pytest.approx((7, 2))


@pytest.mark.parametrize(
    ("together_ns", "factor"),
    [
        (100, 1.0),  # as long as one of them: a link for each
        (200, 0.5),  # as long as both: one link
        (125, 0.8),
        (90, 1.0),  # noise
        (300, 0.5),  # noise, too
    ],
)
def test_the_duplex_factor_is_what_of_the_rate_is_left(together_ns: float, factor: float) -> None:
    assert duplex_factor([120, 80], together_ns) == pytest.approx(factor)
