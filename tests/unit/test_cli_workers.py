"""Worker processes on the command line: what is said, and the exit code, when they cannot be."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from kvsim.cli import main
from kvsim.testing.backends.belongings import belongings

if TYPE_CHECKING:
    import pytest

COMMAND = (
    *("replay", "sample:chat", "--limit", "9", "--gpu-blocks", "300"),
    *("--backend", "paddle", "--time-scale", "1000"),
)


def test_a_worker_that_cannot_start_is_one_line_and_exit_code_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert main([*COMMAND, "--workers", "processes"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kvsim: a worker process could not be started: ")
    assert err.count("\n") == 1


def test_control_c_while_workers_start_is_130_and_leaves_no_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    held = belongings()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        assert main([*COMMAND, "--workers", "processes"]) == 130
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert capsys.readouterr().err == "kvsim: interrupted\n"
    assert not [what for what, _ in belongings() - held if what.startswith("child process")]


def test_settings_of_workers_that_make_no_sense_are_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for options, message in (
        (("--workers", "proces"), "unknown workers 'proces'. Did you mean 'processes'?"),
        (("--worker-timeout-ns", "0"), "worker_timeout_ns must be an integer of at least 1, not 0"),
        (
            ("--backend", "sim", "--workers", "processes"),
            "workers is for a backend on the wall clock",
        ),
    ):
        assert main([*COMMAND, *options]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
