from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import joblib
import numpy as np
import pandas as pd
import pytest
from joblib.parallel import ThreadingBackend  # what a backend of others looks like

import kvsim
from kvsim.analysis.plots import new_figure
from kvsim.errors import ConfigError, UserError
from kvsim.policies import POLICIES
from kvsim.sweeping import cells
from kvsim.sweeping.config import sweep_config
from tests.unit.sweeping.story import table_of, write_traces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.trace import Trace

LRU_AT_4, FIFO_AT_4, AT_100 = 12 / 44, 12 / 44, 16 / 44


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with the traces, and work in it."""
    write_traces(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted(folder.glob("*.parquet"))}


def test_the_rates_are_those_worked_out_by_hand(desk: Path) -> None:
    table = kvsim.sweep(table_of(), jobs=1)
    rates = table.rates()
    assert rates[["trace", "gpu_blocks", "lru", "fifo"]].to_numpy().tolist() == [
        ["three.jsonl", 4, 14 / 26, 14 / 26],
        ["three.jsonl", 100, 14 / 26, 14 / 26],
        ["four.jsonl", 4, LRU_AT_4, FIFO_AT_4],
        ["four.jsonl", 100, AT_100, AT_100],
    ]


def test_a_cell_is_the_replay_that_it_says(desk: Path) -> None:
    settings = {"warmup": 0.25, "keep_outputs": False}
    table = kvsim.sweep(
        table_of(policies=["fifo"], gpu_blocks=[4], cpu_blocks=[3], mode="timed",
                 settings=settings, traces=["four.jsonl"]),
        jobs=1,
    )  # fmt: skip
    alone = kvsim.replay("four.jsonl", policy="fifo", gpu_blocks=4, cpu_blocks=3, **settings)  # type: ignore[arg-type]
    rows = {(row["figure"], row["tier"]): row for row in table.frame.to_dict("records")}
    for name, hits in alone.hits.items():
        row = rows[name, "all"]
        assert [row["hits"], row["total"], row["value"]] == list(hits.values())
    for tier in ("gpu", "cpu"):
        assert rows["block", tier]["hits"] == alone.tiers[tier]["hits"]["block"]["hits"]
    values = table.frame.set_index("figure")["value"]
    assert alone.ttft_ms is not None
    assert alone.swaps is not None
    assert values["ttft_p50"] == alone.ttft_ms["p50"]
    assert values["swap_out_blocks"] == alone.swaps["swap_out"]["blocks"] > 0
    assert values["requests_finished"] == 4
    assert table.frame.attrs["clock"] == "virtual"


def test_the_result_is_the_same_bytes_with_any_number_of_workers(desk: Path) -> None:
    for name, jobs in (("one", 1), ("two", 2)):
        kvsim.sweep(table_of(), out=name, jobs=jobs)
    one, two = (files(desk / name) for name in ("one", "two"))
    assert list(one) == ["sweep.parquet"]
    assert one == two


def test_the_saved_table_is_the_frame(desk: Path) -> None:
    table = kvsim.sweep(table_of(policies=["lru", "nosuch"]), out="out", jobs=1)
    saved = pd.read_parquet("out/sweep.parquet")
    assert saved.attrs == table.frame.attrs
    pd.testing.assert_frame_equal(saved, table.frame)
    about = json.loads(Path("out/sweep.json").read_text())
    assert about["cells"] == {"total": 8, "done": 4, "failed": 4}
    assert about["traces"]["three.jsonl"]["num_requests"] == 3


def test_what_is_finished_is_not_run_again(desk: Path) -> None:
    kvsim.sweep(table_of(policies=["lru"]), out="out", jobs=1)
    before = {file: file.stat().st_ino for file in Path("out/cells").iterdir()}
    told: list[tuple[int, int]] = []
    kvsim.sweep(table_of(), out="out", jobs=1, progress=lambda *now: told.append(now))
    # 4 of the 8 cells are there.
    assert told == [(4, 8), (5, 8), (6, 8), (7, 8), (8, 8)]
    assert {file: file.stat().st_ino for file in before} == before


def test_other_names_for_the_same_replay_are_one_cell(desk: Path) -> None:
    configs = [{"name": "a"}, {"name": "b", "swap_in": "overlap"}, {"name": "c", "warmup": 0.5}]
    table = kvsim.sweep(table_of(configs=configs), jobs=1)
    assert table.num_cells["total"] == 16  # a and b have equal settings, c has not
    assert table.rates()["config"].tolist() == [*"aabbcc"] * 2


def test_a_changed_trace_is_another_cell(desk: Path) -> None:
    kvsim.sweep(table_of(traces=["three.jsonl"]), out="out", jobs=1)
    Path("four.jsonl").replace("three.jsonl")
    table = kvsim.sweep(table_of(traces=["three.jsonl"]), out="out", jobs=1)
    assert table.rates()["lru"].tolist() == [LRU_AT_4, AT_100]
    assert len(files(Path("out/cells"))) == 8


def test_a_cell_that_cannot_run_is_a_row_that_says_why(desk: Path) -> None:
    # A prompt of `three` needs 2 blocks at least, one of `four` too.
    table = kvsim.sweep(table_of(gpu_blocks=[1, 100], policies=["lru", "nosuch"]), jobs=1)
    rows = table.frame[["trace", "gpu_blocks", "policy", "status", "message"]].drop_duplicates()
    assert rows["status"].tolist() == ["failed", "failed", "done", "failed"] * 2
    assert rows["message"].iloc[0].startswith("no request of three finished: all 3 were refused")
    assert rows["message"].iloc[1].startswith("unknown policy 'nosuch'.")
    failed = table.frame[table.frame["status"] == "failed"]
    assert len(failed) == 6
    assert failed["figure"].isna().all()
    assert table.failures[0].startswith("lru on three.jsonl, config default, 1 GPU + 0 CPU blocks")


def test_settings_that_do_not_fit_the_trace_are_rows_without_a_size(desk: Path) -> None:
    sweep = {
        "traces": ["three.jsonl"],
        "policies": ["lru"],
        "configs": [{"name": "none", "gpu_gib": 0.0}, {"name": "some", "gpu_blocks": 4}],
    }
    table = kvsim.sweep(sweep, out="out", jobs=1)
    assert table.num_cells == {"total": 2, "done": 1, "failed": 1}
    assert "gpu_gib must hold a block at least" in table.failures[0]
    assert table.frame["gpu_blocks"].isna().tolist().count(True) == 1
    (ax,) = table.plot(ax=new_figure().add_subplot())
    assert [len(np.asarray(line.get_xdata())) for line in ax.lines] == [1]


def test_a_cell_that_failed_is_tried_again(desk: Path) -> None:
    table = table_of(policies=["nosuch"], gpu_blocks=[4], traces=["three.jsonl"])
    told: list[tuple[int, int]] = []
    for _ in range(2):
        kvsim.sweep(table, out="out", jobs=1, progress=lambda *now: told.append(now))
    assert told == [(0, 1), (1, 1)] * 2


def test_a_policy_that_raises_anything_costs_its_own_cells(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(context: object) -> Never:
        raise ZeroDivisionError("of mine")

    monkeypatch.setitem(POLICIES, "broken", broken)
    table = kvsim.sweep(table_of(policies=["broken", "lru"]), jobs=1)
    assert table.num_cells == {"total": 8, "done": 4, "failed": 4}
    assert "ZeroDivisionError: of mine (" in table.failures[0]


@pytest.mark.parametrize("damage", [b"", b"PAR1", None])
def test_a_file_that_is_no_cell_is_run_again(desk: Path, damage: bytes | None) -> None:
    table = table_of(traces=["three.jsonl"], policies=["lru"])
    first = kvsim.sweep(table, out="out", jobs=1).frame
    one, two = sorted(Path("out/cells").iterdir())
    one.write_bytes(two.read_bytes() if damage is None else damage)  # two's is not about one
    pd.testing.assert_frame_equal(kvsim.sweep(table, out="out", jobs=1).frame, first)
    assert one.read_bytes() not in (damage, two.read_bytes())


def test_a_trace_is_read_once_by_a_process(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(path: str, **options: Any) -> Trace:  # noqa: ANN401  (what is passed on)
        read.append(Path(path).name)
        return load(path, **options)

    load = kvsim.load_trace
    monkeypatch.setattr(cells, "load", counted)
    kvsim.sweep(table_of(), jobs=1)
    # Once when the cells are planned, and once more for all the cells of it.
    assert read == ["three.jsonl", "four.jsonl"] * 2


def test_a_trace_that_changes_while_the_sweep_runs_is_noticed(desk: Path) -> None:
    def change(done: int, total: int) -> None:
        if done == 0:
            Path("four.jsonl").replace("three.jsonl")

    table = kvsim.sweep(table_of(traces=["three.jsonl"]), jobs=1, progress=change)
    assert table.num_cells["failed"] == 4
    assert "when the sweep began: start it again" in table.failures[0]


@pytest.mark.parametrize(("text", "num_cells"), [("a = 1\n", 2), ("a = 2\n", 4)])
def test_an_edited_policy_is_another_cell(
    desk: Path, monkeypatch: pytest.MonkeyPatch, text: str, num_cells: int
) -> None:
    monkeypatch.syspath_prepend(desk)
    monkeypatch.delitem(sys.modules, "mine_for_sweeps", raising=False)
    digests: set[str] = set()
    for version in ("a = 1\n", text):
        (desk / "mine_for_sweeps.py").write_text(version)
        table = kvsim.sweep(table_of(policies=["mine_for_sweeps:Mine"], gpu_blocks=[4]), jobs=1)
        digests.update(table.frame["cell"])
    assert len(digests) == num_cells


def test_an_edited_file_with_a_policy_is_another_cell(desk: Path) -> None:
    digests: set[str] = set()
    for version in ("a = 1\n", "a = 2\n"):
        (desk / "own.py").write_text(version)
        table = kvsim.sweep(table_of(policies=["own.py:Mine"], gpu_blocks=[4]), jobs=1)
        digests.update(table.frame["cell"])
    assert len(digests) == 4  # two traces


@pytest.fixture
def others_backend() -> Iterator[str]:
    joblib.register_parallel_backend("others", ThreadingBackend)
    yield "others"
    del joblib.parallel.BACKENDS["others"]


def test_a_backend_that_is_registered_with_joblib_runs_the_cells(
    desk: Path, others_backend: str
) -> None:
    here = kvsim.sweep(table_of(), jobs=1)
    there = kvsim.sweep(table_of(), jobs=2, executor=others_backend)
    pd.testing.assert_frame_equal(here.frame, there.frame)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor": "rya"}, "executor must be 'local', 'dask' or a backend that is registered"),
        ({"jobs": 0}, "jobs must be an integer of at least 1, not 0"),
        ({"scheduler": "tcp://127.0.0.1:1"}, "scheduler is for executor 'dask'"),
    ],
)
def test_an_executor_that_cannot_be_is_refused(
    desk: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        kvsim.sweep(table_of(), **options)  # type: ignore[arg-type]
    assert str(raised.value).startswith(message)


def test_a_trace_that_cannot_be_read_ends_the_sweep_before_it_begins(desk: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.jsonl: no such file"):
        kvsim.sweep(table_of(traces=["three.jsonl", "nothing.jsonl"]), out="out", jobs=1)
    assert not Path("out").exists()


def test_a_config_object_and_a_file_are_swept_as_a_table_is(desk: Path) -> None:
    Path("sweep.toml").write_text(
        '[sweep]\ntraces = ["three.jsonl", "four.jsonl"]\npolicies = ["lru", "fifo"]\n'
        "gpu_blocks = [4, 100]\n"
    )
    frames = [
        kvsim.sweep(config, jobs=1).frame
        for config in (table_of(), "sweep.toml", sweep_config(table_of(), folder=desk))
    ]
    for frame in frames[1:]:
        pd.testing.assert_frame_equal(frame, frames[0])
