"""From leading runs to hits by every definition, and what the figures rest on."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Final

from kvsim.analysis.metrics import DEFINITIONS, HitCounts, num_warmup
from kvsim.errors import ConfigError
from kvsim.setting_checks import LARGEST_SIZE
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NOTHING_IN_FLIGHT: Final = "no requests in flight"
"""One request after another, everything done at once: what every figure here assumes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What hit rates rest on: the trace, the warm-up and the rule for partial blocks."""

    trace: str
    block_size: int
    partial: str
    num_requests: int
    warmup: float
    num_warmup_requests: int

    def attrs(self) -> dict[str, object]:
        """Return what goes with a frame, as JSON values."""
        return {
            "trace": self.trace,
            "block_size": self.block_size,
            "partial": self.partial,
            "requests": self.num_requests,
            "warmup": self.warmup,
            "warmup_requests": self.num_warmup_requests,
            "in_flight": NOTHING_IN_FLIGHT,
            "definitions": dict(DEFINITIONS),
        }

    @property
    def caption(self) -> str:
        """What a plot rests on, in one line."""
        warm = f" · first {self.warmup:.0%} of requests not counted" if self.warmup else ""
        return (
            f"trace {self.trace} · blocks of {self.block_size} tokens, partial: {self.partial}"
            f" · {NOTHING_IN_FLIGHT}{warm}"
        )


class Tally:
    """Counts the hits of a trace's requests from their leading runs, without the warm-up.

    Parameters
    ----------
    trace
        Whose requests they are.
    warmup
        Share of the requests, from the first, that is left out of all counts.

    Attributes
    ----------
    first
        The first request that counts.
    totals
        What could be hit at most, by definition: block references, or input tokens.

    Raises
    ------
    ConfigError
        If `trace` is not a loaded trace, or `warmup` is not a share.
    """

    def __init__(self, trace: Trace, warmup: float = 0.0) -> None:
        if not isinstance(trace, Trace):
            raise ConfigError(
                f"trace must be a loaded trace, not {trace!r}: kvsim.trace.open_trace loads one"
            )
        is_number = isinstance(warmup, int | float) and not isinstance(warmup, bool)
        if not is_number or not isfinite(warmup) or not 0 <= warmup < 1:
            raise ConfigError(
                f"warmup must be a share of the requests from 0 to less than 1, not {warmup!r}"
            )
        self.first = num_warmup(warmup, trace.num_requests)
        self.basis = Basis(
            trace=trace.name,
            block_size=trace.block_size,
            partial=trace.partial.value,
            num_requests=trace.num_requests,
            warmup=warmup,
            num_warmup_requests=self.first,
        )
        measured = trace.requests[self.first :]
        self._block_size = trace.block_size
        self._tokens = [request.num_input_tokens for request in measured]
        self._num_usable = [(tokens - 1) // trace.block_size for tokens in self._tokens]
        self._lengths = [len(request.block_keys) for request in measured]
        references, tokens = sum(self._lengths), sum(self._tokens)
        self.totals = dict(zip(DEFINITIONS, (references, references, tokens, tokens), strict=True))

    def hits(self, runs: Sequence[int]) -> dict[str, int]:
        """Return the hits by each definition; `runs` has every request, warm-up too."""
        return self._hits(runs[self.first :])

    def counts(self, runs: Sequence[int]) -> dict[str, HitCounts]:
        """Return the hits of a single cache and what could have been hit."""
        return self.as_counts(self.hits(runs))

    def as_counts(self, hits: dict[str, int]) -> dict[str, HitCounts]:
        """Return hits that are known with what could have been hit."""
        return {name: HitCounts(hits[name], 0, total) for name, total in self.totals.items()}

    def whole(self) -> dict[str, int]:
        """Return what would hit if every block were found."""
        return self._hits(self._lengths)

    def partial_tails(self, known: Sequence[int]) -> dict[str, int]:
        """Return the weight of last blocks that are not full and that no request had before.

        `known` has every request, as `Pieces.known()`.
        """
        block_size = self._block_size
        cut = [
            length - (length * block_size > tokens and seen < length)
            for length, tokens, seen in zip(
                self._lengths, self._tokens, known[self.first :], strict=True
            )
        ]
        without = self._hits(cut)
        return {name: hits - without[name] for name, hits in self.whole().items()}

    def _hits(self, runs: Sequence[int]) -> dict[str, int]:
        block_size = self._block_size
        blocks = sum(runs)
        tokens = sum(map(min, map(block_size.__mul__, runs), self._tokens))
        usable = block_size * sum(map(min, runs, self._num_usable))
        return dict(zip(DEFINITIONS, (blocks, blocks, tokens, usable), strict=True))


def checked_capacities(
    capacities: Iterable[int], *, name: str = "capacities", least: int = 1
) -> list[int]:
    """Return capacities in blocks, as they were given, if they can be used.

    Raises
    ------
    ConfigError
        If there is none, or one is not an integer, too small or absurdly large.
    """
    if isinstance(capacities, int | float | str):
        raise ConfigError(f"{name} must be a list of block counts, not {capacities!r}")
    checked = list(capacities)
    if not checked:
        raise ConfigError(f"{name} must have at least one block count")
    for capacity in checked:
        check_capacity(capacity, name=name, least=least)
    return [int(capacity) for capacity in checked]


def check_capacity(capacity: int, *, name: str = "capacity", least: int = 1) -> None:
    """Raise `ConfigError` unless `capacity` is a count of blocks."""
    # numpy's integers are welcome: capacities often come from an array
    is_count = hasattr(capacity, "__index__") and not isinstance(capacity, bool)
    if not is_count or not least <= capacity <= LARGEST_SIZE:
        raise ConfigError(
            f"{name} must be a whole number of blocks from {least} to {LARGEST_SIZE},"
            f" not {capacity!r}"
        )
