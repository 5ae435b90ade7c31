from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest

from kvsim.analysis.frames import (
    REQUEST_COLUMNS,
    TRANSFER_COLUMNS,
    requests_frame,
    transfers_frame,
)
from kvsim.analysis.records import RequestRecord, TransferRecord
from kvsim.core.sequence import Status
from kvsim.types import Request

if TYPE_CHECKING:
    from pathlib import Path

REQUEST = Request(
    request_id=0,
    arrived_at=1_000_000,
    block_keys=("a", "b", "c"),
    num_input_tokens=10,
    num_output_tokens=5,
    session_id="s1",
)
FINISHED = RequestRecord(
    request=REQUEST,
    status=Status.FINISHED,
    num_gpu_hit_blocks=2,
    num_cpu_hit_blocks=1,
    num_in_flight_hit_blocks=1,
    admitted_at=3_000_000,
    first_token_at=5_000_000,
    ended_at=13_000_000,
    num_made_tokens=5,
    num_attempts=1,
)
REFUSED = RequestRecord(REQUEST, Status.REFUSED, 0, 0, ended_at=1_000_000)
TRANSFER = TransferRecord(4, 1, 0, 3, 10, 20, 30, "done", None, 17)


def frame_of(*records: RequestRecord, num_warmup: int = 0) -> pd.DataFrame:
    return requests_frame(records, block_size=4, num_warmup=num_warmup, clock="virtual")


def transfers_of(*records: TransferRecord) -> pd.DataFrame:
    return transfers_frame(records, rank_block_bytes=100, num_ranks=8, clock="virtual")


def test_a_request_that_finished_has_its_times_and_hits() -> None:
    row = frame_of(FINISHED).iloc[0]
    # 1 ms to 3 ms in the queue, first token at 5 ms; 4 more tokens in 8 ms.
    assert (row["queue_ms"], row["ttft_ms"], row["tpot_ms"]) == (2.0, 4.0, 2.0)
    # 3 blocks of 4 tokens, but the prompt has 10
    assert (row["num_blocks"], row["num_hit_tokens"]) == (3, 10)
    assert (row["session_id"], row["status"], row["clock"]) == ("s1", "finished", "virtual")


def test_times_that_never_came_are_missing() -> None:
    row = frame_of(REFUSED._replace(request=REQUEST)).iloc[0]
    for name in ("admitted_at_ns", "first_token_at_ns", "queue_ms", "ttft_ms", "tpot_ms"):
        assert row[name] is pd.NA
    assert row["ended_at_ns"] == 1_000_000


def test_one_token_of_output_has_no_time_between_tokens() -> None:
    assert frame_of(FINISHED._replace(num_made_tokens=1)).iloc[0]["tpot_ms"] is pd.NA


def test_the_warm_up_is_marked() -> None:
    assert frame_of(FINISHED, num_warmup=1)["is_warmup"].tolist() == [True]
    assert frame_of(FINISHED)["is_warmup"].tolist() == [False]


def test_the_bytes_of_a_transfer_are_those_of_one_rank_and_of_all() -> None:
    row = transfers_of(TRANSFER).iloc[0]
    assert (row["num_bytes_per_rank"], row["num_bytes"]) == (300, 2400)
    assert (row["direction"], row["source"], row["target"]) == ("swap_in", "cpu", "gpu")
    down = transfers_of(TRANSFER._replace(source=0, target=1)).iloc[0]
    assert (down["direction"], down["source"], down["target"]) == ("swap_out", "gpu", "cpu")


@pytest.mark.parametrize("records", [(), (FINISHED,), (REFUSED,), (FINISHED, REFUSED)])
def test_the_dtypes_of_requests_do_not_depend_on_the_rows(
    records: tuple[RequestRecord, ...], tmp_path: Path
) -> None:
    frame = frame_of(*records)
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == REQUEST_COLUMNS
    frame.to_parquet(tmp_path / "x.parquet", index=False)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "x.parquet"), frame)


@pytest.mark.parametrize("records", [(), (TRANSFER, TRANSFER._replace(request_id=None))])
def test_the_dtypes_of_transfers_do_not_depend_on_the_rows(
    records: tuple[TransferRecord, ...], tmp_path: Path
) -> None:
    frame = transfers_of(*records)
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == TRANSFER_COLUMNS
    frame.to_parquet(tmp_path / "x.parquet", index=False)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "x.parquet"), frame)
