"""Change a trace: future uses, speed, jitter, block size. Each returns a new trace."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import groupby, repeat
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING

from kvsim.errors import ConfigError, TraceError, UserError
from kvsim.trace.selection import renumbered
from kvsim.types import NEVER, PartialRule

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.trace.arrivals import ArrivalModel
    from kvsim.trace.base import Trace
    from kvsim.types import BlockKey, Request, Rng

_OWN = object()
"""Marks the blocks of a prompt that no other can have."""


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


def close_loop(trace: Trace, model: ArrivalModel) -> Trace:
    """Return `trace` with each turn after its session's first arriving when somebody would send it.

    That is when the answer to the turn before is complete, at `model.token_ms` a token, and a
    pause of `model.think_s` on average has passed. First turns stay where they are. Cancellations
    move along.

    Raises
    ------
    UserError
        If no request has a session.
    """
    if all(each.session_id is None for each in trace.requests):
        raise UserError(f"trace {trace.name} has no sessions: there is no think time to set")
    pauses = model.pauses()
    answered_at: dict[str, int] = {}
    moved: list[Request] = []
    for request in trace.requests:
        name = request.session_id
        if name is None:
            moved.append(request)
            continue
        before = answered_at.get(name)
        delay_ns = 0 if before is None else before + next(pauses) - request.arrived_at
        moved.append(_delayed(request, delay_ns))
        answered_at[name] = model.answered_at(moved[-1].arrived_at, request.num_output_tokens)
    ordered = sorted(moved, key=attrgetter("arrived_at"))
    return renumbered(trace, ordered, f"turns follow their answers by {model.spec}")


def reblock(trace: Trace, block_size: int, *, partial: PartialRule = PartialRule.NEVER) -> Trace:
    """Return `trace` with its blocks cut into smaller ones.

    Blocks that stand for the same tokens stay shared: of an id that is full in one row and holds
    143 tokens in another, blocks of 16 share 8. Keys are new ints, dense from 0. Under
    `PartialRule.NEVER` nothing is known of the tokens after the last full block of `trace`: the
    new blocks there are the prompt's own, and `repairs` says how many.

    Parameters
    ----------
    trace
        Any; only under `PartialRule.COUNT` does it know the last block of each prompt.
    block_size
        Tokens a block of the result; divides that of `trace`.
    partial
        What becomes of the last block of the result that is not full.

    Raises
    ------
    ConfigError
        If the block size is not a multiple, or `partial` counts what the trace does not know.
    """
    if type(block_size) is not int or block_size < 1 or trace.block_size % block_size:
        raise ConfigError(
            f"block_size must divide the trace's {trace.block_size} tokens a block,"
            f" not {block_size!r}"
        )
    if partial is PartialRule.COUNT and trace.partial is PartialRule.NEVER:
        raise ConfigError("last blocks can be counted only of a trace under partial='count'")
    per_block = trace.block_size // block_size
    keys: dict[tuple[object, int, int], int] = {}
    num_own = 0

    def cut(request: Request) -> Request:
        nonlocal num_own
        num_full, rest = divmod(request.num_input_tokens, block_size)
        ends = [block_size] * num_full
        if rest and partial is PartialRule.COUNT:
            ends.append(rest)
        named = [(key, part) for key in request.block_keys for part in range(per_block)]
        num_unnamed = max(0, len(ends) - len(named))
        num_own += num_unnamed
        named += [((_OWN, request.request_id), part) for part in range(num_unnamed)]
        path = tuple(
            # how full it is tells a partial block from the full one that begins alike
            keys.setdefault((key, part, fill), len(keys))
            for (key, part), fill in zip(named, ends, strict=False)
        )
        return replace(request, block_keys=path, next_use_at=None)

    requests = tuple(map(cut, trace.requests))
    own = f"; {num_own} after the last full one are their prompt's own" if num_own else ""
    note = f"blocks of {trace.block_size} tokens cut into {block_size}{own}"
    return replace(
        trace,
        requests=requests,
        block_size=block_size,
        partial=partial,
        repairs=(*trace.repairs, note),
    )


def without_partial(trace: Trace, path: Path | str) -> Trace:
    """Return a trace under `PartialRule.COUNT` without the last blocks that are not full.

    Raises
    ------
    TraceError
        If the trace is under `PartialRule.NEVER`: what it lacks cannot be added.
    """
    if trace.partial is PartialRule.NEVER:
        raise TraceError(
            "partial='count' needs an id for the last block of each prompt, but this file names"
            " whole blocks only; use partial='never'",
            path=path,
        )
    requests = tuple(
        replace(each, block_keys=each.block_keys[: each.num_input_tokens // trace.block_size])
        for each in trace.requests
    )
    return replace(trace, requests=requests, partial=PartialRule.NEVER)


def _delayed(request: Request, delay_ns: int) -> Request:
    cancelled_at = request.cancelled_at
    return replace(
        request,
        arrived_at=request.arrived_at + delay_ns,
        cancelled_at=None if cancelled_at is None else cancelled_at + delay_ns,
    )
