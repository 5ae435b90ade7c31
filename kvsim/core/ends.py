"""The requests that have come to an end, and what is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.sequence import Status
from kvsim.events import RequestEnded, RequestRefused

if TYPE_CHECKING:
    from kvsim.core.ports import EventSink
    from kvsim.core.sequence import Sequence


class Ends:
    """Keeps the requests that have ended.

    Parameters
    ----------
    sink
        Where events go; None: nowhere.

    Attributes
    ----------
    sequences
        Every request that has come to an end, in that order.
    """

    __slots__ = ("_sink", "sequences")

    def __init__(self, sink: EventSink | None) -> None:
        self._sink = sink
        self.sequences: list[Sequence] = []

    def end(self, sequence: Sequence, status: Status, now: int) -> None:
        """Let a request end."""
        sequence.status = status
        sequence.ended_at = now
        self.sequences.append(sequence)
        if self._sink is not None:
            request_id = sequence.request.request_id
            self._sink.emit(RequestEnded(at=now, request_id=request_id, status=str(status)))

    def refuse(self, sequence: Sequence, allowed_blocks: int, now: int) -> None:
        """Let a request end that can never have the blocks it needs."""
        if self._sink is not None:
            self._sink.emit(
                RequestRefused(
                    at=now,
                    request_id=sequence.request.request_id,
                    needed_blocks=sequence.num_most_blocks,
                    allowed_blocks=allowed_blocks,
                )
            )
        self.end(sequence, Status.REFUSED, now)
