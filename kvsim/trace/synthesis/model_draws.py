"""Draw requests from a `SessionModel`.

Numbers are dealt like cards and rounded so that sums stay right, which makes a draw of some
thousand requests vary less from seed to seed than free draws would.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from heapq import heappop, heappush
from itertools import accumulate
from math import exp, log
from typing import TYPE_CHECKING, Final

from kvsim.types import PartialRule, Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.trace.synthesis.session_model import RequestClass, SessionModel
    from kvsim.types import Rng

_MS_NS: Final = 10**6


def draw_from_model(
    model: SessionModel,
    num_requests: int,
    rng: Rng,
    starts_ms: Iterator[int] | None = None,
) -> list[Request]:
    """Return requests; the same for the same arguments and draws of `rng`.

    Parameters
    ----------
    starts_ms
        When requests arrive; None: by `gap_ms`.
    """
    paths, sessions = _paths(model, num_requests, rng)
    outputs, gaps = _Deck(model.output_tokens, rng), _Deck(model.gap_ms, rng)
    size, counted = model.block_size, model.partial is PartialRule.COUNT
    requests: list[Request] = []
    at_ms = 0
    for path, session in zip(paths, sessions, strict=True):
        if starts_ms is not None:
            at_ms = next(starts_ms)
        elif requests:
            at_ms += gaps.deal()
        within = int(rng.random() * size)  # of the last block, or beyond it
        tokens = len(path) * size + (within + 1 - size if counted else within)
        requests.append(
            Request(
                request_id=len(requests),
                arrived_at=at_ms * _MS_NS,
                block_keys=tuple(path),
                num_input_tokens=max(1, tokens),
                num_output_tokens=max(1, outputs.deal()),
                session_id=f"s{session}",
            )
        )
    return requests


class _Deck:
    """Numbers, each of which comes once before any comes again.

    One that is not whole is rounded up or down so that the sum of all stays right.
    """

    __slots__ = ("_cards", "_carry", "_rng", "_values")

    def __init__(self, values: Sequence[float], rng: Rng) -> None:
        self._values, self._rng = values, rng
        self._cards = _Cards(range(len(values)), rng)
        self._carry = rng.random()

    def deal(self) -> int:
        """Return the next number, rounded."""
        exact = self._values[self._cards.deal()] + self._carry
        whole = int(exact)
        self._carry = exact - whole
        return whole


class _Cards:
    """Shuffles, deals all, and shuffles again."""

    __slots__ = ("_all", "_left", "_rng")

    def __init__(self, values: Sequence[int], rng: Rng) -> None:
        self._all, self._rng = values, rng
        self._left: list[int] = []

    def deal(self) -> int:
        """Return the next."""
        left = self._left
        if not left:
            left += self._all
        # Fisher-Yates with `random()`, whose sequence Python promises to keep; one card a time
        chosen = int(self._rng.random() * len(left))
        left[chosen], left[-1] = left[-1], left[chosen]
        return left.pop()


class _Continuations:
    """The draws for the requests of one class."""

    __slots__ = ("_bins", "_carry", "_delays", "_mean", "_rng", "dropped", "new")

    def __init__(self, kind: RequestClass, rng: Rng) -> None:
        self._rng, self._mean = rng, kind.continuations
        self._delays = [log(each + 1) for each in kind.delay_requests]
        self._bins = _Cards(range(len(self._delays) - 1), rng)
        self._carry = rng.random()
        self.dropped = _Deck(kind.dropped_blocks, rng)
        self.new = _Deck(kind.new_blocks, rng)

    def num(self) -> int:
        """Return how many requests continue the next one; the sum of all is right."""
        self._carry += self._mean
        whole = int(self._carry)
        self._carry -= whole
        return whole

    def delay(self) -> int:
        """Return after how many requests, at least 1: between two quantiles, evenly in the log."""
        low = self._bins.deal()
        share = self._rng.random()
        delays = self._delays
        return max(1, round(exp(delays[low] * (1 - share) + delays[low + 1] * share) - 1))


class _Sessions:
    """Begins sessions: each with one of the shared prefixes, or with none."""

    __slots__ = ("_keys", "_least", "_lengths", "_limits", "_prefixes", "_rng", "num_keys")

    def __init__(self, model: SessionModel, rng: Rng) -> None:
        self._rng = rng
        self._lengths = _Deck(model.first_blocks, rng)
        may_be_empty = model.partial is PartialRule.NEVER and model.block_size > 1
        self._least = 0 if may_be_empty else 1
        self._keys: list[list[int] | None] = [None] * len(model.prefixes)
        self._limits = list(accumulate(each.share for each in model.prefixes))
        self._prefixes = model.prefixes
        self.num_keys = 0

    def begin(self) -> tuple[list[int], int]:
        """Return the shared prefix of a new session, and how many blocks follow."""
        chosen = bisect(self._limits, self._rng.random()) if self._limits else 0
        path = list(self._prefix(chosen)) if chosen < len(self._limits) else []
        return path, max(0 if path else self._least, self._lengths.deal())

    def _prefix(self, index: int) -> list[int]:
        found = self._keys[index]
        if found is None:
            prefix = self._prefixes[index]
            found = [] if prefix.extends is None else list(self._prefix(prefix.extends))
            found += range(self.num_keys, self.num_keys + prefix.num_blocks)
            self.num_keys += prefix.num_blocks
            self._keys[index] = found
        return found


def _paths(model: SessionModel, num_requests: int, rng: Rng) -> tuple[list[list[int]], list[int]]:
    """Return the block keys of each request, dense in the order of first use, and its session."""
    classes = [
        ([each.up_to_blocks for each in kinds[:-1]], [_Continuations(each, rng) for each in kinds])
        for kinds in (model.first, model.continued)
    ]
    starts = _Sessions(model, rng)
    paths: list[list[int]] = []
    sessions: list[int] = []
    kept_least: list[int] = []  # by session: its shared prefix and a block
    due: list[tuple[int, int, _Continuations]] = []  # request, what it continues: a heap
    for request in range(num_requests):
        continues = bool(due) and due[0][0] <= request
        if continues:
            _, source, kind = heappop(due)
            before, session = paths[source], sessions[source]
            kept = min(len(before), max(kept_least[session], len(before) - kind.dropped.deal()))
            path, num_new = before[:kept], kind.new.deal()
        else:
            path, num_new = starts.begin()
            session = len(kept_least)
            kept_least.append(len(path) + 1)
        num_new = max(0, min(num_new, model.longest_blocks - len(path)))
        path += range(starts.num_keys, starts.num_keys + num_new)
        starts.num_keys += num_new
        paths.append(path)
        sessions.append(session)
        edges, kinds = classes[continues]
        kind = kinds[bisect_left(edges, len(path))]
        for _ in range(kind.num()):
            heappush(due, (request + kind.delay(), request, kind))
    return paths, sessions
