"""The conformance suite of backends: it lets good ones pass, and says which sentence others break."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from kvsim.errors import BackendContractError
from kvsim.testing import BACKEND_CHECKS, BackendTraits, check_backend
from kvsim.testing.backends.contract import Sentence
from tests.unit.testing import broken_backends as broken
from tests.unit.testing import broken_timing as timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsim.core.ports import Backend
    from kvsim.testing import BackendSpec

ROOT = Path(__file__).parents[3]
TRAITS: Final = BackendTraits(
    tick_ns=10, can_fail=True, records_layers=True, num_instances=2, num_layers=4
)
WRONG: Final = [
    (broken.AnswersTwice, Sentence.ONE_COMPLETION),
    (broken.ForgetsCopies, Sentence.ONE_COMPLETION),
    (broken.AnswersCancels, Sentence.CANCEL_HAS_NO_ANSWER),
    (broken.NeverSettles, Sentence.ONE_SETTLED),
    (broken.SettlesTwice, Sentence.ONE_SETTLED),
    (broken.SettlesWithoutTimeout, Sentence.ONE_SETTLED),
    (broken.HangsOnFailure, Sentence.FAILS_WITH_PREDECESSOR),
    (broken.IgnoresFailure, Sentence.FAILS_WITH_PREDECESSOR),
    (broken.FailsAtRandom, Sentence.ENDS_DONE),
    (broken.GivesNoReason, Sentence.REASON),
    (broken.LosesAStep, Sentence.ALL_STEPS),
    (broken.CountsStepsOfCopies, Sentence.STEPS_DONE),
    (broken.IgnoresCancels, Sentence.STEP_BOUNDARY),
    (broken.CancelsWhatHasStarted, Sentence.STEP_BOUNDARY),
    (broken.CountsStepsOfTheCancelled, Sentence.STEP_BOUNDARY),
    (broken.ClaimsStepsItHadNoTimeFor, Sentence.STEPS_DONE),
    (broken.RefusesIdleCancels, Sentence.IDLE_CANCEL),
    (broken.DropsTheBatchOfTheCancelled, Sentence.DIFFERENCE_HOLDS),
    (broken.TakesAnIdTwice, Sentence.MISUSE),
    (broken.TakesUnknownPredecessors, Sentence.MISUSE),
    (broken.TakesCommandsWhenClosed, Sentence.MISUSE),
    (broken.ClosesOnce, Sentence.CLOSE),
    (broken.LeavesAThread, Sentence.CLOSE),
    (broken.LeavesAProcess, Sentence.CLOSE),
    (broken.LeavesAFile, Sentence.CLOSE),
    (broken.LeavesSharedMemory, Sentence.CLOSE),
    (timing.RunsForwardsAtOnce, Sentence.SUBMISSION_ORDER),
    (timing.IgnoresGates, Sentence.GATE_OP),
    (timing.IgnoresGates, Sentence.GATE_LAYER),
    (timing.TakesEveryGateForLayers, Sentence.GATE_OP),
    (timing.LetsLayersOvertake, Sentence.GATE_LAYER),
    (timing.FinishesLayersBackwards, Sentence.LAYER_ORDER),
    (timing.RecordsOneLayer, Sentence.LAYER_TIMES),
    (timing.RecordsNoLayers, Sentence.LAYER_TIMES),
    (timing.TimesOutEarly, Sentence.DEADLINE),
    (timing.KnowsNoDeadline, Sentence.DEADLINE),
    (timing.ClockGoesBack, Sentence.CLOCK),
    (timing.ClockOfSeconds, Sentence.CLOCK),
    (timing.AnswersBackwards, Sentence.WAIT),
    (timing.HoldsAnswersBack, Sentence.FINISH_WINDOW),
    (timing.DatesAnswersInThePast, Sentence.FINISH_WINDOW),
    (timing.DatesAnswersInTheFuture, Sentence.FINISH_WINDOW),
    (timing.FinishesBeforeItStarts, Sentence.TIMES),
    (timing.DatesAnswersInSeconds, Sentence.TIMES),
    (timing.GivesUpWaiting, Sentence.EMPTY_WAIT),
    (timing.NeedsMoreWork, Sentence.PROGRESS),
    (timing.BlocksInSubmit, Sentence.SUBMIT),
    (timing.AnswersInSubmit, Sentence.SUBMIT),
]


@pytest.fixture(autouse=True)
def _leave_nothing() -> Iterator[None]:
    """Take away what the backends that leave something have left."""
    yield
    broken.LeavesAThread.told.set()
    broken.clean_up()


def sentences_broken_by(
    make_backend: Callable[[BackendSpec], Backend], traits: BackendTraits = TRAITS
) -> dict[str, str]:
    """Return the sentence that each check found broken, by the name of the check."""
    found: dict[str, str] = {}
    for check in BACKEND_CHECKS:
        try:
            check(make_backend, traits)
        except BackendContractError as error:
            found[check.name] = error.sentence
            assert f'The contract: "{error.sentence}"' in str(error)
    return found


@pytest.mark.parametrize(("wrong", "sentence"), WRONG)
def test_a_wrong_backend_is_told_which_sentence_it_broke(
    wrong: type[broken.Right], sentence: Sentence
) -> None:
    found = sentences_broken_by(wrong)
    assert sentence.value in found.values()
