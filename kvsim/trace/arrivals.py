"""When requests arrive where the file does not say: an explicit, seeded model.

Only `random()` is drawn, whose sequence Python promises to keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from random import Random
from typing import TYPE_CHECKING, Final

from kvsim.trace.specs import check_number, parse_spec, spec_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_S_NS: Final = 10**9
_MS_NS: Final = 10**6
_PAUSES: Final = 1 << 32
"""Added to the seed, so that pauses and starts are not the same draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalModel:
    """Conversations start as a Poisson process; turns follow an answer and a pause.

    Parameters
    ----------
    gap_s
        Mean seconds from one start to the next (exponential). 0: all start together.
    think_s
        Mean seconds from the end of an answer to the next turn (exponential).
    token_ms
        Milliseconds an answer takes for each of its tokens.
    seed
        The same seed gives the same times.
    """

    gap_s: float = 10.0
    think_s: float = 30.0
    token_ms: float = 20.0  # 50 tokens a second, about a fast reader's pace
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("gap_s", "think_s", "token_ms"):
            check_number(f"{name} of an arrival model", getattr(self, name), most=1e6)
        check_number("seed of an arrival model", self.seed, whole=True)

    @property
    def spec(self) -> str:
        """The model on one line."""
        return spec_of("poisson", self)

    def starts(self) -> Iterator[int]:
        """Yield the nanosecond at which each conversation starts, the first at 0."""
        rng = Random(self.seed)
        at = 0
        while True:
            yield at
            at += exponential(rng.random(), self.gap_s * _S_NS)

    def pauses(self) -> Iterator[int]:
        """Yield the nanoseconds from the end of an answer to the next turn, one after another."""
        rng = Random(self.seed + _PAUSES)
        while True:
            yield exponential(rng.random(), self.think_s * _S_NS)

    def answered_at(self, at_ns: int, num_output_tokens: int) -> int:
        """Return when the answer to a request that arrived at `at_ns` is complete."""
        return at_ns + round(num_output_tokens * self.token_ms * _MS_NS)


def parse_arrivals(text: str) -> ArrivalModel:
    """Return the model that a line such as `poisson:gap_s=2,seed=7` names.

    Raises
    ------
    UserError
        If the line names none.
    """
    return parse_spec(text, "arrival model", {"poisson": ArrivalModel})


def exponential(uniform: float, mean_ns: float) -> int:
    """Return the exponential variate that belongs to a uniform one in [0, 1), in nanoseconds."""
    return round(-mean_ns * log(1 - uniform))
