"""An endpoint in a process of its own, for checks and measurements: its parent says what it does.

The two talk through the pipes of the child, a line of JSON each way for a call, so the child ends
when its parent does. This is no control plane: it has one user, the parent.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from kvsim.backends.transports import open_transport
from kvsim.backends.transports import ports as events
from kvsim.backends.transports.memory import MemoryFile
from kvsim.backends.transports.pieces import Pieces
from kvsim.backends.transports.ports import EndpointConfig, PeerId, TransportError
from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from types import TracebackType

    from kvsim.backends.transports.ports import Event, Transport

_EXIT_S: Final = 10.0  # a child that was told to end, or has lost its parent, ends at once


class PeerProcess:
    """A process with one endpoint, whose memory is registered.

    Parameters
    ----------
    transport
        Name of the transport, or "module:function" of what opens an endpoint.
    peer_id, key
        Of the endpoint.
    num_bytes
        Of its memory.

    Attributes
    ----------
    description
        For those that connect to it.

    Raises
    ------
    TransportError
        If the process cannot open the endpoint.
    """

    def __init__(self, transport: str, peer_id: PeerId, key: bytes, num_bytes: int) -> None:
        self.peer_id = peer_id
        self._child = subprocess.Popen(
            [sys.executable, "-m", "kvsim.backends.transports.remote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with ExitStack() as undo:
            undo.callback(self.close)
            answer = self._ask("open", transport, *peer_id, key.hex(), num_bytes)
            undo.pop_all()
        self.description = bytes.fromhex(cast("str", answer))

    @property
    def process_id(self) -> int:
        """Of the child."""
        return self._child.pid

    def connect(self, peer: PeerId, description: bytes) -> None:
        """See `Transport.connect`; likewise the others."""
        self._ask("connect", *peer, description.hex())

    def write(
        self,
        peer: PeerId,
        write_id: int,
        pieces: Pieces,
        *,
        timeout_ns: int,
        tag: bytes | None = None,
    ) -> None:
        """Write with a deadline `timeout_ns` from now."""
        table = list(pieces)
        self._ask("write", *peer, write_id, table, timeout_ns, None if tag is None else tag.hex())

    def poll(self, timeout_ns: int = 0) -> list[Event]:
        """See `Transport.poll`."""
        found = cast("list[list[Any]]", self._ask("poll", timeout_ns))
        return [_decode_event(event) for event in found]

    def fill(self, seed: int) -> None:
        """Put random bytes into the memory, known by their seed."""
        self._ask("fill", seed)

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return bytes of the memory."""
        return bytes.fromhex(cast("str", self._ask("read", offset, num_bytes)))

    def freeze(self) -> None:
        """Let the process stand still (SIGSTOP), and wait until it does."""
        os.kill(self._child.pid, signal.SIGSTOP)
        os.waitpid(self._child.pid, os.WUNTRACED)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self._child.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it (SIGKILL), and wait until it is dead."""
        self._child.kill()
        self._child.wait()

    def close(self) -> None:
        """End the process, which closes its endpoint; may be called again."""
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._child.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def _ask(self, what: str, *arguments: object) -> object:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            print(json.dumps([what, *arguments]), file=self._child.stdin, flush=True)
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise TransportError(f"the process of {self.peer_id} is gone")
        answer, error = json.loads(line)
        if error is not None:
            raise TransportError(f"in the process of {self.peer_id}: {error}")
        return answer

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


def random_bytes(seed: int, num_bytes: int) -> bytes:
    """Return what `PeerProcess.fill` fills with."""
    return np.random.default_rng(seed).bytes(num_bytes)


class _Child:
    """The endpoint in the child."""

    def __init__(self) -> None:
        self._memory: MemoryFile | None = None
        self._endpoint: Transport | None = None

    def open(self, transport: str, instance: int, rank: int, key: str, num_bytes: int) -> str:
        self._memory = MemoryFile(num_bytes)
        config = EndpointConfig(peer_id=PeerId(instance, rank), key=bytes.fromhex(key))
        self._endpoint = open_transport(transport, config)
        return self._endpoint.register(self._memory.region, memory_file=self._memory.file).hex()

    def connect(self, instance: int, rank: int, description: str) -> None:
        self._open().connect(PeerId(instance, rank), bytes.fromhex(description))

    def write(
        self,
        instance: int,
        rank: int,
        write_id: int,
        table: list[tuple[int, int, int]],
        timeout_ns: int,
        tag: str | None,
    ) -> None:
        self._open().write(
            PeerId(instance, rank),
            write_id,
            Pieces.of(table),
            deadline_at=time.monotonic_ns() + timeout_ns,
            tag=None if tag is None else bytes.fromhex(tag),
        )

    def poll(self, timeout_ns: int) -> list[list[Any]]:
        return [_encode_event(event) for event in self._open().poll(timeout_ns)]

    def fill(self, seed: int) -> None:
        memory = self._bytes()
        memory[:] = np.frombuffer(random_bytes(seed, len(memory)), np.uint8)

    def read(self, offset: int, num_bytes: int) -> str:
        return self._bytes()[offset : offset + num_bytes].tobytes().hex()

    def close(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()
        if self._memory is not None:
            self._memory.close()

    def _open(self) -> Transport:
        assert self._endpoint is not None
        return self._endpoint

    def _bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        assert self._memory is not None
        return self._memory.bytes


_EVENTS: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (
        events.Connected,
        events.ConnectFailed,
        events.WriteDone,
        events.WriteFailed,
        events.WriteSettled,
        events.Arrived,
        events.PeerLost,
    )
}


def _encode_event(event: Event) -> list[Any]:
    values = [value.hex() if isinstance(value, bytes) else value for value in event]
    return [type(event).__name__, *values]


def _decode_event(event: list[Any]) -> Event:
    name, *values = event
    kind = _EVENTS[name]
    fields = dict(zip(kind._fields, values, strict=True))
    if "peer" in fields:
        fields["peer"] = PeerId(*fields["peer"])
    if "tag" in fields:
        fields["tag"] = bytes.fromhex(fields["tag"])
    if "reason" in fields:
        fields["reason"] = events.Reason(fields["reason"])
    return cast("Event", kind(**fields))


def _serve() -> None:
    """Do what the parent says until it says no more."""
    child = _Child()
    # What a library prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        for line in sys.stdin:
            what, *arguments = json.loads(line)
            answer: object = None
            problem: str | None = None
            try:
                answer = getattr(child, what)(*arguments)
            except (KvsimError, OSError) as error:
                problem = f"{type(error).__name__}: {error}"
            print(json.dumps([answer, problem]), file=answers, flush=True)
    finally:
        child.close()


if __name__ == "__main__":
    _serve()
