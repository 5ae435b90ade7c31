"""What running requests need besides the cache that the answers are about."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from kvsim.core.attempt import BlockLayout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.analysis.records import RequestRecord
    from kvsim.trace import Trace

GIB: Final = 2**30

_SECOND_NS: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What a timed replay holds on average, from the first arrival to the last end.

    By Little's law: arrivals a second times how long each stays, weighted by its tokens. A request
    counts from its admission to its end with all of its tokens, those still to come and those that
    it shares too, so the true mean is a little less.

    Parameters
    ----------
    num_requests, num_tokens, size_gib
        Means over virtual time.

    Source: J. D. C. Little, "A proof for the queuing formula L = lambda W", Operations Research
    9(3), 1961; its form for sums is H = lambda G (S. L. Brumelle, 1971).
    """

    num_requests: float
    num_tokens: float
    size_gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What running requests need besides: the answers are for no requests in flight.

    Parameters
    ----------
    largest_blocks, largest_gib
        Prompt and output of the largest request: no tier of the GPU may be smaller.
    tokens_per_second, gib_per_second
        Tokens of prompt and output that arrive in a second, on average, at the trace's own speed;
        None if all requests arrive at once. If every request stays for w seconds, requests hold w
        times that much on average, blocks that they share counted once for each.
    running
        What they hold on average in a timed replay; None if none was asked for.
    """

    largest_blocks: int
    largest_gib: float
    tokens_per_second: float | None
    gib_per_second: float | None
    running: Running | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the room as JSON values."""
        return asdict(self)

    @property
    def note(self) -> str:
        """The room in one sentence."""
        text = (
            "no requests in flight: leave room for the tokens of running requests; the largest"
            f" needs {self.largest_blocks:,} blocks, {short_gib(self.largest_gib)} GiB"
        )
        if self.running is not None:
            held = self.running
            return (
                f"{text}; in a timed replay {held.num_requests:.1f} requests run on average and"
                f" hold {held.num_tokens:,.0f} tokens, {short_gib(held.size_gib)} GiB, shared"
                " blocks counted for each"
            )
        if self.gib_per_second is None:
            return text
        return (
            f"{text}; for each second that every request stays, they hold"
            f" {short_gib(self.gib_per_second)} GiB on average, shared blocks counted for each"
        )


def room_of(trace: Trace, block_bytes: int, records: Iterable[RequestRecord] | None = None) -> Room:
    """Return the room that a trace's requests need.

    Parameters
    ----------
    trace
        What is asked for.
    block_bytes
        Of one block over all ranks.
    records
        Of a timed replay of it, if there was one.
    """
    largest = max(BlockLayout(each, trace.block_size).num_most_blocks for each in trace.requests)
    tokens = sum(each.num_input_tokens + each.num_output_tokens for each in trace.requests)
    span_ns = trace.requests[-1].arrived_at
    per_second = tokens * _SECOND_NS / span_ns if span_ns else None
    token_gib = block_bytes / trace.block_size / GIB
    return Room(
        largest_blocks=largest,
        largest_gib=largest * block_bytes / GIB,
        tokens_per_second=per_second,
        gib_per_second=None if per_second is None else per_second * token_gib,
        running=None if records is None else running_of(records, token_gib),
    )


def running_of(records: Iterable[RequestRecord], token_gib: float) -> Running:
    """Return what requests held on average; those that were never admitted held nothing."""
    stays_ns = token_ns = end_ns = 0
    for record in records:
        if record.admitted_at is None or record.ended_at is None:
            continue
        stay_ns = record.ended_at - record.admitted_at
        request = record.request
        stays_ns += stay_ns
        token_ns += stay_ns * (request.num_input_tokens + request.num_output_tokens)
        end_ns = max(end_ns, record.ended_at)
    num_tokens = token_ns / end_ns if end_ns else 0.0
    return Running(
        num_requests=stays_ns / end_ns if end_ns else 0.0,
        num_tokens=num_tokens,
        size_gib=num_tokens * token_gib,
    )


def short_gib(size_gib: float) -> str:
    """Return a size with about three digits: sizes differ by a factor of a million."""
    if size_gib >= 1000:
        return f"{size_gib:,.0f}"
    return f"{size_gib:.1f}" if size_gib >= 1 else f"{size_gib:.2g}"
