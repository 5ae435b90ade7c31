"""Change a trace: future uses, speed, jitter, block size. Each returns a new trace."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import groupby, repeat
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING

from kvsim.errors import ConfigError
from kvsim.types import NEVER, PartialRule

if TYPE_CHECKING:
    from kvsim.trace.base import Trace
    from kvsim.types import BlockKey, Request, Rng


def annotate_next_use(trace: Trace) -> Trace:
    """Return `trace` with `Request.next_use_at`, for clairvoyant policies.

    `next_use_at[i]` is the id of the next request whose prompt contains block i, `NEVER` if none
    does. O(references).
    """
    next_use: dict[BlockKey, int] = {}
    annotated: list[Request] = []
    for request in reversed(trace.requests):
        keys = request.block_keys
        uses = tuple(map(next_use.get, keys, repeat(NEVER)))
        next_use.update(zip(keys, repeat(request.request_id), strict=False))
        annotated.append(replace(request, next_use_at=uses))
    return replace(trace, requests=tuple(reversed(annotated)))


def scale_time(trace: Trace, *, speed: float) -> Trace:
    """Return `trace` replayed `speed` times as fast: all times divided, rounded to nanoseconds.

    Raises
    ------
    ConfigError
        If `speed` is not a finite number above 0.
    """
    if isinstance(speed, bool) or not isinstance(speed, int | float) or not isfinite(speed):
        raise ConfigError(f"speed must be a number above 0, not {speed!r}")
    if speed <= 0:
        raise ConfigError(f"speed must be above 0, not {speed!r}")
    divisor = Fraction(speed)  # a float quotient would be off by microseconds late in a long trace

    def scaled(time_ns: int) -> int:
        return round(time_ns / divisor)

    return replace(
        trace,
        requests=tuple(
            replace(
                request,
                arrived_at=scaled(request.arrived_at),
                cancelled_at=None if request.cancelled_at is None else scaled(request.cancelled_at),
            )
            for request in trace.requests
        ),
    )


def spread_arrivals(trace: Trace, rng: Rng) -> Trace:
    """Return `trace` with equal arrival times spread over the gap until the next one.

    Undoes the rounding of recorders (Mooncake's stamps are 3 s apart). The first of each group
    stays where it is, the others get sorted uniform delays, so the order stays the file's. The
    last group has no gap and stays. Cancellations move along.
    """
    groups = [list(group) for _, group in groupby(trace.requests, attrgetter("arrived_at"))]
    spread: list[Request] = []
    for group, following in zip(groups, [*groups[1:], *groups[-1:]], strict=True):
        gap_ns = following[0].arrived_at - group[0].arrived_at
        delays = [0, *sorted(int(rng.random() * gap_ns) for _ in group[1:])]
        spread += map(_delayed, group, delays)
    return replace(trace, requests=tuple(spread))


def reblock(trace: Trace, block_size: int, *, partial: PartialRule = PartialRule.NEVER) -> Trace:
    """Return `trace` with its blocks cut into smaller ones.

    Blocks that stand for the same tokens stay shared: of an id that is full in one row and holds
    143 tokens in another, blocks of 16 share 8. Keys are new ints, dense from 0.

    Parameters
    ----------
    trace
        Under `PartialRule.COUNT`: it must know the last block of each prompt.
    block_size
        Tokens a block of the result; divides that of `trace`.
    partial
        What becomes of the last block of the result that is not full.

    Raises
    ------
    ConfigError
        If the trace is under `PartialRule.NEVER` or its block size is not a multiple.
    """
    if type(block_size) is not int or block_size < 1 or trace.block_size % block_size:
        raise ConfigError(
            f"block_size must divide the trace's {trace.block_size} tokens a block,"
            f" not {block_size!r}"
        )
    if trace.partial is PartialRule.NEVER:
        raise ConfigError("blocks can be cut only in a trace under partial='count'")
    per_block = trace.block_size // block_size
    keys: dict[tuple[BlockKey, int, int], int] = {}

    def cut(request: Request) -> Request:
        num_full, rest = divmod(request.num_input_tokens, block_size)
        ends = [block_size] * num_full
        if rest and partial is PartialRule.COUNT:
            ends.append(rest)
        path = tuple(
            # how full it is tells a partial block from the full one that begins alike
            keys.setdefault((request.block_keys[i // per_block], i % per_block, fill), len(keys))
            for i, fill in enumerate(ends)
        )
        return replace(request, block_keys=path, next_use_at=None)

    return replace(
        trace,
        requests=tuple(map(cut, trace.requests)),
        block_size=block_size,
        partial=partial,
        repairs=(*trace.repairs, f"blocks of {trace.block_size} tokens cut into {block_size}"),
    )


def _delayed(request: Request, delay_ns: int) -> Request:
    cancelled_at = request.cancelled_at
    return replace(
        request,
        arrived_at=request.arrived_at + delay_ns,
        cancelled_at=None if cancelled_at is None else cancelled_at + delay_ns,
    )
