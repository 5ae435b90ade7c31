"""The records of a run as tidy frames. Columns, dtypes and units are those of docs/results.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pandas as pd

from kvsim.analysis.metrics import TIER_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.analysis.records import RequestRecord, TransferRecord

REQUEST_COLUMNS: Final = {
    "request_id": "int64",
    "session_id": "string",
    "status": "string",
    "is_warmup": "bool",
    "arrived_at_ns": "int64",
    "admitted_at_ns": "Int64",
    "first_token_at_ns": "Int64",
    "ended_at_ns": "Int64",
    "queue_ms": "Float64",
    "ttft_ms": "Float64",
    "tpot_ms": "Float64",
    "num_input_tokens": "int64",
    "num_output_tokens": "int64",
    "num_made_tokens": "int64",
    "num_blocks": "int64",
    "num_gpu_hit_blocks": "int64",
    "num_cpu_hit_blocks": "int64",
    "num_in_flight_hit_blocks": "int64",
    "num_hit_tokens": "int64",
    "num_attempts": "int64",
    "num_preemptions": "int64",
    "num_rematched_blocks": "int64",
    "interrupted_ms": "float64",
    "interrupted_before_token_ms": "float64",
    "clock": "string",
}
"""Column of the requests' frame -> dtype. Capital letters: may be missing."""

TRANSFER_COLUMNS: Final = {
    "op_id": "int64",
    "direction": "string",
    "source": "string",
    "target": "string",
    "num_blocks": "int64",
    "num_bytes_per_rank": "int64",
    "num_bytes": "int64",
    "issued_at_ns": "int64",
    "started_at_ns": "int64",
    "finished_at_ns": "int64",
    "settled_at_ns": "Int64",
    "outcome": "string",
    "request_id": "Int64",
    "clock": "string",
}
"""Column of the transfers' frame -> dtype."""

_NS_PER_MS: Final = 10**6


def requests_frame(
    records: Sequence[RequestRecord], *, block_size: int, num_warmup: int, clock: str
) -> pd.DataFrame:
    """Return one row a request, in the order of `records`."""
    rows = [
        (
            record.request.request_id,
            record.request.session_id,
            record.status.value,
            record.request.request_id < num_warmup,
            record.request.arrived_at,
            record.admitted_at,
            record.first_token_at,
            record.ended_at,
            _ms_between(record.request.arrived_at, record.admitted_at),
            _ms_between(record.request.arrived_at, record.first_token_at),
            _tpot_ms(record),
            record.request.num_input_tokens,
            record.request.num_output_tokens,
            record.num_made_tokens,
            len(record.request.block_keys),
            record.num_gpu_hit_blocks,
            record.num_cpu_hit_blocks,
            record.num_in_flight_hit_blocks,
            _hit_tokens(record, block_size),
            record.num_attempts,
            record.num_preemptions,
            record.num_rematched_blocks,
            record.interrupted_ns / _NS_PER_MS,
            record.interrupted_before_token_ns / _NS_PER_MS,
            clock,
        )
        for record in records
    ]
    return frame_of(rows, REQUEST_COLUMNS)


def transfers_frame(
    records: Sequence[TransferRecord], *, rank_block_bytes: int, num_ranks: int, clock: str
) -> pd.DataFrame:
    """Return one row a transfer, in the order of `records`.

    Each rank moves `rank_block_bytes` a block.
    """
    rows = [
        (
            record.op_id,
            "swap_in" if record.target < record.source else "swap_out",
            TIER_NAMES[record.source],
            TIER_NAMES[record.target],
            record.num_blocks,
            record.num_blocks * rank_block_bytes,
            record.num_blocks * rank_block_bytes * num_ranks,
            record.issued_at,
            record.started_at,
            record.finished_at,
            record.settled_at,
            record.outcome,
            record.request_id,
            clock,
        )
        for record in records
    ]
    return frame_of(rows, TRANSFER_COLUMNS)


def frame_of(rows: Iterable[tuple[object, ...]], columns: dict[str, str]) -> pd.DataFrame:
    """Return the rows column by column: one without rows keeps its dtype."""
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    return pd.DataFrame(
        {
            name: pd.Series(list(column), dtype=dtype)
            for (name, dtype), column in zip(columns.items(), values, strict=True)
        }
    )


def _ms_between(start_ns: int, end_ns: int | None) -> float | None:
    return None if end_ns is None else (end_ns - start_ns) / _NS_PER_MS


def _tpot_ms(record: RequestRecord) -> float | None:
    """Return the mean time of an output token after the first; None with fewer than two."""
    num_more = record.num_made_tokens - 1
    if record.first_token_at is None or record.ended_at is None or num_more < 1:
        return None
    return (record.ended_at - record.first_token_at) / num_more / _NS_PER_MS


def _hit_tokens(record: RequestRecord, block_size: int) -> int:
    num_blocks = record.num_gpu_hit_blocks + record.num_cpu_hit_blocks
    return min(num_blocks * block_size, record.request.num_input_tokens)
