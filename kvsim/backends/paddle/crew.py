"""Worker processes: started, asked who they are, handed out, and ended."""

from __future__ import annotations

from contextlib import ExitStack
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Final, Self

from kvsim.backends.control import (
    ChannelClosedError,
    ChannelError,
    Codec,
    Listener,
    new_key,
    sleep_on,
    start_child,
)
from kvsim.backends.paddle.wire import FromWorker, HelloMessage
from kvsim.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from kvsim.backends.control import Channel, Child

MODULE: Final = "kvsim.backends.paddle.rank_main"
START_S: Final = 120.0
"""How long workers have to say who they are: an interpreter and its imports, on a busy machine."""

_END_S: Final = 0.5  # between the end of a channel and that of its process


class WorkerProcess:
    """A process that waits for a plan, and the channel to it.

    Attributes
    ----------
    child, channel
        As they are.
    name
        For people; the rank, once it is one.
    """

    def __init__(self, child: Child, channel: Channel[FromWorker]) -> None:
        self.child = child
        self.channel = channel
        self.name = "a worker"

    def fileno(self) -> int:
        """Return the file descriptor of the channel."""
        return self.channel.fileno()

    def why_gone(self) -> str:
        """Return what became of a process whose channel is closed, in a line."""
        if not self.child.join(until=monotonic() + _END_S):
            return f"{self} has closed its connection"
        return f"{self} {self.child.how_it_ended()}"

    def close(self) -> None:
        """End it at once; idempotent."""
        self.child.close()
        self.channel.close()

    def __str__(self) -> str:
        """Return the name, with the process id."""
        return f"{self.name} (process {self.child.pid})"


class WorkerCrew:
    """Starts worker processes and hands them out.

    Parameters
    ----------
    arguments
        Of the interpreter that a worker is.
    keeps
        Whether a worker that is given back waits for its next job, rather than ending. A start
        takes seconds, so whoever opens one backend after another keeps them, and closes the crew.
    start_s
        How long workers have to say who they are, in seconds.
    """

    def __init__(
        self,
        *,
        arguments: Sequence[str] = ("-m", MODULE),
        keeps: bool = False,
        start_s: float = START_S,
    ) -> None:
        self._arguments = arguments
        self._start_s = start_s
        self._idle: list[WorkerProcess] = []
        self.keeps = keeps

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the workers that wait."""
        self.close()

    def hire(self, num: int) -> list[WorkerProcess]:
        """Return so many workers, some of them started for it.

        Raises
        ------
        TransferError
            If one ends before it has said who it is, does not say so in time, or has another clock.
        """
        hired: list[WorkerProcess] = []
        while self._idle and len(hired) < num:
            worker = self._idle.pop()
            if worker.child.has_ended:
                worker.close()
            else:
                hired.append(worker)
        with ExitStack() as undo:
            for worker in hired:
                undo.callback(worker.close)
            hired += self._start(num - len(hired))
            undo.pop_all()
        return hired

    def give_back(self, worker: WorkerProcess) -> None:
        """Take a worker back that has let its pools go."""
        worker.name = "a worker"
        if self.keeps:
            self._idle.append(worker)
        else:
            worker.close()

    def close(self) -> None:
        """End the workers that wait; idempotent."""
        while self._idle:
            self._idle.pop().close()

    def _start(self, num: int) -> list[WorkerProcess]:
        if not num:
            return []
        key, started_ns = new_key(), monotonic_ns()
        codec: Codec[FromWorker] = Codec(FromWorker)
        with ExitStack() as closing, ExitStack() as undo:
            listener = Listener(key, codec)
            closing.callback(listener.close)
            children: list[Child] = []
            for index in range(num):
                child = start_child(self._arguments, address=listener.address, key=key, index=index)
                undo.callback(child.close)
                children.append(child)
            welcome = _Welcome(listener, children, started_ns)
            undo.callback(welcome.close_unknown)
            workers = welcome.take_all(until=monotonic() + self._start_s)
            undo.pop_all()
        return workers


class _Welcome:
    """Waits until each child has connected and said who it is."""

    def __init__(
        self, listener: Listener[FromWorker], children: list[Child], started_ns: int
    ) -> None:
        self._listener = listener
        self._children = children
        self._started_ns = started_ns
        self._unknown: list[Channel[FromWorker]] = []
        self._known: dict[int, WorkerProcess] = {}

    def take_all(self, *, until: float) -> list[WorkerProcess]:
        """Return the workers, in the order of the children."""
        while len(self._known) < len(self._children):
            self._look_for_ended()
            left_s = until - monotonic()
            if left_s <= 0:
                missing = len(self._children) - len(self._known)
                raise TransferError(
                    f"{missing} of {len(self._children)} worker processes have not said that they"
                    " are there in time"
                )
            waited_for = [child for i, child in enumerate(self._children) if i not in self._known]
            sleep_on([*self._listener.waiting(), *self._unknown, *waited_for], timeout_s=left_s)
            self._unknown += self._listener.accept()
            self._unknown = [each for each in self._unknown if not self._is_known(each)]
        return [self._known[index] for index in range(len(self._children))]

    def close_unknown(self) -> None:
        """Close the channels of those who have not said who they are, and of those who have."""
        for channel in self._unknown:
            channel.close()
        for worker in self._known.values():
            worker.channel.close()

    def _is_known(self, channel: Channel[FromWorker]) -> bool:
        """Take what has come on a channel; return whether that is all that is wanted of it."""
        try:
            messages = channel.receive()
        except ChannelClosedError:
            channel.close()
            return True  # its process has ended, or will
        if not messages:
            return False
        (hello,) = messages if len(messages) == 1 else (None,)
        if not isinstance(hello, HelloMessage) or hello.index not in self._strangers():
            channel.close()
            raise ChannelError(f"a worker process did not say who it is, but {hello!r}")
        if not self._started_ns <= hello.at_ns <= monotonic_ns():
            channel.close()
            raise TransferError(
                f"worker process {self._children[hello.index].pid} has another clock: it says that"
                f" it is {hello.at_ns} ns, and here it is between {self._started_ns} and"
                f" {monotonic_ns()}"
            )
        self._known[hello.index] = WorkerProcess(self._children[hello.index], channel)
        return True

    def _strangers(self) -> set[int]:
        return set(range(len(self._children))) - set(self._known)

    def _look_for_ended(self) -> None:
        for index in sorted(self._strangers()):
            child = self._children[index]
            if child.has_ended:
                raise TransferError(
                    f"worker process {index} {child.how_it_ended()}; it was not ready yet"
                )
