"""The part of an endpoint that knows the medium, and the thread that it lives in.

An endpoint is two halves. The half in the caller's thread (`kvsim.backends.transports.endpoint`)
holds every promise that does not depend on the medium: ranges, ids, deadlines, cancels, what ends
how and once. The half in a thread of its own, a driver, moves bytes. Calls go one way through a
queue, facts the other way through another, and nothing else is shared.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from kvsim.backends.transports.ports import TransportError
from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.region import Region
    from kvsim.backends.transports.pieces import Pieces
    from kvsim.backends.transports.ports import Capabilities, PeerId, Reason


class LinkUp(NamedTuple):
    """Writes can be posted on a link."""

    link_id: int


class LinkDown(NamedTuple):
    """A link could not be made, or is no more; what was posted on it has been told before."""

    link_id: int
    reason: Reason
    detail: str


class Finished(NamedTuple):
    """A post is over: the one fact about it. `reason` is None if it is done."""

    write_id: int
    reason: Reason | None = None
    detail: str = ""


class Came(NamedTuple):
    """A peer's write has come, with its tag."""

    peer: PeerId
    tag: bytes


class Left(NamedTuple):
    """A peer that had made a link to here is gone."""

    peer: PeerId
    detail: str


class Broken(NamedTuple):
    """The driver has given up."""

    detail: str


Fact: TypeAlias = LinkUp | LinkDown | Finished | Came | Left | Broken


class Post(NamedTuple):
    """A write, checked, as the driver gets it: no piece is empty."""

    link_id: int
    write_id: int
    pieces: Pieces
    tag: bytes | None


class Waker:
    """Lets a thread that waits for files know that there is something else."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.settimeout(0)
        self._writer.settimeout(0)

    def fileno(self) -> int:
        """Return the file that can be read after `wake`."""
        return self._reader.fileno()

    def wake(self) -> None:
        """Make the file readable; called in another thread."""
        with suppress(BlockingIOError):  # full: it has been woken often enough
            self._writer.send(b"!")

    def clear(self) -> None:
        """Make the file unreadable again."""
        with suppress(BlockingIOError):
            while self._reader.recv(1 << 12):
                pass

    def close(self) -> None:
        """Give the files back; may be called again."""
        self._reader.close()
        self._writer.close()


class Driver(Protocol):
    """Moves bytes over one medium. Everything is called in its own thread.

    It waits for nothing but in `turn`, keeps no deadlines, and checks no ranges of its own writes;
    what peers ask of it, it checks. Each post has one `Finished`, also after `abort` and when its
    link goes down; a link has one `LinkUp` or one `LinkDown`, and after `LinkUp` one `LinkDown` if
    it breaks. After `disconnect` nothing is told of a link but the `Finished` of its posts.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What the transport can do; may be asked in any thread."""

    def start(
        self, region: Region, memory_file: int | None, tell: Callable[[Fact], None], waker: Waker
    ) -> bytes:
        """Begin to listen; return the address, the driver's part of the description."""

    def connect(self, link_id: int, peer: PeerId, address: bytes) -> None:
        """Begin to make a link."""

    def post(self, post: Post) -> None:
        """Begin a write, on a link that is up or was."""

    def abort(self, write_id: int) -> None:
        """Bring a post to its end soon; unknown ones are over."""

    def disconnect(self, link_id: int) -> None:
        """Bring a link, and all that was posted on it, to its end."""

    def turn(self) -> None:
        """Do what there is to do; if there is nothing, wait for it, or for the waker."""

    def stop(self) -> None:
        """Give everything back, also if `start` has not come to its end or was not called."""


class DriverThread:
    """Runs a driver in a thread of its own.

    Parameters
    ----------
    driver
        The driver.
    name
        Of the thread.
    notify
        Called after each fact.
    """

    def __init__(self, driver: Driver, name: str, notify: Callable[[], None] | None) -> None:
        self._driver = driver
        self._notify = notify
        self._waker = Waker()
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._facts: SimpleQueue[Fact] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._started: SimpleQueue[bytes | BaseException] = SimpleQueue()
        self._is_stopping = False

    def start(self, region: Region, memory_file: int | None) -> bytes:
        """Start the thread and the driver; return the driver's address.

        Raises
        ------
        KvsimError
            What the driver raised; `TransportError` if the system did.
        """
        self.call(lambda: self._started.put(self._start(region, memory_file)))
        self._thread.start()
        answer = self._started.get()
        if isinstance(answer, bytes):
            return answer
        self.stop()
        if isinstance(answer, KvsimError):
            raise answer
        raise TransportError(f"the medium cannot be had: {answer}") from answer

    def call(self, function: Callable[[], None]) -> None:
        """Have a method of the driver called, after those asked for before; none after `stop`."""
        self._calls.put(function)
        self._waker.wake()

    def next_fact(self, timeout_s: float) -> Fact | None:
        """Return the next fact, waiting for it up to `timeout_s`; None if there is none."""
        try:
            if timeout_s <= 0:
                return self._facts.get_nowait()
            return self._facts.get(timeout=timeout_s)
        except Empty:
            return None

    def stop(self) -> None:
        """Stop the driver and the thread."""

        def end() -> None:
            self._is_stopping = True

        if self._thread.ident is None:
            self._driver.stop()
        elif self._thread.is_alive():
            self.call(end)
            self._thread.join()
        self._waker.close()

    def _tell(self, fact: Fact) -> None:
        self._facts.put(fact)
        if self._notify is not None:
            self._notify()

    def _start(self, region: Region, memory_file: int | None) -> bytes | BaseException:
        try:
            return self._driver.start(region, memory_file, self._tell, self._waker)
        except (KvsimError, OSError, RuntimeError) as error:
            return error

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                while not self._calls.empty():
                    self._calls.get_nowait()()
                if not self._is_stopping:
                    self._driver.turn()
        except BaseException as error:  # told to the caller, who gets it from `poll`
            self._tell(Broken(f"{type(error).__name__}: {error}"))
        finally:
            self._driver.stop()
