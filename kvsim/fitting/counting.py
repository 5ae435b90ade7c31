"""From lists of what was seen to the few numbers that stand for them."""

from __future__ import annotations

from bisect import bisect_left
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from kvsim.trace.synthesis.session_model import RequestClass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NUM_LENGTHS: Final = 3
_DIGITS: Final = 2
_NOTHING: Final = 1e-9


class Step(NamedTuple):
    """A request that continues another: after how many requests, and what it changes, in blocks.

    `weight` is how many such steps this one stands for.
    """

    delay: int
    dropped: int
    new: int
    weight: float


Member: TypeAlias = tuple[int, list[Step]]
"""A request: its blocks, and the steps that continue it."""


class Detail(NamedTuple):
    """How many numbers stand for each distribution."""

    delays: int
    dropped: int
    new: int
    first: int


def classes_of(members: Sequence[Member], detail: Detail, longest: int) -> tuple[RequestClass, ...]:
    """Return classes by length; those that are continued are spread evenly over them."""
    lengths = sorted(length for length, steps in members if steps)
    quantiles = {
        lengths[len(lengths) * k // _NUM_LENGTHS] for k in range(1, _NUM_LENGTHS) if lengths
    }
    edges = sorted(quantiles - {longest})
    groups: list[list[Member]] = [[] for _ in range(len(edges) + 1)]
    for member in members:
        groups[bisect_left(edges, member[0])].append(member)
    return tuple(
        class_of(group, detail, edge) for group, edge in zip(groups, [*edges, longest], strict=True)
    )


def class_of(members: Sequence[Member], detail: Detail, edge: int) -> RequestClass:
    """Return the class of requests of up to `edge` blocks."""
    steps = [step for _, steps in members for step in steps]
    if not steps:
        return RequestClass(up_to_blocks=edge, continuations=0)
    return RequestClass(
        up_to_blocks=edge,
        continuations=round(sum(step.weight for step in steps) / len(members), 4),
        delay_requests=quantiles([(step.delay, step.weight) for step in steps], detail.delays),
        dropped_blocks=bin_means([step.dropped for step in steps], detail.dropped),
        new_blocks=bin_means([step.new for step in steps], detail.new),
    )


def bin_means(values: Iterable[float], num_bins: int) -> tuple[float, ...]:
    """Return the means of equal shares of the values, the smallest first: the total is kept.

    Of fewer values than bins, some stand in several.
    """
    ordered = sorted(values)
    num = len(ordered)
    means = []
    for k in range(num_bins):
        low = num * k // num_bins
        high = max(low + 1, num * (k + 1) // num_bins)
        means.append(round(fmean(ordered[low:high]), _DIGITS))
    return tuple(means)


def quantiles(weighted: Iterable[tuple[float, float]], num: int) -> tuple[float, ...]:
    """Return the smallest value, the largest, and those between at equal steps of weight."""
    ordered = sorted(weighted)
    total = sum(weight for _, weight in ordered)
    found: list[float] = []
    seen = 0.0
    for value, weight in ordered:
        seen += weight
        while len(found) < num and seen >= total * (len(found) / (num - 1) - _NOTHING):
            found.append(float(value))
    return tuple(found)
