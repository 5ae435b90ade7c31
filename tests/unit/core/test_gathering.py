"""The reports of all ranks make one outcome."""

from __future__ import annotations

import pytest

from kvsim.core.gathering import Gathered, Gathering
from kvsim.core.handoff import SendError, send_error
from kvsim.core.messager import Report
from kvsim.core.ops import Completion, Outcome
from kvsim.errors import MisuseError


def report(rank: int, error: SendError | None = None, *, attempt: int = 0) -> Report:
    return Report(7, attempt, rank, error, "" if error is None else "broken")


def test_an_attempt_is_through_when_its_last_rank_is() -> None:
    gathering = Gathering(3, attempt=0)
    assert gathering.take(report(2)) is None
    assert gathering.take(report(0)) is None
    assert gathering.take(report(1)) == Gathered(None, "")


def test_a_rank_that_reports_twice_counts_once() -> None:
    gathering = Gathering(2, attempt=0)
    assert gathering.take(report(0)) is None
    assert gathering.take(report(0)) is None
    assert gathering.take(report(1)) == Gathered(None, "")
    assert gathering.take(report(1)) is None


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_an_error_of_any_rank_dominates_and_is_told_after_all(order: tuple[int, ...]) -> None:
    gathering = Gathering(3, attempt=0)
    errors = {0: None, 1: SendError.WRITE, 2: SendError.PEER_LOST}
    *early, last = (gathering.take(report(rank, errors[rank])) for rank in order)
    assert early == [None, None]
    assert last == Gathered(SendError.WRITE, "write: rank 1: broken")


def test_reports_on_another_attempt_have_no_effect() -> None:
    gathering = Gathering(1, attempt=1)
    assert gathering.take(report(0, SendError.WRITE, attempt=0)) is None
    assert gathering.take(report(0, attempt=1)) == Gathered(None, "")


def test_there_are_no_other_ranks() -> None:
    with pytest.raises(MisuseError, match="rank 3 reports, of 3"):
        Gathering(3, attempt=0).take(report(3))


@pytest.mark.parametrize("error", SendError)
def test_the_name_of_an_error_comes_back_from_its_reason(error: SendError) -> None:
    gathered = Gathering(1, attempt=0).take(report(0, error))
    assert gathered is not None
    answer = Completion(1, Outcome.FAILED, 0, 0, reason=gathered.reason)
    assert send_error(answer) is error


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome.TIMED_OUT, SendError.TIMEOUT),
        (Outcome.CANCELLED, SendError.CANCELLED),
        (Outcome.FAILED, SendError.WRITE),
    ],
)
def test_what_is_not_named_follows_from_the_outcome(outcome: Outcome, error: SendError) -> None:
    assert send_error(Completion(1, outcome, 0, 0, reason="something else")) is error
