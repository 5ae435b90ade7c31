"""Whole replays on real tensors: every byte that is read is right, and a wrong one is found."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.core.sequence import Status
from kvsim.testing.backends.belongings import belongings
from kvsim.trace import load

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim import ReplayResult

pytest.importorskip("paddle", reason="the tensor backend needs PaddlePaddle")

GPU, CPU = 0, 1


def expect_all_well(result: ReplayResult, *, ends: set[Status]) -> None:
    """Assert that every request came to its end, every byte was right and no thread is left."""
    assert result.tensors is not None
    assert result.tensors["wrong_bytes"] == 0, result.notes
    assert result.tensors["blocks_checked"] > 0
    assert result.clock == "wall"
    assert {record.status for record in result.records} == ends
    assert not [each for each in threading.enumerate() if each.name.startswith("kvsim rank")]


def swapped_blocks(result: ReplayResult) -> tuple[int, int]:
    """Return the blocks that went down and up in transfers that are done."""
    done = [each for each in result.transfer_records if each.outcome == "done"]
    down, up = (sum(each.num_blocks for each in done if each.target == tier) for tier in (CPU, GPU))
    assert result.tensors is not None
    assert result.tensors["blocks_swapped"] == down + up
    return down, up


@pytest.mark.parametrize(
    ("num_requests", "cpu_percent", "least_swapped"),
    [(400, 40, 100), pytest.param(2000, 15, 1_000, marks=pytest.mark.thorough)],
)
def test_requests_of_conversations_swap_and_read_no_wrong_byte(
    num_requests: int, cpu_percent: int, least_swapped: int, public_traces: Path, tmp_path: Path
) -> None:
    path = public_traces / "mooncake" / "conversation_trace.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    trace = load(path, limit=num_requests)
    num_unique = len({key for request in trace.requests for key in request.block_keys})
    result = kvsim.replay(
        trace,
        gpu_blocks=num_unique * 5 // 100,
        cpu_blocks=num_unique * cpu_percent // 100,
        backend="paddle",
        ranks=2,
        time_scale="auto",
        record=tmp_path / "run.turns",
        verify=True,
    )
    expect_all_well(result, ends={Status.FINISHED})
    assert result.recording is not None
    assert result.recording["identical"], result.notes
    assert result.recording["turns"] > num_requests
    assert min(swapped_blocks(result)) > least_swapped
    assert len(result.records) == num_requests


@pytest.mark.parametrize("seed", [0, 1])
def test_with_faults_too_every_byte_that_counts_is_right(seed: int) -> None:
    result = kvsim.replay(
        "sample:chat",
        gpu_blocks=400,
        cpu_blocks=1200,
        limit=150,
        backend="paddle",
        ranks=2,
        time_scale=50,
        seed=seed,
        fail_rate=0.01,
        delay_rate=0.02,
        hang_rate=0.003,
        delay_ns=2_000_000,
        settle_ns=5_000_000,
        transfer_timeout_ns=200_000_000,
        forward_timeout_ns=500_000_000,
        max_attempts=100,
    )
    expect_all_well(result, ends={Status.FINISHED})
    assert min(swapped_blocks(result)) > 0
    assert {each.outcome for each in result.transfer_records} > {"done"}


def test_ranks_in_processes_swap_and_read_no_wrong_byte_and_leave_nothing(tmp_path: Path) -> None:
    held = belongings()
    result = kvsim.replay(
        "sample:chat",
        gpu_blocks=400,
        cpu_blocks=1200,
        limit=100,
        backend="paddle",
        ranks=2,
        workers="processes",
        time_scale=100,
        record=tmp_path / "run.turns",
        verify=True,
    )
    expect_all_well(result, ends={Status.FINISHED})
    assert min(swapped_blocks(result)) > 0
    assert result.recording is not None
    assert result.recording["identical"], result.notes
    assert result.config.workers == "processes"
    left = [what for what, _ in belongings() - held if what.startswith(("child", "/dev/shm"))]
    assert left == []
