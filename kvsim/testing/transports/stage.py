"""What a check of a transport is made of: two sides, the wait for what must come, a report."""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvsim.backends.transports import open_transport
from kvsim.backends.transports.memory import MemoryFile
from kvsim.backends.transports.pieces import Pieces
from kvsim.backends.transports.ports import (
    KEY_BYTES,
    Connected,
    EndpointConfig,
    PeerId,
    WriteDone,
    WriteFailed,
    WriteSettled,
)
from kvsim.backends.transports.remote import PeerProcess, random_bytes
from kvsim.errors import UserError
from kvsim.testing.transports.contract import Sentence, TransportContractError, broken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsim.backends.transports.ports import Event

NUM_BYTES: Final = 1 << 20
"""Length of the regions of most checks."""

LONG_NS: Final = 60 * 10**9
"""A deadline that is not reached."""

SOON_NS: Final = 10**9 // 2
"""A deadline that is waited for."""


class Side:
    """An endpoint in this process, its memory, and all that its `poll` has told.

    Parameters
    ----------
    transport
        Of what it is an endpoint.
    peer_id, key
        Whose.
    num_bytes, seed
        Of its memory, and of what is in it.
    connect_timeout_ns
        See `EndpointConfig`.
    patience_s
        How long it waits for what must come.
    """

    def __init__(
        self,
        transport: str,
        peer_id: PeerId,
        key: bytes,
        *,
        num_bytes: int,
        seed: int,
        connect_timeout_ns: int,
        patience_s: float,
    ) -> None:
        self.peer_id = peer_id
        self.told: list[Event] = []
        self._patience_s = patience_s
        self._next_write_id = 0
        self._is_closed = False
        self.memory = MemoryFile(num_bytes)
        self.memory.bytes[:] = np.frombuffer(random_bytes(seed, num_bytes), np.uint8)
        self.notified = Flag()
        config = EndpointConfig(
            peer_id=peer_id,
            key=key,
            connect_timeout_ns=connect_timeout_ns,
            notify=self.notified.set,
        )
        self.endpoint = open_transport(transport, config)
        self.description = self.endpoint.register(self.memory.region, memory_file=self.memory.file)

    def connect(self, peer: Side | PeerProcess) -> None:
        """Connect, and wait until it is so."""
        self.endpoint.connect(peer.peer_id, peer.description)
        self.wait_for(lambda e: e == Connected(peer.peer_id), Sentence.CONNECT, "no Connected")

    def write(
        self,
        peer: PeerId,
        pieces: list[tuple[int, int, int]],
        *,
        tag: bytes | None = None,
        timeout_ns: int = LONG_NS,
    ) -> int:
        """Write; return the id."""
        self._next_write_id += 1
        deadline_at = time.monotonic_ns() + timeout_ns
        self.endpoint.write(
            peer, self._next_write_id, Pieces.of(pieces), deadline_at=deadline_at, tag=tag
        )
        return self._next_write_id

    def wait_for_notice(self) -> bool:
        """Wait until there is something new for `poll`; return whether there is."""
        was_notified = self.notified.wait(self._patience_s)
        self.notified.clear()
        return was_notified

    def look(self, timeout_ns: int = 0) -> list[Event]:
        """Return what `poll` tells, and note it."""
        events = list(self.endpoint.poll(timeout_ns))
        self.told += events
        return events

    def wait_for(
        self, wanted: Callable[[Event], bool], sentence: Sentence, otherwise: str
    ) -> Event:
        """Return the first event, told or to come, that is wanted."""
        seen = 0
        give_up_at = time.monotonic() + self._patience_s
        while True:
            for event in self.told[seen:]:
                if wanted(event):
                    return event
            seen = len(self.told)
            left_s = give_up_at - time.monotonic()
            if left_s <= 0:
                broken(sentence, f"{otherwise} within {self._patience_s:g} s; told: {self.told}")
            self.look(int(left_s * 10**9))

    def end_of(self, write_id: int) -> WriteDone | WriteFailed:
        """Return how a write ends."""

        def is_end(event: Event) -> bool:
            return isinstance(event, WriteDone | WriteFailed) and event.write_id == write_id

        event = self.wait_for(is_end, Sentence.ONE_END, f"write {write_id} has not ended")
        assert isinstance(event, WriteDone | WriteFailed)
        return event

    def settle(self, write_id: int) -> WriteDone | WriteFailed:
        """Return how a write ends, once it is over."""
        end = self.end_of(write_id)
        if isinstance(end, WriteFailed) and not end.is_settled:
            self.wait_for(
                lambda event: event == WriteSettled(write_id),
                Sentence.ONE_END,
                f"write {write_id} failed and is not settled",
            )
        return end

    def done(self, write_id: int) -> None:
        """Wait for the end of a write, which must be well."""
        end = self.end_of(write_id)
        if not isinstance(end, WriteDone):
            broken(Sentence.WRITE, f"write {write_id} failed: {end.reason}: {end.detail}")

    def bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the memory."""
        return self.memory.bytes

    def close(self) -> None:
        """Close the endpoint, then its memory; nothing the second time."""
        if not self._is_closed:
            self._is_closed = True
            self.endpoint.close()
            # A check that failed looks at the memory still, in its traceback.
            with suppress(BufferError):
                self.memory.close()


class Stage:
    """Where a check is played: it makes the sides, and closes them after the check."""

    def __init__(self, transport: str, patience_s: float, closing: ExitStack) -> None:
        self.transport = transport
        self.patience_s = patience_s
        self.key = secrets.token_bytes(KEY_BYTES)
        self._closing = closing
        self._num_sides = 0

    def side(
        self,
        *,
        key: bytes | None = None,
        peer_id: PeerId | None = None,
        num_bytes: int = NUM_BYTES,
        connect_timeout_ns: int = LONG_NS,
    ) -> Side:
        """Open an endpoint in this process."""
        if peer_id is None:
            peer_id = PeerId(self._num_sides, 3)
        self._num_sides += 1
        side = Side(
            self.transport,
            peer_id,
            self.key if key is None else key,
            num_bytes=num_bytes,
            seed=self._num_sides,
            connect_timeout_ns=connect_timeout_ns,
            patience_s=self.patience_s,
        )
        self._closing.callback(side.close)
        return side

    def pair(self) -> tuple[Side, Side]:
        """Open two endpoints, the first connected to the second."""
        one, two = self.side(), self.side()
        one.connect(two)
        return one, two

    def process(self, num_bytes: int = NUM_BYTES) -> PeerProcess:
        """Open an endpoint in another process."""
        peer = PeerProcess(self.transport, PeerId(99, 1), self.key, num_bytes)
        self._closing.callback(peer.close)
        return peer


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportCheck:
    """A check, to be called with the name of a transport.

    Parameters
    ----------
    name
        For test ids.
    sentence
        Of the contract: what it is about. What it finds broken may be another.
    play
        The scenario.
    """

    name: str
    sentence: Sentence
    play: Callable[[Stage], None] = field(repr=False)

    def __call__(self, transport: str, *, patience_s: float = 30.0) -> None:
        """Hold a transport to the contract.

        In a thread of its own, so that one that blocks for ever is found and not waited for.

        Raises
        ------
        TransportContractError
            If a sentence is broken; it names the sentence and what was seen.
        """
        errors: list[BaseException] = []

        def play() -> None:
            try:
                with ExitStack() as closing:
                    self.play(Stage(transport, patience_s, closing))
            except BaseException as error:  # raised again, in the caller's thread
                errors.append(error)

        thread = Thread(target=play, name=f"check {self.name}", daemon=True)
        thread.start()
        thread.join(4 * patience_s)
        if thread.is_alive():
            broken(Sentence.NEVER_BLOCKS, f"{self.name} has not come to its end: a call blocks")
        for error in errors:
            if isinstance(error, UserError) or not isinstance(error, Exception):
                raise error
            problem = f"{self.name} was met by {type(error).__name__}: {error}"
            raise TransportContractError(self.sentence.value, problem) from error


def check(play: Callable[[Stage], None], sentence: Sentence) -> TransportCheck:
    """Return the check of a scenario, under its name."""
    return TransportCheck(name=play.__name__, sentence=sentence, play=play)


@contextmanager
def refused(kind: type[Exception], sentence: Sentence, what: str) -> Iterator[None]:
    """Require that the block raises an error of this kind."""
    try:
        yield
    except kind:
        return
    except TransportContractError:
        raise
    except Exception as error:
        message = f"{what} raised {type(error).__name__} ({error}), not {kind.__name__}"
        raise TransportContractError(sentence.value, message) from error
    broken(sentence, f"{what} was not refused")
