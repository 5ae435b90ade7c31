"""A straight line through measured times that a few bad samples do not tilt."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Point = tuple[int, float, int]  # blocks, median, samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """`op_ns + block_ns * blocks`: what a copy takes alone.

    Parameters
    ----------
    op_ns, block_ns
        Of each op, and of each block of it, on the slowest rank.
    residual
        Median over the sizes of |measured - line| / measured.
    tail_ns
        Mean over the samples of what they took beyond the line through the medians. It is a part
        of `op_ns`: sums are made of means, not of medians.
    num_samples
        Ops that were measured.
    """

    op_ns: float
    block_ns: float
    residual: float
    tail_ns: float
    num_samples: int

    def ns(self, num_blocks: int) -> float:
        """Return what a copy of `num_blocks` blocks takes."""
        return self.op_ns + self.block_ns * num_blocks


def fit_line(samples: Mapping[int, Sequence[float]]) -> Line:
    """Return the line for the times (ns) that were measured at each number of blocks.

    The line has the least sum of relative deviations from the *median* at each size, each counted
    as often as it was measured, and neither part below 0; among such lines one goes through two of
    the points, so all pairs are tried. Then the whole line is raised, or lowered, by `tail_ns`.

    Source: Bloomfield and Steiger 1983 (Least Absolute Deviations), section 1.3 (a best line
    passes through two points).
    """
    points = [(blocks, median(times), len(times)) for blocks, times in sorted(samples.items())]
    op_ns, block_ns = min(_lines(points), key=lambda line: (_deviation(line, points), line))
    tail_ns = fmean(
        at - op_ns - block_ns * blocks for blocks, times in samples.items() for at in times
    )
    return Line(
        op_ns=max(0.0, op_ns + tail_ns),
        block_ns=block_ns,
        residual=median(abs(at - op_ns - block_ns * x) / at for x, at, _ in points),
        tail_ns=tail_ns,
        num_samples=sum(map(len, samples.values())),
    )


def duplex_factor(alone_ns: Sequence[float], together_ns: float) -> float:
    """Return how much of their rate two directions keep when both are busy, 0.5 to 1.

    Parameters
    ----------
    alone_ns
        What a copy takes alone, in each direction.
    together_ns
        What both take at once.

    That is the mean of the two times over the time of both: 1 if both take as long as one, 0.5 if
    they go one after the other. What lies outside is noise, and cut off.
    """
    return min(1.0, max(0.5, fmean(alone_ns) / together_ns))


def _lines(points: Sequence[Point]) -> Iterable[tuple[float, float]]:
    """Yield (value at 0, slope) of every line that may be the best."""
    for x, y, _ in points:
        yield y, 0.0
        if x:
            yield 0.0, y / x
    for (x, y, _), (other_x, other_y, _) in combinations(points, 2):
        slope = (other_y - y) / (other_x - x)
        if slope > 0 and y >= slope * x:
            yield y - slope * x, slope


def _deviation(line: tuple[float, float], points: Sequence[Point]) -> float:
    op_ns, block_ns = line
    return sum(num * abs(at - op_ns - block_ns * x) / at for x, at, num in points)
