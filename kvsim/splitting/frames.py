"""The records of a split run as tidy frames. docs/split.md describes the columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.core.handoff import Handoff
    from kvsim.splitting.watch import PieceRecord, SendRecord

_NS_PER_MS: Final = 10**6

REQUEST_COLUMNS: Final = {
    "request_id": "int64",
    "status": "string",
    "prefill": "Int64",
    "decode": "Int64",
    "arrived_at_ns": "int64",
    "reserved_at_ns": "Int64",
    "prefill_started_at_ns": "Int64",
    "prompt_done_at_ns": "Int64",
    "kv_arrived_at_ns": "Int64",
    "decode_started_at_ns": "Int64",
    "ended_at_ns": "Int64",
    "queue_ms": "Float64",
    "compute_ms": "Float64",
    "hidden_transfer_ms": "Float64",
    "exposed_transfer_ms": "Float64",
    "ttft_ms": "Float64",
    "num_input_tokens": "int64",
    "num_output_tokens": "int64",
    "num_made_tokens": "int64",
    "num_blocks": "int64",
    "num_decode_hit_blocks": "int64",
    "num_sends": "int64",
    "num_sent_blocks": "int64",
    "num_attempts": "int64",
    "num_failures": "int64",
    "num_preemptions": "int64",
    "clock": "string",
}
"""Column of the requests' frame -> dtype. Capital letters: may be missing."""

SEND_COLUMNS: Final = {
    "op_id": "int64",
    "request_id": "int64",
    "attempt": "int64",
    "source": "int64",
    "target": "int64",
    "num_blocks": "int64",
    "num_bytes": "int64",
    "issued_at_ns": "int64",
    "started_at_ns": "int64",
    "finished_at_ns": "int64",
    "outcome": "string",
    "reason": "string",
    "clock": "string",
}
"""Column of the sends' frame -> dtype."""

PIECE_COLUMNS: Final = {
    "op_id": "int64",
    "request_id": "int64",
    "attempt": "int64",
    "instance": "int64",
    "num_tokens": "int64",
    "started_at_ns": "int64",
    "finished_at_ns": "int64",
    "outcome": "string",
    "clock": "string",
}
"""Column of the pieces' frame -> dtype."""


def ttft_ns(handoff: Handoff) -> int | None:
    """Return the time from arrival to the first token that decode can go on from.

    It is made when the prompt is computed, and out when the KV is where it decodes. A request of
    one token has no use for a decode instance.
    """
    at = handoff.first_token_at if handoff.arrived_at is None else handoff.arrived_at
    if at is None or (handoff.arrived_at is None and handoff.decode is not None):
        return None
    return at - handoff.request.arrived_at


def parts_ns(handoff: Handoff) -> tuple[int, int, int] | None:
    """Return (queue, compute, exposed transfer) of a request, which add up to its TTFT."""
    total, queue = ttft_ns(handoff), handoff.queue_ns
    if total is None or queue is None:
        return None
    exposed = handoff.exposed_ns or 0
    return queue, total - queue - exposed, exposed


def requests_frame(handoffs: Iterable[Handoff], *, clock: str) -> pd.DataFrame:
    """Return one row a request, in the order of the trace."""
    rows = [_request_row(each) for each in handoffs]
    return _frame(rows, REQUEST_COLUMNS, clock)


def sends_frame(sends: Iterable[SendRecord], *, block_bytes: int, clock: str) -> pd.DataFrame:
    """Return one row a send, in the order of the answers; a block is sent as `block_bytes`."""
    rows = [each._asdict() | {"num_bytes": each.num_blocks * block_bytes} for each in sends]
    return _frame([_with_ns(row) for row in rows], SEND_COLUMNS, clock)


def pieces_frame(pieces: Iterable[PieceRecord], *, clock: str) -> pd.DataFrame:
    """Return one row for each piece of a prompt that a Forward computed."""
    return _frame([_with_ns(each._asdict()) for each in pieces], PIECE_COLUMNS, clock)


def _with_ns(row: dict[str, object]) -> dict[str, object]:
    return {f"{name}_ns" if name.endswith("_at") else name: value for name, value in row.items()}


def _request_row(each: Handoff) -> dict[str, object]:
    request = each.request
    queue, compute, exposed = parts_ns(each) or (each.queue_ns, None, None)
    hidden = each.hidden_ns if each.arrived_at is not None else None
    return {
        "request_id": request.request_id,
        "status": str(each.status),
        "prefill": None if each.prefill is None else each.prefill.number,
        "decode": None if each.decode is None else each.decode.number,
        "arrived_at_ns": request.arrived_at,
        "reserved_at_ns": each.reserved_at,
        "prefill_started_at_ns": each.prefill_started_at,
        "prompt_done_at_ns": each.prompt_done_at,
        "kv_arrived_at_ns": each.arrived_at,
        "decode_started_at_ns": each.decode_started_at,
        "ended_at_ns": each.ended_at,
        "queue_ms": _ms(queue),
        "compute_ms": _ms(compute),
        "hidden_transfer_ms": _ms(hidden),
        "exposed_transfer_ms": _ms(exposed),
        "ttft_ms": _ms(ttft_ns(each)),
        "num_input_tokens": request.num_input_tokens,
        "num_output_tokens": request.num_output_tokens,
        "num_made_tokens": each.num_made,
        "num_blocks": len(request.block_keys),
        "num_decode_hit_blocks": each.num_decode_hit_blocks,
        "num_sends": each.num_sends,
        "num_sent_blocks": each.num_sent_blocks,
        "num_attempts": each.attempt + 1,
        "num_failures": each.num_failures,
        "num_preemptions": each.num_preemptions,
    }


def _ms(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / _NS_PER_MS


def _frame(rows: list[dict[str, object]], columns: dict[str, str], clock: str) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(columns))
    frame["clock"] = clock
    return frame.astype(columns)
