"""A split run as a timeline for ui.perfetto.dev: all instances, the sends, the requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.analysis.perfetto import (
    op_events,
    requests_name,
    span_events,
    tier_events,
    timeline_lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.analysis.perfetto import TraceEvent
    from kvsim.analysis.steps import RunLog
    from kvsim.core.handoff import Handoff
    from kvsim.splitting.running import SplitOutcome


def split_lines(
    outcome: SplitOutcome, logs: tuple[RunLog, ...], *, name: str, clock: str
) -> Iterator[str]:
    """Yield the lines of the file.

    Parameters
    ----------
    outcome
        Of the run.
    logs
        Of each instance; the turns are those of all of them.
    name
        What was run.
    clock
        "virtual" or "wall".
    """
    instances = outcome.instances
    found = [
        *op_events(
            logs[0].turns,
            num_ranks=[each.layout.num_ranks for each in instances],
            roles=[each.role.value for each in instances],
        ),
        requests_name(),
        *(event for each in outcome.handoffs for event in _request_events(each)),
    ]
    for number, log in enumerate(logs):
        found += tier_events(log, instance=number)
    return timeline_lines(found, name=name, clock=clock)


def _request_events(handoff: Handoff) -> Iterator[TraceEvent]:
    args = {
        "status": str(handoff.status),
        "input tokens": handoff.request.num_input_tokens,
        "output tokens": handoff.num_made,
        "blocks": len(handoff.request.block_keys),
        "sent blocks": handoff.num_sent_blocks,
        "attempts": handoff.attempt,
    }
    return span_events(handoff.request, _phases(handoff), args, ended_at=handoff.ended_at)


def _phases(handoff: Handoff) -> Iterator[tuple[int, str]]:
    """Yield when a request came to which phase, after it was queued; times never decrease."""
    last = handoff.request.arrived_at
    for at, phase in (
        (handoff.reserved_at, "reserved"),
        (handoff.prefill_started_at, "prefill"),
        (handoff.prompt_done_at, "sending"),
        (handoff.arrived_at, "ready"),
        (handoff.decode_started_at, "decode"),
    ):
        if at is not None:
            last = max(last, at)
            yield last, phase
