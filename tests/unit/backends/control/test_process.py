"""Processes of a run: they know the key, nobody else does, and they end with whoever began."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from kvsim.backends.control import (
    ChannelError,
    Child,
    Invitation,
    Listener,
    new_key,
    receive_one,
    sleep_on,
    start_child,
)
from tests.unit.backends.control.messages import Note, codec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.backends.control import Channel

MODULE = "tests.unit.backends.control.child"
KEY = new_key()


@contextmanager
def child_at_work() -> Iterator[tuple[Child, Channel[Note]]]:
    """Give a child that has connected."""
    with ExitStack() as closing:
        listener: Listener[Note] = Listener(KEY, codec())  # type: ignore[arg-type]  # some of it
        closing.callback(listener.close)
        child = start_child(("-m", MODULE, "connect"), address=listener.address, key=KEY, index=7)
        closing.callback(child.close)
        while not (channels := listener.accept()):
            assert not child.has_ended, child.output()
            sleep_on([*listener.waiting(), child], timeout_s=60)
        closing.callback(channels[0].close)
        assert receive_one(channels[0], until=monotonic() + 60) == [Note(f"7 {child.pid}")]
        yield child, channels[0]


def test_the_key_is_in_no_command_line_environment_or_file_name() -> None:
    with child_at_work() as (child, _):
        proc = Path(f"/proc/{child.pid}")
        shown = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
        assert KEY not in shown
        assert KEY.hex().encode() not in shown
        assert MODULE.encode() in shown
        files = [str(each.readlink()) for each in (proc / "fd").iterdir()]
        assert all("(deleted)" in each for each in files if each.startswith("/tmp/")), files
    assert "key" not in repr(Invitation) or KEY.hex() not in repr(Invitation)


def test_a_child_ends_with_its_lifeline_also_in_the_middle_of_something() -> None:
    with child_at_work() as (child, channel):
        child._lifeline.close()  # noqa: SLF001  (as when this process dies)
        with pytest.raises(ChannelError):
            receive_one(channel, until=monotonic() + 60)
        assert child._process.wait(60) == 70  # noqa: SLF001


def test_a_frozen_child_is_not_waited_for_and_can_be_killed() -> None:
    with child_at_work() as (child, channel):
        os.kill(child.pid, signal.SIGSTOP)
        assert not child.join(until=monotonic() + 0.01)
        child.kill()
        assert child.join(until=monotonic())
        assert child.how_it_ended() == "was killed by SIGKILL"
        with pytest.raises(ChannelError):
            receive_one(channel, until=monotonic() + 60)


def test_ctrl_c_is_the_parents_to_decide() -> None:
    with child_at_work() as (child, _):
        os.kill(child.pid, signal.SIGINT)
        assert not child.join(until=monotonic() + 0.05)
        os.kill(child.pid, signal.SIGTERM)
        assert child.join(until=monotonic() + 60)
        assert child.how_it_ended() == "was killed by SIGTERM"


def test_a_child_that_fails_tells_why() -> None:
    child = start_child(("-m", MODULE, "fail"), address="unix:nobody", key=KEY)
    try:
        assert child.how_it_ended() == "still runs"
        assert child.join(until=monotonic() + 60)
        assert child.how_it_ended() == "ended with exit code 1; its last words: it went wrong"
        assert child.output() == "first line\nit went wrong\n"
    finally:
        child.close()
        child.close()
    assert child.output() == ""


def test_started_by_hand_it_says_what_it_is_and_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-m", MODULE, "connect"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "this program is started by kvsim, not by hand" in done.stderr


def test_a_system_that_starts_no_process_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ChannelError, match=r"a worker process could not be started: .*nowhere"):
        start_child(("-m", MODULE), address="unix:nobody", key=KEY)
