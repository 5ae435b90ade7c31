"""Who arrives, who waits, and whose client gives up: the queue in front of the batch."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from kvsim.core.sequence import Sequence, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvsim.types import Request, RequestId


class RequestQueue:
    """Requests in order of arrival; those that must try again go back to their old place.

    Parameters
    ----------
    arrivals
        Requests in order of arrival.
    block_size
        Tokens a block.

    Attributes
    ----------
    waiting
        The head is admitted next.
    next_at
        When the next request arrives; None after the last.
    wakeup_at
        When the next request arrives or the next client gives up, whichever is first.
    """

    __slots__ = (
        "_arrivals",
        "_block_size",
        "_cancels",
        "_next",
        "next_at",
        "waiting",
        "wakeup_at",
    )

    def __init__(self, arrivals: Iterable[Request], block_size: int) -> None:
        self._arrivals: Iterator[Request] = iter(arrivals)
        self._block_size = block_size
        self._cancels: list[tuple[int, RequestId]] = []
        self._next: Request | None = None
        self.next_at: int | None = None
        self.wakeup_at: int | None = None
        self.waiting: deque[Sequence] = deque()
        self._advance()

    def take_arrivals(self, now: int) -> list[Sequence]:
        """Return those that have arrived by `now`; the caller refuses or enqueues them."""
        arrived: list[Sequence] = []
        while self._next is not None and self._next.arrived_at <= now:
            arrived.append(Sequence(self._next, self._block_size))
            self._advance()
        return arrived

    def enqueue(self, sequence: Sequence) -> None:
        """Put a new arrival at the end."""
        self.waiting.append(sequence)
        self.watch(sequence.request)

    def watch(self, request: Request) -> None:
        """Note when the client of a request gives up, if it does."""
        if request.cancelled_at is not None:
            heappush(self._cancels, (request.cancelled_at, request.request_id))
            self._note_wakeup()

    def take_cancels(self, now: int) -> list[RequestId]:
        """Return the requests whose clients have given up by `now`."""
        ids: list[RequestId] = []
        while self._cancels and self._cancels[0][0] <= now:
            ids.append(heappop(self._cancels)[1])
        self._note_wakeup()
        return ids

    def put_back(self, sequence: Sequence) -> None:
        """Put a sequence that must try again where its arrival had it."""
        sequence.status = Status.WAITING
        request_id = sequence.request.request_id
        place = 0
        for other in self.waiting:
            if other.request.request_id >= request_id:
                break
            place += 1
        self.waiting.insert(place, sequence)

    def _advance(self) -> None:
        self._next = request = next(self._arrivals, None)
        self.next_at = None if request is None else request.arrived_at
        self._note_wakeup()

    def _note_wakeup(self) -> None:
        self.wakeup_at = self.next_at
        if self._cancels:
            cancel = self._cancels[0][0]
            self.wakeup_at = cancel if self.next_at is None else min(self.next_at, cancel)
