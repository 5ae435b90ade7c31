from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvsim
from kvsim.errors import ConfigError

ROOT = Path(__file__).parents[3]


def test_a_silenced_worker_prints_nothing_and_outlives_ctrl_c() -> None:
    code = (
        "import os, signal, sys\n"
        "from kvsim.sweeping.executors import silence_worker\n"
        "print('before', flush=True)\n"
        "silence_worker()\n"
        "print('out', flush=True)\n"
        "print('err', file=sys.stderr, flush=True)\n"
        "os.system('echo child')\n"
        "signal.raise_signal(signal.SIGINT)\n"
        "os._exit(7)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "before\n", "")


@pytest.mark.parametrize(
    ("module", "executor", "message"),
    [
        ("joblib", "local", r"a sweep needs joblib: pip install 'kvsim\[sweep\]'"),
        ("dask.distributed", "dask", r"needs dask.distributed: pip install 'kvsim\[distributed\]'"),
    ],
)
def test_an_extra_that_is_missing_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch, module: str, executor: str, message: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    sweep = {"traces": ["sample:chat"], "policies": ["lru"], "gpu_blocks": [100]}
    with pytest.raises(ConfigError, match=message):
        kvsim.sweep(sweep, executor=executor)


def test_a_sweep_of_one_process_starts_no_other(tmp_path: Path) -> None:
    code = (
        "import kvsim, os\n"
        "from pathlib import Path\n"
        "kvsim.sweep({'traces': ['sample:chat'], 'policies': ['lru'], 'gpu_blocks': [100],\n"
        "             'settings': {'limit': 10}}, jobs=1)\n"
        "print(Path(f'/proc/self/task/{os.getpid()}/children').read_text())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == ([], "")
