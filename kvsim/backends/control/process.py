"""Processes that are started for a run, and end with it.

A child is a fresh interpreter that runs a module, not a fork (threads and CUDA survive none) and
not one of `multiprocessing` (which unpickles, and imports the caller's script again). Its standard
input is one end of a socket pair, its lifeline. Over it the child is told the key of the run, which
is thereby in no command line, environment or file; and each side sees the other end by its closing.
Its output goes to a file without a name, for the error message if it ends too early.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from struct import Struct
from tempfile import TemporaryFile
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from kvsim.backends.control.channel import sleep_on
from kvsim.backends.control.errors import ChannelError
from kvsim.backends.streaming import streaming_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

_LENGTH: Final = Struct("<I")
_TAIL_BYTES: Final = 1 << 13
_STDIN: Final = 0
_DESERTED: Final = 70  # exit code of a child whose parent has gone
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


class Invitation(msgspec.Struct, frozen=True, array_like=True):
    """What a child is told on its lifeline.

    `index` is its number among its siblings. `dies_with_parent`: the system itself shall kill it.
    """

    address: str
    key: bytes
    index: int
    dies_with_parent: bool = False


class Child:
    """A child process, as its parent sees it."""

    def __init__(
        self, process: subprocess.Popen[bytes], lifeline: socket.socket, output: int
    ) -> None:
        self._process = process
        self._lifeline = lifeline
        self._output = output

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when the child has ended."""
        return self._lifeline.fileno()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def join(self, *, until: float) -> bool:
        """Wait until it has ended, up to a time of `time.monotonic`; return whether it has."""
        while not self.has_ended:
            left_s = until - monotonic()
            if left_s <= 0:
                return False
            sleep_on((self,), timeout_s=left_s)
            if self._is_cut_off():
                self._process.wait()
        return True

    def kill(self) -> None:
        """End it, frozen or not, and wait until it has ended: it touches nothing from then on."""
        self._process.kill()
        self._process.wait()

    def how_it_ended(self) -> str:
        """Return how it ended, and the last line it wrote, for an error message."""
        code = self._process.returncode
        if code is None:
            return "still runs"
        how = f"ended with exit code {code}"
        if code < 0:
            try:
                how = f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                how = f"was killed by signal {-code}"
        lines = self.output().strip().splitlines()
        return f"{how}; its last words: {lines[-1].strip()}" if lines else how

    def output(self) -> str:
        """Return the end of what it has written."""
        if self._output < 0:
            return ""
        size = os.fstat(self._output).st_size
        data = os.pread(self._output, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        return data.decode(errors="replace")

    def close(self) -> None:
        """Kill it if it still runs, and let go of everything; idempotent."""
        if self._output >= 0:
            self.kill()
            self._lifeline.close()
            os.close(self._output)
            self._output = -1

    def _is_cut_off(self) -> bool:
        """Whether the other end of the lifeline is closed: nothing ever comes on it."""
        try:
            return not self._lifeline.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True


def start_child(arguments: Sequence[str], *, address: str, key: bytes, index: int = 0) -> Child:
    """Start an interpreter with `arguments`, such as ("-m", module), and hand it the key.

    It imports from where this process does.

    Raises
    ------
    ChannelError
        If the system starts no process.
    """
    invitation = Invitation(
        address=address,
        key=key,
        index=index,
        # The system means the thread, not the process: any other than the first may end earlier.
        dies_with_parent=threading.current_thread() is threading.main_thread(),
    )
    message = msgspec.msgpack.encode(invitation)
    paths = os.pathsep.join(str(Path(each).absolute()) for each in sys.path)
    lifeline, theirs = socket.socketpair()
    try:
        with theirs, TemporaryFile() as file:
            process = subprocess.Popen(
                [sys.executable, "-P", *arguments],
                stdin=theirs.fileno(),
                stdout=file,
                stderr=file,
                env=streaming_environment({**os.environ, "PYTHONPATH": paths}),
            )
            child = Child(process, lifeline, os.dup(file.fileno()))
    except OSError as error:
        lifeline.close()
        raise ChannelError(f"a worker process could not be started: {error}") from error
    with suppress(OSError):  # it has ended already: whoever waits for it will see that
        lifeline.sendall(_LENGTH.pack(len(message)) + message)  # a few bytes: taken at once
    return child


def take_invitation() -> Invitation:
    """Return what the parent of this process has to say, in the child and once.

    From then on this process ends when its parent does, at once, whatever it is doing.

    Raises
    ------
    ChannelError
        If standard input is no lifeline.
    """
    # Ctrl-C goes to the whole group; the parent decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        (num_bytes,) = _LENGTH.unpack(_read_exactly(_LENGTH.size))
        invitation = msgspec.msgpack.decode(_read_exactly(num_bytes), type=Invitation)
    except (OSError, msgspec.MsgspecError) as error:
        raise ChannelError("this program is started by kvsim, not by hand") from error
    threading.Thread(target=_watch_lifeline, name="lifeline", daemon=True).start()
    if invitation.dies_with_parent and sys.platform == "linux":
        # Ends a process that is frozen, too, which sees no lifeline.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    return invitation


def _watch_lifeline() -> None:
    try:
        while os.read(_STDIN, 1):
            pass
    finally:
        os._exit(_DESERTED)


def _read_exactly(num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        more = os.read(_STDIN, num_bytes - len(data))
        if not more:
            raise ChannelError("this program is started by kvsim, not by hand")
        data += more
    return data
