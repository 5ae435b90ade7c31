"""The same sweep on a Dask cluster of real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dask
import pytest
from dask.distributed import Client, LocalCluster

import kvsim
from kvsim.errors import UserError
from kvsim.sweeping.cells import read_view
from tests.unit.sweeping.story import table_of, write_traces

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Start a scheduler here and two workers in processes of their own, on the loopback."""
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address=None,
    ) as cluster:
        yield cluster


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_traces(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_cluster_makes_the_bytes_that_one_process_makes(
    desk: Path, cluster: LocalCluster
) -> None:
    # One cell in three fails, and is the same row on both.
    table = table_of(policies=["lru", "fifo", "nosuch"])
    kvsim.sweep(table, out="here", jobs=1)
    there = kvsim.sweep(table, out="there", executor="dask", scheduler=cluster.scheduler_address)
    assert there.num_cells == {"total": 12, "done": 8, "failed": 4}
    here_bytes, there_bytes = (
        (desk / name / "sweep.parquet").read_bytes() for name in ("here", "there")
    )
    assert here_bytes == there_bytes


def test_the_workers_run_the_cells_and_read_each_trace_once(
    desk: Path, cluster: LocalCluster
) -> None:
    with Client(cluster, set_as_default=False) as client:
        before = client.run(read_view.cache_info)
        kvsim.sweep(table_of(), executor="dask", scheduler=cluster.scheduler_address)
        after = client.run(read_view.cache_info)
    read = [after[worker].misses - before[worker].misses for worker in after]
    again = [after[worker].hits - before[worker].hits for worker in after]
    # 8 cells of 2 traces.
    assert sum(read) + sum(again) == 8
    assert max(read) <= 2


def test_the_current_client_is_used(desk: Path, cluster: LocalCluster) -> None:
    with Client(cluster):
        told: list[tuple[int, int]] = []
        table = kvsim.sweep(table_of(), executor="dask", progress=lambda *now: told.append(now))
    assert told == [(done, 8) for done in range(9)]
    assert table.num_cells["done"] == 8


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense://x"])
def test_a_scheduler_that_is_not_there_is_told_in_one_line(desk: Path, address: str) -> None:
    quickly = dask.config.set({"distributed.comm.timeouts.connect": "100ms"})
    with quickly, pytest.raises(UserError) as raised:
        kvsim.sweep(table_of(), executor="dask", scheduler=address)
    assert str(raised.value).startswith(f"no Dask scheduler answers at '{address}': ")
