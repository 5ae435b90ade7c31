"""When sessions begin, or requests arrive: evenly, in bursts, and with the time of the day.

`poisson:gap_s=2`, `bursts:gap_s=2,size=8`, `diurnal:swing=0.5`, and both with a plus between them:
`bursts:gap_s=2+diurnal:swing=0.5`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import cos, pi
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from kvsim.errors import ConfigError
from kvsim.trace.specs import check_number, parse_spec, spec_of
from kvsim.trace.synthesis.prompts import exponential

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.types import Rng

_LONGEST_S: Final = 1e7


class Process(Protocol):
    """Arrivals at a load that does not change."""

    @property
    def spec(self) -> str:
        """The process on one line."""

    def times_ms(self, rng: Rng) -> Iterator[int]:
        """Yield the millisecond of each arrival, the first at 0; none is before the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Arrivals that know nothing of each other.

    Parameters
    ----------
    gap_s
        Mean seconds from one to the next (exponential). 0: all at once.
    """

    gap_s: float = 1.0  # a unit to scale from

    def __post_init__(self) -> None:
        check_number("gap_s of poisson", self.gap_s, most=_LONGEST_S)

    @property
    def spec(self) -> str:
        """See `Process`."""
        return spec_of("poisson", self)

    def times_ms(self, rng: Rng) -> Iterator[int]:
        """See `Process`."""
        at_ms = 0
        while True:
            yield at_ms
            at_ms += exponential(rng, self.gap_s * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """Groups of arrivals close together, then quiet.

    Parameters
    ----------
    gap_s
        Mean seconds from one arrival to the next, over bursts and quiet.
    size
        Mean arrivals of a burst (geometric).
    within_s
        Mean seconds from one to the next within a burst (exponential). The quiet between bursts is
        exponential too, and as long as `gap_s` demands.
    """

    gap_s: float = 1.0
    size: float = 10.0  # chosen so that bursts show in a plot; fitted to nothing
    within_s: float = 0.05

    def __post_init__(self) -> None:
        check_number("gap_s of bursts", self.gap_s, most=_LONGEST_S)
        check_number("size of bursts", self.size, least=1, most=1e6)
        check_number("within_s of bursts", self.within_s, most=_LONGEST_S)
        if self.within_s > self.gap_s:
            raise ConfigError(
                f"within_s of bursts must be at most gap_s ({self.gap_s}), not {self.within_s}"
            )

    @property
    def spec(self) -> str:
        """See `Process`."""
        return spec_of("bursts", self)

    @property
    def quiet_s(self) -> float:
        """Mean seconds from the last arrival of a burst to the first of the next."""
        return self.size * self.gap_s - (self.size - 1) * self.within_s

    def times_ms(self, rng: Rng) -> Iterator[int]:
        """See `Process`."""
        at_ms = 0
        while True:
            yield at_ms
            ends = rng.random() * self.size < 1
            at_ms += exponential(rng, (self.quiet_s if ends else self.within_s) * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diurnal:
    """A load that rises and falls like a sine, beginning in the middle and rising.

    Not a process of its own: it stretches and shrinks the time of one, whose mean load stays.

    Parameters
    ----------
    swing
        At its peak the load is 1 + swing times its mean, at its trough 1 - swing; 0 to 1.
    period_s
        Seconds from one peak to the next.
    """

    swing: float = 0.5  # three times as much at the peak as at the trough; fitted to nothing
    period_s: float = 86_400.0  # a day

    def __post_init__(self) -> None:
        check_number("swing of diurnal", self.swing, most=1)
        check_number("period_s of diurnal", self.period_s, least=1e-3, most=1e9)

    @property
    def spec(self) -> str:
        """The change on one line."""
        return spec_of("diurnal", self)

    def load_ms(self, at_ms: float) -> float:
        """Return how much load has come until `at_ms`, in ms of the mean load."""
        period_ms = self.period_s * 1000
        turns = 2 * pi * at_ms / period_ms
        return at_ms + self.swing * period_ms / (2 * pi) * (1 - cos(turns))

    def when_ms(self, load_ms: int) -> int:
        """Return the first whole millisecond by which so much load has come."""
        low, high = 0, load_ms + 1  # of the whole load there is never less than of the mean
        while low < high:
            middle = (low + high) // 2
            if self.load_ms(middle) < load_ms:
                low = middle + 1
            else:
                high = middle
        return low


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """A process, perhaps with a load that changes over the day."""

    process: Process = field(default_factory=Poisson)
    diurnal: Diurnal | None = None

    @property
    def spec(self) -> str:
        """The line that `parse_starts` makes this from."""
        return "+".join(each.spec for each in (self.process, self.diurnal) if each is not None)

    def times_ms(self, rng: Rng) -> Iterator[int]:
        """Yield the millisecond of each arrival, the first at 0; none is before the last."""
        times = self.process.times_ms(rng)
        return times if self.diurnal is None else map(self.diurnal.when_ms, times)


_Part: TypeAlias = Poisson | Bursts | Diurnal

STARTS: Final[dict[str, type[_Part]]] = {"poisson": Poisson, "bursts": Bursts, "diurnal": Diurnal}
"""Name -> model."""


def parse_starts(text: str) -> Starts:
    """Return the arrivals that a line such as `bursts:gap_s=2,size=8+diurnal:swing=0.5` names.

    Raises
    ------
    UserError
        If the line names none, or two of a kind.
    """
    processes: list[Poisson | Bursts] = []
    changes: list[Diurnal] = []
    for part in text.split("+"):
        model = parse_spec(part, "arrival model", STARTS)
        if isinstance(model, Diurnal):
            changes.append(model)
        else:
            processes.append(model)
    if len(processes) > 1 or len(changes) > 1:
        raise ConfigError(
            f"arrivals must be one of poisson and bursts, and one diurnal at most, not {text!r}"
        )
    return Starts(
        process=processes[0] if processes else Poisson(), diurnal=changes[0] if changes else None
    )
