from __future__ import annotations

from fractions import Fraction

import pytest

from kvsim.analysis.metrics import (
    DEFINITIONS,
    HitCounts,
    busy_ns,
    count_hits,
    latency_ms,
    num_warmup,
    transfer_figures,
    ttft_ns,
)
from kvsim.analysis.records import RequestRecord, TransferRecord
from kvsim.core.sequence import Status
from kvsim.types import Request


def record(
    num_tokens: int, num_blocks: int, gpu: int, cpu: int, status: Status = Status.FINISHED
) -> RequestRecord:
    request = Request(
        request_id=0,
        arrived_at=100,
        block_keys=tuple(range(num_blocks)),
        num_input_tokens=num_tokens,
        num_output_tokens=1,
    )
    return RequestRecord(request, status, gpu, cpu)


def transfer(
    started_at: int,
    finished_at: int,
    *,
    num_blocks: int = 1,
    up: bool = True,
    outcome: str = "done",
) -> TransferRecord:
    return TransferRecord(
        op_id=1,
        source=1 if up else 0,
        target=0 if up else 1,
        num_blocks=num_blocks,
        issued_at=0,
        started_at=started_at,
        finished_at=finished_at,
        outcome=outcome,
        settled_at=None,
        request_id=None,
    )


def test_a_leading_run_is_split_between_the_tiers_by_each_definition() -> None:
    # 10 tokens in blocks of 4: a full hit, 1 block on the GPU and 2 below.
    counts = count_hits([record(10, 3, gpu=1, cpu=2)], block_size=4)
    assert list(counts) == list(DEFINITIONS)
    assert counts["block"] == counts["prefix_block"] == HitCounts(gpu=1, cpu=2, total=3)
    # tokens: 4 on the GPU, the other 6 of the 10 below; the last block has only 2
    assert counts["prefix_token"] == HitCounts(gpu=4, cpu=6, total=10)
    # usable: (10 - 1) // 4 = 2 blocks, one in each tier
    assert counts["prefix_token_usable"] == HitCounts(gpu=4, cpu=4, total=10)


def test_a_full_hit_of_full_blocks_leaves_one_block_unusable() -> None:
    # 8 tokens, 2 blocks on the GPU: one token must be computed, so (8 - 1) // 4 = 1 block helps.
    counts = count_hits([record(8, 2, gpu=2, cpu=0)], block_size=4)
    assert counts["prefix_token"] == HitCounts(gpu=8, cpu=0, total=8)
    assert counts["prefix_token_usable"] == HitCounts(gpu=4, cpu=0, total=8)


def test_a_refused_request_counts_as_a_miss() -> None:
    records = [record(8, 2, gpu=2, cpu=0), record(12, 3, gpu=0, cpu=0, status=Status.REFUSED)]
    counts = count_hits(records, block_size=4)
    assert counts["block"] == HitCounts(gpu=2, cpu=0, total=5)
    assert counts["prefix_token"].total == 20


def test_a_rate_of_nothing_is_zero() -> None:
    assert count_hits([record(3, 0, gpu=0, cpu=0)], 4)["block"].figure() == {
        "hits": 0,
        "total": 0,
        "rate": 0.0,
    }


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 0), (0.5, 6015), (0.29, 3488), (0.999, 12018), (1e-5, 0)]
)
def test_the_warm_up_is_a_share_rounded_down(share: float, expected: int) -> None:
    # 12,031 / 2 = 6,015.5; .29 * 12,031 = 3,488.99; .999 * 12,031 = 12,018.969
    assert num_warmup(share, 12_031) == expected


def test_the_warm_up_is_counted_in_decimal() -> None:
    assert Fraction(0.29) * 100 < 29  # the float is a little less than its name says
    assert num_warmup(0.29, 100) == 29


def test_percentiles_are_times_that_occurred() -> None:
    # Of 10 times, the 5th (p50), the 9th (p90) and the 10th (p99: 9.9 rounded up).
    times_ns = [million * 10**6 for million in (10, 9, 8, 7, 6, 5, 4, 3, 2, 1)]
    assert latency_ms(times_ns) == {"p50": 5.0, "p90": 9.0, "p99": 10.0, "mean": 5.5}


def test_there_is_no_latency_without_a_first_token() -> None:
    assert ttft_ns([record(1, 0, 0, 0)]) == []
    assert latency_ms([]) is None


def test_the_time_to_first_token_begins_at_the_arrival() -> None:
    assert ttft_ns([record(1, 0, 0, 0)._replace(first_token_at=350)]) == [250]


def test_transfers_that_overlap_are_busy_once() -> None:
    # 0-10 and 5-12 make 12, 3-4 lies inside, a gap, and 20-21 makes 1 more.
    spans = [transfer(5, 12), transfer(0, 10), transfer(20, 21), transfer(3, 4)]
    assert busy_ns(spans) == 13
    assert busy_ns([]) == 0


def test_only_transfers_that_are_done_move_bytes() -> None:
    transfers = [
        transfer(0, 2_000_000, num_blocks=3),
        transfer(0, 9_000_000, num_blocks=5, outcome="failed"),
        transfer(1_000_000, 4_000_000, num_blocks=2, up=False),
    ]
    figures = transfer_figures(transfers, block_bytes=10)
    assert figures["swap_in"] == {
        "count": 2, "done": 1, "failed": 1, "cancelled": 0, "timed_out": 0,
        "blocks": 3, "bytes": 30, "busy_ms": 2.0,
    }  # fmt: skip
    assert (figures["swap_out"]["count"], figures["swap_out"]["bytes"]) == (1, 20)
