"""Ranks as threads of this process."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from kvsim.backends.paddle.orders import Close, RankCrashed
from kvsim.backends.paddle.worker import RankWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.paddle.memory import RankMemory
    from kvsim.backends.paddle.orders import Acknowledgement, Order


class RankThread:
    """A `RankWorker` in a thread.

    Parameters
    ----------
    rank, memory, clock
        See `RankWorker`.
    acknowledgements
        Where it puts what it says.

    Attributes
    ----------
    inbox
        Takes its orders.
    """

    def __init__(
        self,
        rank: int,
        memory: RankMemory,
        *,
        clock: Callable[[], int],
        acknowledgements: SimpleQueue[Acknowledgement],
    ) -> None:
        self.inbox: SimpleQueue[Order] = SimpleQueue()
        self._rank = rank
        self._tell = acknowledgements.put
        self._worker = RankWorker(
            rank=rank, memory=memory, clock=clock, inbox=self.inbox, tell=self._tell
        )
        # A daemon, so that a process whose main thread has died does not stay for its sake.
        self._thread = Thread(target=self._run, name=f"kvsim rank {rank}", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def close(self) -> None:
        """Ask it to stop."""
        self.inbox.put(Close())

    def join(self) -> None:
        """Wait until it has stopped."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._worker.run()
        except BaseException as error:
            self._tell(RankCrashed(self._rank, error))
