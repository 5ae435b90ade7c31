"""A small model of sessions, fitted to a trace or written by hand.

A request is the first of its session or continues one. Which requests will continue it, when, how
many blocks they drop from its end and how many they add depends on its class alone: first or
continued, and how long. The model is less than 200 numbers and holds nothing of the prompts.

`kvsim.fitting.fit` makes such a model. What it keeps and loses is in docs/workloads.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from kvsim.errors import ConfigError
from kvsim.trace.specs import check_number

if TYPE_CHECKING:
    from kvsim.types import PartialRule

PURPOSE: Final = (
    "Made for LRU, the optimum, the sizes of tiers and load tests.",
    "Do not rank eviction policies on it: how hot single sessions are is lost.",
)
"""What every model, and everything drawn from one, says of itself."""

MOST_BLOCKS: Final = 1_000_000
"""No prompt of a model is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestClass:
    """Requests whose continuations are alike.

    Parameters
    ----------
    up_to_blocks
        Prompts of this length and less, down to the class before.
    continuations
        How many requests continue one of these, in the mean.
    delay_requests
        Quantiles, evenly spaced from the smallest to the largest: after how many requests.
    dropped_blocks, new_blocks
        Means of equally likely bins: what a continuation leaves out from the end of the prompt
        that it continues, and what it adds.
    """

    up_to_blocks: int
    continuations: float
    delay_requests: tuple[float, ...] = ()
    dropped_blocks: tuple[float, ...] = ()
    new_blocks: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_number("up_to_blocks", self.up_to_blocks, most=MOST_BLOCKS, whole=True)
        check_number("continuations", self.continuations, most=1_000)
        needed = 1 if self.continuations else 0
        least_delays = 2 if self.continuations else 0
        _check_list("delay_requests", self.delay_requests, num=least_delays, most=1e9)
        _check_list("dropped_blocks", self.dropped_blocks, num=needed, most=MOST_BLOCKS)
        _check_list("new_blocks", self.new_blocks, num=needed, most=MOST_BLOCKS)
        if list(self.delay_requests) != sorted(self.delay_requests):
            raise ConfigError("delay_requests must not fall: they are quantiles")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """A beginning that many sessions have in common, such as a system prompt.

    Parameters
    ----------
    num_blocks
        Its length, without what it extends.
    share
        Of the sessions, how many begin with it and with none that extends it: 0 to 1.
    extends
        Position in the list of another one, which it begins with; None: it stands alone.
    """

    num_blocks: int
    share: float
    extends: int | None = None

    def __post_init__(self) -> None:
        check_number("num_blocks", self.num_blocks, least=1, most=MOST_BLOCKS, whole=True)
        check_number("share", self.share, most=1)
        if self.extends is not None:
            check_number("extends", self.extends, whole=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """How far workloads drawn from a model are from its source, on seeds not used in the fit.

    Parameters
    ----------
    seeds
        Those that were drawn.
    capacities
        In blocks.
    source_rates, model_rates
        LRU hit rates by block at each capacity; of the model the mean of the seeds.
    curve_error, worst_curve_error
        Mean absolute difference of the two curves: the mean of the seeds, and the worst seed.
    largest_error
        The largest difference of any seed at any capacity.
    source_infinite, model_infinite
        Hit rates of a cache that never evicts.
    reuse_distance
        Largest difference between the cumulative distributions of the reuse distances (0 to 1),
        the mean of the seeds.
    references
        Block references of the model over those of the source.
    """

    seeds: tuple[int, ...]
    capacities: tuple[int, ...]
    source_rates: tuple[float, ...]
    model_rates: tuple[float, ...]
    curve_error: float
    worst_curve_error: float
    largest_error: float
    source_infinite: float
    model_infinite: float
    reuse_distance: float
    references: float

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not isinstance(value, tuple):
                check_number(each.name, value, most=1_000)
                continue
            whole = each.name in ("seeds", "capacities")
            _check_list(each.name, value, num=1, most=1e15, whole=whole)
        if not len(self.capacities) == len(self.source_rates) == len(self.model_rates):
            raise ConfigError("source_rates and model_rates must have one number a capacity")

    def lines(self) -> list[str]:
        """Return it as sentences for people."""
        return [
            f"LRU curve at {len(self.capacities)} capacities from {self.capacities[0]:,} to"
            f" {self.capacities[-1]:,} blocks: mean absolute error {self.curve_error:.4f}, worst"
            f" of {len(self.seeds)} seeds {self.worst_curve_error:.4f}, largest at one capacity"
            f" {self.largest_error:.4f}",
            f"infinite hit rate: {self.source_infinite:.4f} in the source,"
            f" {self.model_infinite:.4f} in the model",
            "reuse distances: cumulative distributions differ by"
            f" {self.reuse_distance:.4f} at most",
            f"block references: {self.references:.3f} of the source's",
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionModel:
    """A workload as a few numbers.

    Parameters
    ----------
    num_requests
        Length of a trace drawn from it, if none is asked for: the source's.
    block_size, partial
        As in `kvsim.trace.Trace`.
    longest_blocks
        No prompt is longer.
    first_blocks
        Means of equally likely bins: length of a first prompt without its shared prefix.
    output_tokens, gap_ms
        Means of equally likely bins: length of an answer, time from one arrival to the next. All
        are drawn independently.
    first, continued
        The classes of requests that begin a session and of those that continue one, the shortest
        prompts first; the last of each reaches to `longest_blocks`.
    prefixes
        What sessions have in common. Their shares are at most 1 together; the rest of the
        sessions share nothing.
    report
        How near it comes to its source.
    """

    num_requests: int
    block_size: int
    partial: PartialRule
    longest_blocks: int
    first_blocks: tuple[float, ...]
    output_tokens: tuple[float, ...]
    gap_ms: tuple[float, ...]
    first: tuple[RequestClass, ...]
    continued: tuple[RequestClass, ...]
    prefixes: tuple[SharedPrefix, ...] = ()
    report: FitReport | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_number("num_requests", self.num_requests, least=1, most=1e8, whole=True)
        check_number("block_size", self.block_size, least=1, most=1e6, whole=True)
        check_number("longest_blocks", self.longest_blocks, least=1, most=MOST_BLOCKS, whole=True)
        most = self.longest_blocks
        _check_list("first_blocks", self.first_blocks, num=1, most=MOST_BLOCKS)
        _check_list("output_tokens", self.output_tokens, num=1, most=1e9)
        _check_list("gap_ms", self.gap_ms, num=1, most=1e12)
        for name in ("first", "continued"):
            classes = getattr(self, name)
            if not classes:
                raise ConfigError(f"{name} must have one class at least")
            edges = [each.up_to_blocks for each in classes]
            if edges != sorted(edges) or edges[-1] != most:
                raise ConfigError(
                    f"{name} must have classes of rising up_to_blocks, the last of"
                    f" {most} (longest_blocks), not {', '.join(map(str, edges))}"
                )

        for index, each in enumerate(self.prefixes):
            if each.extends is not None and each.extends >= index:
                raise ConfigError(
                    f"extends must name one of the prefixes before number {index},"
                    f" not {each.extends}"
                )
        if sum(each.share for each in self.prefixes) > 1 + 1e-6:
            raise ConfigError("share: the shares of all prefixes must be at most 1 together")

    @property
    def num_numbers(self) -> int:
        """How many numbers the model is, without the report."""
        lists = [self.first_blocks, self.output_tokens, self.gap_ms]
        for each in (*self.first, *self.continued):
            lists += [each.delay_requests, each.dropped_blocks, each.new_blocks]
        num_classes = len(self.first) + len(self.continued)
        return (
            3 + 3 * len(self.prefixes) + sum(map(len, lists)) + 2 * num_classes
        )  # the last edges are the longest


def _check_list(
    name: str, values: tuple[float, ...], *, num: int, most: float, whole: bool = False
) -> None:
    if len(values) < num:
        raise ConfigError(f"{name} must have at least {num} numbers, not {len(values)}")
    for value in values:
        check_number(f"{name} (each)", value, most=most, whole=whole)
