"""A run as a timeline for ui.perfetto.dev, in the trace-event format (JSON).

One process an instance, with a row for each rank (a slice a step) and a counter for each tier; one
process for the links, with a row for each direction (a slice a transfer); one for the requests (a
span each, and what they did in it). An arrow leads from a transfer to the step that waits for it,
and from a step to the sends between instances that wait for it.

Times are in microseconds with three decimals, so that no nanosecond is lost.

Source: Google, "Trace Event Format".
"""

from __future__ import annotations

import json
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from kvsim.analysis.metrics import tier_name
from kvsim.analysis.occupancy import USES
from kvsim.core.ops import Completion, Forward, Transfer
from kvsim.events import AttemptEnded, RequestAdmitted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kvsim.analysis.records import RequestRecord
    from kvsim.analysis.steps import RunLog
    from kvsim.analysis.timeline import TurnRecord
    from kvsim.core.ops import Place
    from kvsim.types import OpId, Request, RequestId

    Args: TypeAlias = Mapping[str, object]
    Row: TypeAlias = tuple[int, int]

_REQUESTS_PID: Final = 1
_LINKS_PID: Final = 2
_FIRST_INSTANCE_PID: Final = 10
_MAX_NAMED: Final = 20
"""Requests of a step that are named in its slice; of more, only how many there are."""


class TraceEvent(NamedTuple):
    """One event: `phase` as the format has it, times in ns, and what else belongs to it."""

    phase: str
    name: str
    at_ns: int
    row: Row
    duration_ns: int | None = None
    args: Args | None = None
    more: Args | None = None

    def line(self) -> str:
        """Return it as JSON."""
        pid, tid = self.row
        head = f'{{"ph":"{self.phase}","ts":{_microseconds(self.at_ns)},"pid":{pid},"tid":{tid}'
        if self.duration_ns is not None:
            head += f',"dur":{_microseconds(self.duration_ns)}'
        rest: dict[str, object] = {"name": self.name, **(self.more or {})}
        if self.args is not None:
            rest["args"] = dict(self.args)
        return f"{head},{json.dumps(rest)[1:]}"


def perfetto_lines(
    log: RunLog, records: Sequence[RequestRecord], *, num_ranks: int, name: str
) -> Iterator[str]:
    """Yield the lines of the file.

    Parameters
    ----------
    log
        Events and turns of the run.
    records
        Of its requests.
    num_ranks
        Ranks of an instance. An answer comes from all of them together, so their rows are alike.
    name
        What was run.
    """
    found = [
        *op_events(log.turns, num_ranks=num_ranks),
        *request_events(log, records),
        *tier_events(log),
    ]
    return timeline_lines(found, name=name, clock=log.clock)


def timeline_lines(found: Sequence[TraceEvent], *, name: str, clock: str) -> Iterator[str]:
    """Yield the lines of a file with these events, in the order of their times."""
    names = [each for each in found if each.phase == "M"]
    timed = sorted((each for each in found if each.phase != "M"), key=_order)
    about = json.dumps({"run": name, "clock": clock})
    yield f'{{"displayTimeUnit":"ns","otherData":{about},"traceEvents":[\n'
    lines = [each.line() for each in (*names, *timed)]
    yield from (f"{line},\n" for line in lines[:-1])
    yield from lines[-1:]
    yield "\n]}\n"


def op_events(
    turns: Iterable[TurnRecord], *, num_ranks: int | Sequence[int], roles: Sequence[str] = ()
) -> Iterator[TraceEvent]:
    """Yield the steps and transfers of all instances, and the arrows between them.

    Parameters
    ----------
    turns
        Of the engine.
    num_ranks
        Ranks of each instance that has made a step; or those of every instance, by its number.
    roles
        What the instances do, for their names.
    """
    forwards, transfers = _answered(turns)
    if isinstance(num_ranks, int):
        ranks = dict.fromkeys(sorted({forward.instance for forward, _ in forwards}), num_ranks)
    else:
        ranks = dict(enumerate(num_ranks))
    yield from _instance_names(ranks, roles)
    rows: dict[OpId, tuple[Row, Completion]] = {}
    yield from _transfer_events(transfers, rows)
    num_arrows = 0
    for forward, answer in forwards:
        pid = _instance_pid(forward.instance)
        for rank in range(ranks[forward.instance]):
            yield from _slices(_step_name(forward), answer, (pid, rank + 1), _step_args(forward))
        for op_id in forward.after:
            if op_id in rows:
                num_arrows += 1
                yield from _arrow(num_arrows, *rows[op_id], (pid, 1), answer)
    for forward, answer in forwards:
        rows[forward.op_id] = (_instance_pid(forward.instance), 1), answer
    for transfer, _ in transfers:
        if transfer.source.instance == transfer.target.instance:
            continue
        for op_id in transfer.after:
            if op_id in rows:
                num_arrows += 1
                yield from _arrow(num_arrows, *rows[op_id], *rows[transfer.op_id])


def _answered(
    turns: Iterable[TurnRecord],
) -> tuple[list[tuple[Forward, Completion]], list[tuple[Transfer, Completion]]]:
    """Return the ops that have had their answer, in the order of the answers."""
    forwards: list[tuple[Forward, Completion]] = []
    transfers: list[tuple[Transfer, Completion]] = []
    open_forwards: dict[OpId, Forward] = {}
    open_transfers: dict[OpId, Transfer] = {}
    for turn in turns:
        for command in turn.commands:
            if isinstance(command, Forward):
                open_forwards[command.op_id] = command
            elif isinstance(command, Transfer):
                open_transfers[command.op_id] = command
        for answer in turn.answers:
            if isinstance(answer, Completion):
                if answer.op_id in open_forwards:
                    forwards.append((open_forwards.pop(answer.op_id), answer))
                elif answer.op_id in open_transfers:
                    transfers.append((open_transfers.pop(answer.op_id), answer))
    return forwards, transfers


def _instance_names(ranks: Mapping[int, int], roles: Sequence[str]) -> Iterator[TraceEvent]:
    for instance, num_ranks in ranks.items():
        pid = _instance_pid(instance)
        role = f" ({roles[instance]})" if roles else ""
        yield _named("process_name", f"instance {instance}{role}", (pid, 0))
        for rank in range(num_ranks):
            yield _named("thread_name", f"rank {rank}", (pid, rank + 1))


def _transfer_events(
    transfers: Sequence[tuple[Transfer, Completion]], rows: dict[OpId, tuple[Row, Completion]]
) -> Iterator[TraceEvent]:
    """Yield the slices of the links; transfers that overlap are on rows of their own."""
    if transfers:
        yield _named("process_name", "links", (_LINKS_PID, 0))
    by_link: dict[str, list[tuple[Transfer, Completion]]] = {}
    for transfer, answer in transfers:
        link = _link_name(transfer.source, transfer.target)
        by_link.setdefault(link, []).append((transfer, answer))
    tid = 0
    for link, those in sorted(by_link.items()):
        those.sort(key=lambda each: (each[1].started_at, each[1].op_id))
        free: list[int] = []  # rows that nothing is on any more, the lowest first
        busy: list[tuple[int, int]] = []  # (until, row)
        num_rows = 0
        for transfer, answer in those:
            while busy and busy[0][0] <= answer.started_at:
                heappush(free, heappop(busy)[1])
            if not free:
                num_rows += 1
                heappush(free, tid + num_rows)
                number = f" ({num_rows})" if num_rows > 1 else ""
                yield _named("thread_name", f"{link}{number}", (_LINKS_PID, tid + num_rows))
            row = (_LINKS_PID, heappop(free))
            # One that takes no time must not be on a row with the next one at that time.
            heappush(busy, (max(answer.finished_at, answer.started_at + 1), row[1]))
            rows[transfer.op_id] = row, answer
            args = {
                "blocks": len(transfer.source_ids),
                "frees its source": transfer.releases_source,
                "for requests": [request_id for request_id, _ in transfer.attempts],
            }
            yield from _slices(f"{len(transfer.source_ids)} blocks", answer, row, args)
        tid += num_rows


def _slices(name: str, answer: Completion, row: Row, args: Args) -> Iterator[TraceEvent]:
    """Yield the slice of an op, and within it those of its layers where they are known."""
    start, end = answer.started_at, answer.finished_at
    whole = {"op": answer.op_id, "outcome": str(answer.outcome), **args}
    if answer.reason:
        whole["reason"] = answer.reason
    yield TraceEvent("X", name, start, row, end - start, whole)
    for layer, finished_at in enumerate(answer.layers_finished_at):
        yield TraceEvent("X", f"layer {layer}", start, row, finished_at - start)
        start = finished_at


def _arrow(
    number: int, row: Row, source: Completion, target_row: Row, target: Completion
) -> Iterator[TraceEvent]:
    """Yield an arrow from the start of an op to the one that waits for it, if that came so far."""
    if target.finished_at < source.started_at:
        return  # it failed, or was cancelled, before
    more: dict[str, object] = {"cat": "gate", "id": number}
    yield TraceEvent("s", "gates", source.started_at, row, more=more)
    at = max(target.started_at, source.started_at)
    yield TraceEvent("f", "gates", at, target_row, more={**more, "bp": "e"})


def request_events(log: RunLog, records: Sequence[RequestRecord]) -> Iterator[TraceEvent]:
    """Yield a span for each request, and within it what it did."""
    yield requests_name()
    changes: dict[RequestId, list[tuple[int, str]]] = {}
    for at, event in log.timed_events():
        if isinstance(event, RequestAdmitted):
            changes.setdefault(event.request_id, []).append((at, "admitted"))
        elif isinstance(event, AttemptEnded):
            changes.setdefault(event.request_id, []).append((at, str(event.reason)))
    for record in records:
        if record.ended_at is not None:
            yield from _request_spans(record, changes.get(record.request.request_id, []))


def requests_name() -> TraceEvent:
    """Return the name of the process that the spans of requests belong to."""
    return _named("process_name", "requests", (_REQUESTS_PID, 0))


def _request_spans(
    record: RequestRecord, changes: Sequence[tuple[int, str]]
) -> Iterator[TraceEvent]:
    request = record.request
    args = {
        "status": str(record.status),
        "input tokens": request.num_input_tokens,
        "output tokens": record.num_made_tokens,
        "blocks": len(request.block_keys),
        "hit blocks": sum(record.num_hit_blocks_by_tier),
    }
    yield from span_events(request, _phases(record, changes), args, ended_at=record.ended_at)


def span_events(
    request: Request, phases: Iterable[tuple[int, str]], args: Args, *, ended_at: int | None
) -> Iterator[TraceEvent]:
    """Yield the span of a request, `queued` at first.

    Parameters
    ----------
    request
        Which.
    phases
        When (ns) it came to which phase after that; one without a name is not shown.
    args
        What else to tell.
    ended_at
        When it ended (ns).
    """
    start, end = request.arrived_at, ended_at or request.arrived_at
    row = (_REQUESTS_PID, 0)
    more = {"cat": "request", "id": str(request.request_id)}
    marks = [(start, "queued"), *phases, (end, "")]
    name = f"request {request.request_id}"
    yield TraceEvent("b", name, start, row, args=args, more=more)
    for (began_at, phase), (ended_at, _) in pairwise(marks):
        if ended_at > began_at and phase:
            yield TraceEvent("b", phase, began_at, row, more=more)
            yield TraceEvent("e", phase, ended_at, row, more=more)
    yield TraceEvent("e", name, max(end, start), row, more=more)


def _phases(record: RequestRecord, changes: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield when a request came to which phase, after it was queued."""
    token_at = record.first_token_at
    for (at, change), following in zip(changes, [*changes[1:], None], strict=False):
        if change != "admitted":
            yield at, "" if following is None else change
            continue
        if token_at is not None and token_at <= at:
            yield at, "resumed"
            continue
        yield at, "prefill"
        until = record.ended_at if following is None else following[0]
        if token_at is not None and (until is None or token_at <= until):
            yield token_at, "decode"


def tier_events(log: RunLog, *, instance: int = 0) -> Iterator[TraceEvent]:
    """Yield what the blocks of each tier are used for, whenever that changes."""
    row = (_instance_pid(instance), 0)
    for at, tier, num_in in log.uses():
        args = dict(zip(map(str, USES), num_in, strict=True))
        yield TraceEvent("C", f"{tier_name(tier)} blocks", at, row, args=args)


def _step_name(forward: Forward) -> str:
    num_tokens = sum(piece.num_tokens for piece in forward.prefill)
    if not num_tokens:
        return f"decode {forward.num_decodes} x {forward.num_steps}"
    with_them = f" + decode {forward.num_decodes}" if forward.num_decodes else ""
    return f"prefill {num_tokens}{with_them}"


def _step_args(forward: Forward) -> Args:
    requests = [piece.request_id for piece in forward.prefill]
    return {
        "steps": forward.num_steps,
        "prefill tokens": sum(piece.num_tokens for piece in forward.prefill),
        "prefill requests": requests if len(requests) <= _MAX_NAMED else len(requests),
        "decodes": forward.num_decodes,
        "context tokens": forward.context_tokens,
        "waits for": list(forward.after),
    }


def _link_name(source: Place, target: Place) -> str:
    ends = [f"instance {place.instance} {tier_name(place.tier)}" for place in (source, target)]
    if source.instance == target.instance:
        ends[1] = tier_name(target.tier)
    return " -> ".join(ends)


def _named(kind: str, name: str, row: Row) -> TraceEvent:
    return TraceEvent("M", kind, 0, row, args={"name": name})


def _instance_pid(instance: int) -> int:
    return _FIRST_INSTANCE_PID + instance


_FIRST_PHASES: Final = {"X": 0, "s": 1, "f": 2, "b": 3, "e": 3, "C": 4}


def _order(event: TraceEvent) -> tuple[int, int, int]:
    """Sort by time; at one time an outer slice before an inner one, and slices before arrows."""
    return event.at_ns, _FIRST_PHASES[event.phase], -(event.duration_ns or 0)


def _microseconds(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
