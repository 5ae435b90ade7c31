"""Take part of a trace, or put traces together. Each returns a new trace.

A part is a smaller workload with the same sharing inside it. It is no estimator of the whole's
hit-rate curve: a smaller workload also needs a smaller cache.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import merge
from typing import TYPE_CHECKING

from kvsim.errors import ConfigError, UnknownNameError, UserError
from kvsim.trace.specs import check_number

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

    from kvsim.trace.base import Trace
    from kvsim.types import BlockKey, Request, Rng

_S_NS = 10**9


def take_between(trace: Trace, *, start_s: float = 0.0, end_s: float | None = None) -> Trace:
    """Return the requests that arrive from `start_s` to before `end_s`; None: to the end.

    Raises
    ------
    UserError
        If a time is impossible or no request is left.
    """
    check_number("start_s", start_s)
    if end_s is not None:
        check_number("end_s", end_s)
    start_ns = round(start_s * _S_NS)
    end_ns = None if end_s is None else round(end_s * _S_NS)
    kept = [
        each
        for each in trace.requests
        if each.arrived_at >= start_ns and (end_ns is None or each.arrived_at < end_ns)
    ]
    span = f"from {start_s} s to {'the end' if end_s is None else f'{end_s} s'}"
    return renumbered(trace, kept, f"only the requests {span}")


def take_sessions(trace: Trace, sessions: Collection[str]) -> Trace:
    """Return the requests of the named sessions.

    Raises
    ------
    UserError
        If the trace has none of a name.
    """
    known = {each.session_id for each in trace.requests if each.session_id is not None}
    for name in sessions:
        if name not in known:
            raise UnknownNameError("session", name, sorted(known)[:8] or ["none"])
    kept = [each for each in trace.requests if each.session_id in sessions]
    return renumbered(trace, kept, f"only {len(sessions)} of {len(known)} sessions")


def sample_requests(
    trace: Trace, share: float, rng: Rng, *, by: str = "root", depth: int | None = None
) -> Trace:
    """Return about `share` of the requests; those that share a prefix stay or go together.

    Parameters
    ----------
    share
        The probability that a group is kept, above 0 to 1.
    by
        "root": a group is what has the same block at `depth`. "session": a conversation; a
        request without one is a group of its own.
    depth
        Which block of a prompt decides, the first being 1; None: the first after those that all
        prompts begin with.

    Raises
    ------
    UserError
        If an argument is impossible, or no request is left.
    """
    check_number("share", share, most=1)
    if by not in ("root", "session"):
        raise UnknownNameError("kind of group", by, ["root", "session"])
    if depth is None:
        depth = 1 + _num_common(trace.requests)
    check_number("depth", depth, least=1, whole=True)

    def root(request: Request) -> Hashable:
        keys = request.block_keys[:depth]
        return ("root", keys[-1]) if keys else ("alone", request.request_id)

    def session(request: Request) -> Hashable:
        name = request.session_id
        return ("alone", request.request_id) if name is None else ("session", name)

    kept = _sampled(trace.requests, share, rng, root if by == "root" else session)
    note = f"a sample of {share:g} of the requests, by {by}"
    return renumbered(trace, kept, f"{note} at block {depth}" if by == "root" else note)


def mix(traces: Sequence[Trace]) -> Trace:
    """Return all requests of several traces in the order of their arrival; all begin at 0.

    Nothing is shared from one trace to another: keys become dense numbers, sessions get the
    position of their trace before their name.

    Raises
    ------
    UserError
        If there is no trace, or they differ in block size or partial rule.
    """
    if not traces:
        raise UserError("nothing to mix: name at least one trace")
    first = traces[0]
    for each in traces:
        if (each.block_size, each.partial) != (first.block_size, first.partial):
            raise ConfigError(
                f"traces to be mixed must have one block size and partial rule: {first.name} has"
                f" {first.block_size}, {first.partial}; {each.name} {each.block_size},"
                f" {each.partial}; load them with the same block_size and partial"
            )
    numbers: dict[tuple[int, BlockKey], int] = {}
    ordered = merge(
        *([(r.arrived_at, i, r) for r in trace.requests] for i, trace in enumerate(traces)),
        key=lambda item: item[:2],
    )
    requests = [
        replace(
            request,
            block_keys=tuple(
                numbers.setdefault((i, key), len(numbers)) for key in request.block_keys
            ),
            session_id=None if request.session_id is None else f"{i}:{request.session_id}",
        )
        for _, i, request in ordered
    ]
    mixed = replace(
        first,
        requests=(),
        name="+".join(each.name for each in traces),
        format="mix",
        sha256=None,
        repairs=tuple(f"{each.name}: {note}" for each in traces for note in each.repairs),
        num_disordered=sum(each.num_disordered for each in traces),
        has_prefixes=all(each.has_prefixes for each in traces),
    )
    return renumbered(mixed, requests, f"mixed from {len(traces)} traces")


def renumbered(trace: Trace, requests: Sequence[Request], note: str) -> Trace:
    """Return `trace` with `requests`, which are in order: the first at 0, numbered from 0.

    Raises
    ------
    UserError
        If there is none.
    """
    if not requests:
        raise UserError(f"no request of {trace.name} is left: {note}")
    start = requests[0].arrived_at
    moved = tuple(
        replace(
            each,
            request_id=index,
            arrived_at=each.arrived_at - start,
            cancelled_at=None if each.cancelled_at is None else each.cancelled_at - start,
            next_use_at=None,
        )
        for index, each in enumerate(requests)
    )
    return replace(trace, requests=moved, repairs=(*trace.repairs, note))


def _num_common(requests: Iterable[Request]) -> int:
    """Return how many blocks all prompts that have blocks begin with."""
    paths = [each.block_keys for each in requests if each.block_keys]
    common = 0
    # one path may be the beginning of all others: then its last block still tells nothing apart
    for keys in zip(*paths, strict=False):
        if any(key != keys[0] for key in keys):
            break
        common += 1
    return common


def _sampled(
    requests: Iterable[Request], share: float, rng: Rng, group_of: Callable[[Request], Hashable]
) -> list[Request]:
    is_kept: dict[Hashable, bool] = {}
    kept = []
    for request in requests:
        group = group_of(request)
        if group not in is_kept:
            is_kept[group] = rng.random() < share
        if is_kept[group]:
            kept.append(request)
    return kept
