"""The suite in real time: no check depends on how fast a machine is, and none waits for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvsim.core.ops import Completion, Outcome
from kvsim.errors import BackendContractError
from kvsim.testing import BACKEND_CHECKS, BackendCheck, BackendTraits
from tests.conformance.realtime import RealTimeBackend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ops import Answer

TRAITS = BackendTraits(can_fail=True, num_instances=2)


@pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.name)
def test_a_backend_in_real_time_keeps_the_contract(check: BackendCheck) -> None:
    result = check(RealTimeBackend, TRAITS)
    assert result.is_applicable == (check.name != "layers_are_recorded")


class DatesAnswersAsTheyEnd(RealTimeBackend):
    """Forgets that the time may have been read since an op ended."""

    def _dated(self, answer: Answer) -> Answer:
        return answer


class LosesAnAnswer(RealTimeBackend):
    """Waits for ever for the answer of its first op, which it has lost."""

    def wait(self, until: int | None) -> Sequence[Answer]:
        until = 1 << 60 if until is None else until
        return [answer for answer in super().wait(until) if answer.op_id] or super().wait(until)


class MissesItsLimit(RealTimeBackend):
    """Waits for an answer, however late it is."""

    def wait(self, until: int | None) -> Sequence[Answer]:
        del until
        return super().wait(None) or super().wait(1 << 60)


class CancelsTheWaitingOnes(RealTimeBackend):
    """Says of an op that it was cancelled, though nobody asked for it."""

    def _dated(self, answer: Answer) -> Answer:
        if isinstance(answer, Completion) and answer.outcome is Outcome.FAILED:
            return super()._dated(answer._replace(outcome=Outcome.CANCELLED))
        return super()._dated(answer)


@pytest.mark.parametrize(
    ("wrong", "name", "problem"),
    [
        (
            DatesAnswersAsTheyEnd,
            "an_op_that_ends_unseen_is_dated_after_the_last_reading",
            'finished_at .* The contract: "The finish time of an answer lies between',
        ),
        (
            LosesAnAnswer,
            "all_ends_by_waiting_alone",
            "has not returned after 2 s. .*Progress never depends on new work",
        ),
        (
            MissesItsLimit,
            "a_wait_for_the_past_returns",
            "has not returned after 2 s. .*Returns an empty sequence once",
        ),
        (
            CancelsTheWaitingOnes,
            "ops_fail_with_a_timed_out_predecessor",
            "ended CANCELLED without a Cancel",
        ),
    ],
)
def test_what_goes_wrong_in_real_time_is_found(
    wrong: type[RealTimeBackend], name: str, problem: str
) -> None:
    check = next(check for check in BACKEND_CHECKS if check.name == name)
    is_endless = "has not returned" in problem
    traits = replace(TRAITS, patience_s=2.0) if is_endless else TRAITS
    with pytest.raises(BackendContractError, match=problem):
        check(wrong, traits)
