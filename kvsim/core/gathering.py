"""One status out of those of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.errors import MisuseError

if TYPE_CHECKING:
    from kvsim.core.handoff import SendError
    from kvsim.core.messager import Report


class Gathered(NamedTuple):
    """What became of an attempt on all ranks. `reason` begins with the name of the error."""

    error: SendError | None
    reason: str


class Gathering:
    """Collects the reports of all ranks on one attempt: an error on any is an error of it.

    Parameters
    ----------
    num_ranks
        How many must report.
    attempt
        Reports on others have no effect.
    """

    __slots__ = ("_attempt", "_by_rank", "_num_ranks")

    def __init__(self, num_ranks: int, attempt: int) -> None:
        self._num_ranks = num_ranks
        self._attempt = attempt
        self._by_rank: dict[int, Report] = {}

    def take(self, report: Report) -> Gathered | None:
        """Take one report; return the outcome with that of the last rank, and only then.

        A rank that reports again is not counted again: the first report stands.

        Raises
        ------
        MisuseError
            If there is no such rank.
        """
        if not 0 <= report.rank < self._num_ranks:
            raise MisuseError(f"rank {report.rank} reports, of {self._num_ranks}")
        if report.attempt != self._attempt or report.rank in self._by_rank:
            return None
        self._by_rank[report.rank] = report
        if len(self._by_rank) < self._num_ranks:
            return None
        for rank in range(self._num_ranks):
            each = self._by_rank[rank]
            if each.error is not None:
                return Gathered(each.error, f"{each.error}: rank {rank}: {each.reason}")
        return Gathered(None, "")
