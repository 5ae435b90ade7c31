"""Hit ratios over windows of so many queries, as a server shows them, beside those of a whole run.

A query is a request's first admission, so one that is preempted or tried again is one query. A
window is forgotten after its last query has been counted: what a gauge shows then is the ratio
over the whole of it, and with the next query that over one.

Source: FastDeploy, `cache_metrics.py` (the window of 10,000).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kvsim.analysis.frames import frame_of
from kvsim.analysis.metrics import tier_name
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pandas as pd

    from kvsim.analysis.records import RequestRecord

WINDOW_REQUESTS: Final = 10_000
"""Source: FastDeploy."""


class Query(NamedTuple):
    """What one request asked for and found, in tokens; `at` is its first admission (ns)."""

    at: int | None
    num_tokens: int
    num_hit_tokens: tuple[int, ...]


class WindowFigures(NamedTuple):
    """What a window has counted. Ratios are 0.0 where nothing was asked for."""

    window: int
    at_ns: int | None
    num_requests: int
    num_hit_requests: int
    num_tokens: int
    num_hit_tokens: tuple[int, ...]

    @property
    def hit_request_ratio(self) -> float:
        """Requests that found something, by requests."""
        return self.num_hit_requests / self.num_requests if self.num_requests else 0.0

    @property
    def hit_token_ratio(self) -> float:
        """Tokens found in any tier, by tokens asked for."""
        return self._share(sum(self.num_hit_tokens))

    def tier_ratio(self, tier: int) -> float:
        """Tokens found in one tier, by tokens asked for."""
        return self._share(self.num_hit_tokens[tier])

    def _share(self, num_hits: int) -> float:
        return num_hits / self.num_tokens if self.num_tokens else 0.0


def queries(records: Iterable[RequestRecord], block_size: int) -> list[Query]:
    """Return what was asked for, in the order of the first admissions.

    A request that was never admitted counts when it ended, and found nothing.
    """
    found = []
    for record in records:
        tokens = record.request.num_input_tokens
        at = record.ended_at if record.admitted_at is None else record.admitted_at
        ends, hits, end = [0], [], 0
        for num_blocks in record.num_hit_blocks_by_tier:
            end += num_blocks
            ends.append(min(end * block_size, tokens))
            hits.append(ends[-1] - ends[-2])
        found.append((record.request.request_id, Query(at, tokens, tuple(hits))))
    found.sort(key=lambda each: (each[1].at or 0, each[0]))
    return [query for _, query in found]


def windows(asked: Sequence[Query], window_requests: int = WINDOW_REQUESTS) -> list[WindowFigures]:
    """Return the figures of each window at its end; the last may have fewer queries.

    Raises
    ------
    ConfigError
        If the window has less than one query.
    """
    if type(window_requests) is not int or window_requests < 1:
        raise ConfigError(f"window must be a whole number of at least 1, not {window_requests!r}")
    last: dict[int, WindowFigures] = {}
    for figures in running_windows(asked, window_requests):
        last[figures.window] = figures
    return list(last.values())


def running_windows(
    asked: Iterable[Query], window_requests: int = WINDOW_REQUESTS
) -> Iterator[WindowFigures]:
    """Yield the figures of the window after each query, before it is forgotten if it is full."""
    number = num_requests = num_hit_requests = num_tokens = 0
    hits: tuple[int, ...] = ()
    for query in asked:
        if num_requests == window_requests:
            number += 1
            num_requests = num_hit_requests = num_tokens = 0
            hits = ()
        num_requests += 1
        num_hit_requests += any(query.num_hit_tokens)
        num_tokens += query.num_tokens
        old = hits or (0,) * len(query.num_hit_tokens)
        hits = tuple(a + b for a, b in zip(old, query.num_hit_tokens, strict=True))
        yield WindowFigures(number, query.at, num_requests, num_hit_requests, num_tokens, hits)


def windows_frame(figures: Sequence[WindowFigures], *, num_tiers: int, clock: str) -> pd.DataFrame:
    """Return one row a window."""
    names = list(map(tier_name, range(num_tiers)))
    columns = {
        "window": "int64",
        "at_ns": "Int64",
        "num_requests": "int64",
        "num_hit_requests": "int64",
        "num_tokens": "int64",
        **{f"num_{name}_hit_tokens": "int64" for name in names},
        "hit_request_ratio": "float64",
        "hit_token_ratio": "float64",
        **{f"{name}_hit_token_ratio": "float64" for name in names},
        "clock": "string",
    }
    rows = (
        (
            each.window,
            each.at_ns,
            each.num_requests,
            each.num_hit_requests,
            each.num_tokens,
            *each.num_hit_tokens,
            each.hit_request_ratio,
            each.hit_token_ratio,
            *map(each.tier_ratio, range(num_tiers)),
            clock,
        )
        for each in figures
    )
    return frame_of(rows, columns)
