"""What prompts share in a trace that has lengths only: an explicit, seeded model.

A trace without block ids says nothing about prefixes, so whatever hits come out of these models
were put in by their numbers. Only `random()` is drawn, whose sequence Python promises to keep.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kvsim.trace.specs import check_number, parse_spec, spec_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.trace.base import Row
    from kvsim.types import BlockKey

Shared = tuple["Sequence[Sequence[BlockKey]]", "list[Row]", list[str]]
"""The keys of each row, the rows (perhaps with sessions), and what to tell the user."""


class SharingModel(Protocol):
    """Gives the rows of a lengths-only trace their block keys."""

    def assign(self, rows: Sequence[Row], block_size: int) -> Shared:
        """Return keys for the full blocks of each row, chained and dense; changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZipfSharing:
    """A share of the prompts begins with one of a few prefixes, as with system prompts.

    Parameters
    ----------
    prefixes
        How many there are.
    exponent
        The k-th most popular is drawn in proportion to k ** -exponent.
    tokens
        Length of each prefix; a shorter prompt is its beginning.
    share
        Of the prompts, how many begin with one: 0 to 1.
    seed
        The same seed gives the same blocks.
    """

    prefixes: int = 100
    exponent: float = 1.0
    tokens: int = 1024
    share: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("prefixes of zipf sharing", self.prefixes, least=1, most=1e6, whole=True)
        check_number("exponent of zipf sharing", self.exponent, most=10)
        check_number("tokens of zipf sharing", self.tokens, least=1, whole=True)
        check_number("share of zipf sharing", self.share, most=1)
        check_number("seed of zipf sharing", self.seed, whole=True)

    def assign(self, rows: Sequence[Row], block_size: int) -> Shared:
        """See `SharingModel`."""
        rng = Random(self.seed)
        popularity = list(accumulate(k**-self.exponent for k in range(1, self.prefixes + 1)))
        prefixes: dict[int, list[int]] = {}
        keys: list[list[int]] = []
        num_keys = 0
        for row in rows:
            path: list[int] = []
            num_blocks = row.num_input_tokens // block_size
            if rng.random() < self.share:
                chosen = bisect(popularity, rng.random() * popularity[-1])
                prefix = prefixes.setdefault(min(chosen, self.prefixes - 1), [])
                num_common = min(num_blocks, self.tokens // block_size)
                num_new = max(0, num_common - len(prefix))
                prefix += range(num_keys, num_keys + num_new)
                num_keys += num_new
                path = prefix[:num_common]
            num_own = num_blocks - len(path)
            path += range(num_keys, num_keys + num_own)
            num_keys += num_own
            keys.append(path)
        return keys, list(rows), [_note(spec_of("zipf", self))]


class _Conversation(NamedTuple):
    """The last turn: its keys, its tokens with the answer's, its name, when it arrived."""

    path: list[int]
    num_tokens: int
    name: str
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsSharing:
    """A prompt may be the next turn of a conversation: it then begins with the turn before.

    It is, with probability `share`, if there is a conversation whose last prompt and answer are
    shorter than it; the longest such conversation goes on. Rows get `session_id`s.

    Parameters
    ----------
    share
        Of the prompts, how many would be a next turn: 0 to 1.
    idle_s
        A conversation that has been idle for longer is over.
    open
        How many conversations are remembered at most, the newest.
    seed
        The same seed gives the same blocks.
    """

    share: float = 0.5
    idle_s: float = 600.0
    open: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("share of turns sharing", self.share, most=1)
        check_number("idle_s of turns sharing", self.idle_s, most=1e9)
        check_number("open of turns sharing", self.open, least=1, most=1e5, whole=True)
        check_number("seed of turns sharing", self.seed, whole=True)

    def assign(self, rows: Sequence[Row], block_size: int) -> Shared:
        """See `SharingModel`."""
        rng = Random(self.seed)
        opened: deque[_Conversation] = deque(maxlen=self.open)
        keys: list[list[int]] = []
        named: list[Row] = []
        num_keys = num_sessions = 0
        for row in rows:
            before = self._next(opened, row) if rng.random() < self.share else None
            path = list(before.path) if before else []
            if before:
                opened.remove(before)
            num_new = row.num_input_tokens // block_size - len(path)
            path += range(num_keys, num_keys + num_new)
            num_keys += num_new
            name = before.name if before else f"s{num_sessions}"
            num_sessions += before is None
            num_tokens = row.num_input_tokens + row.num_output_tokens
            opened.append(_Conversation(path, num_tokens, name, row.at_ns))
            keys.append(path)
            named.append(row._replace(session_id=name))
        return keys, named, [_note(spec_of("turns", self))]

    def _next(self, opened: deque[_Conversation], row: Row) -> _Conversation | None:
        earliest = row.at_ns - self.idle_s * 10**9
        fitting = (
            each
            for each in opened
            if each.num_tokens < row.num_input_tokens and each.at_ns >= earliest
        )
        return max(fitting, key=lambda each: each.num_tokens, default=None)


SHARING: Final = {"zipf": ZipfSharing, "turns": TurnsSharing}
"""Name -> model."""


def parse_sharing(text: str) -> SharingModel:
    """Return the model that a line such as `zipf:prefixes=8,share=0.7` names.

    Raises
    ------
    UserError
        If the line names none.
    """
    return parse_spec(text, "sharing model", SHARING)


def _note(spec: str) -> str:
    return f"lengths only: what prompts share was made up by the model {spec}"
