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
    """

    def __init__(
        self,
        rank: int,
        memory: RankMemory,
        *,
        clock: Callable[[], int],
        acknowledgements: SimpleQueue[Acknowledgement],
    ) -> None:
        self._inbox: SimpleQueue[Order] = SimpleQueue()
        self._rank = rank
        self._acknowledge = acknowledgements.put
        self._worker = RankWorker(
            rank=rank, memory=memory, clock=clock, inbox=self._inbox, tell=self._acknowledge
        )
        # A daemon, so that a process whose main thread has died does not stay for its sake.
        self._thread = Thread(target=self._run, name=f"kvsim rank {rank}", daemon=True)

    def tell(self, order: Order) -> None:
        """Hand an order over, without waiting."""
        self._inbox.put(order)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def close(self) -> None:
        """Ask it to stop, without waiting."""
        self.tell(Close())

    def join(self) -> None:
        """Wait until it has stopped; at once if it never started."""
        if self._thread.ident is not None:
            self._thread.join()

    def fence(self) -> None:
        """Stop it, between two layers: a thread cannot be ended from outside."""
        self.close()
        self.join()

    def _run(self) -> None:
        try:
            self._worker.run()
        except BaseException as error:
            self._acknowledge(RankCrashed(self._rank, error))
