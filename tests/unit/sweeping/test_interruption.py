"""What is left of a sweep that is stopped: its finished cells, and no process."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvsim.errors import UserError
from kvsim.sweeping.run import sweep

ROOT = Path(__file__).parents[3]

SWEEP: dict[str, object] = {
    "traces": ["sample:chat"],
    "policies": ["lru", "fifo", "belady"],
    "gpu_blocks": [300, 1000, 2000, 3000],
    "settings": {"limit": 700},
}
NUM_CELLS = 12

SCRIPT = f"""
import kvsim, sys

def tell(done, total):
    print(done, flush=True)

try:
    kvsim.sweep({SWEEP!r}, out=sys.argv[1], executor=sys.argv[2], jobs=2, progress=tell)
except KeyboardInterrupt:
    raise SystemExit(130) from None
"""


def started(out: Path, executor: str) -> subprocess.Popen[str]:
    """Start a sweep as the leader of a group of processes, and wait until two cells are done."""
    script = out.parent / "script.py"  # Dask's workers import the main program: it has a guard
    body = "\n".join(f"    {line}" for line in SCRIPT.splitlines())
    script.write_text(f"if __name__ == '__main__':\n{body}\n", encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(script), str(out), executor],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line == "2\n":
            break
    return process


def members(group: int) -> list[int]:
    """Return the processes of a group, but for those that have ended and were not asked for."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:  # it has ended meanwhile
                continue
            state, _, of_group = text.rpartition(") ")[2].split()[:3]
            if int(of_group) == group and state not in "ZX":
                found.append(int(folder.name))
    return found


def wait_for_end(pid: int) -> bool:
    """Return whether a process that need not be a child ends within half a minute."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 30)[0])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("executor", "number", "exit_code"),
    [("local", signal.SIGINT, 130), ("dask", signal.SIGINT, 130), ("local", signal.SIGKILL, -9)],
)
def test_a_sweep_that_is_stopped_keeps_its_cells_and_leaves_no_process(
    tmp_path: Path, executor: str, number: signal.Signals, exit_code: int
) -> None:
    out = tmp_path / "out"
    with started(out, executor) as process:
        assert len(members(process.pid)) > 2  # workers are at work
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # what a terminal does at Ctrl-C
        else:
            process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == exit_code
    if number == signal.SIGINT:
        assert err == ""  # after a kill joblib says which semaphores it has cleaned up
    assert all(map(wait_for_end, members(process.pid)))
    kept = {file.name: file.read_bytes() for file in (out / "cells").glob("*.parquet")}
    assert 2 <= len(kept) < NUM_CELLS
    assert not (out / "sweep.parquet").exists()

    told: list[tuple[int, int]] = []
    table = sweep(SWEEP, out=out, jobs=1, progress=lambda *done: told.append(done))
    assert told[0] == (len(kept), NUM_CELLS)
    assert table.num_cells == {"total": 12, "done": 12, "failed": 0}
    now = {file.name: file.read_bytes() for file in (out / "cells").glob("*.parquet")}
    assert {name: now[name] for name in kept} == kept
    assert len(now) == NUM_CELLS


def kill_a_worker() -> None:
    """Kill a process of joblib's pool, as the system does when memory is short."""
    for pid in members(os.getpgrp()):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        is_child = int(stat.rpartition(") ")[2].split()[1]) == os.getpid()
        if is_child and b"LokyProcess" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
            return


def test_a_worker_that_is_lost_is_told_in_one_line_and_costs_no_cell(tmp_path: Path) -> None:
    told: list[int] = []

    def kill_in_the_middle(done: int, total: int) -> None:
        told.append(done)
        if done == 2:
            kill_a_worker()

    with pytest.raises(UserError, match=r"a worker of the sweep has ended .* run the sweep again"):
        sweep(SWEEP, out=tmp_path, jobs=2, progress=kill_in_the_middle)
    assert 2 <= told[-1] < NUM_CELLS
    assert len(list((tmp_path / "cells").glob("*.parquet"))) == told[-1]
