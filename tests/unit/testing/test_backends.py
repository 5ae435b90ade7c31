"""The conformance suite of backends: good ones pass, others hear which sentence they break."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from kvsim.core.ports import Backend
from kvsim.errors import BackendContractError, ConfigError
from kvsim.testing import BACKEND_CHECKS, BackendTraits, check_backend
from kvsim.testing.backends.contract import Sentence
from tests.unit.testing import broken_backends as broken
from tests.unit.testing import broken_timing as timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ops import Answer

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
    (broken.DoesNothingWhenCancelled, Sentence.STEP_BOUNDARY),
    (broken.ClaimsStepsItHadNoTimeFor, Sentence.STEPS_DONE),
    (broken.RefusesIdleCancels, Sentence.IDLE_CANCEL),
    (broken.DropsTheBatchOfTheCancelled, Sentence.DIFFERENCE_HOLDS),
    (broken.TakesAnIdTwice, Sentence.MISUSE),
    (broken.TakesUnknownPredecessors, Sentence.MISUSE),
    (broken.TakesCommandsWhenClosed, Sentence.MISUSE),
    (broken.ClosesOnce, Sentence.CLOSE),
    (broken.ClosesOnlyWhenIdle, Sentence.CLOSE_IN_FLIGHT),
    (broken.LeavesAThread, Sentence.CLOSE),
    (broken.LeavesAProcess, Sentence.CLOSE),
    (broken.LeavesAFile, Sentence.CLOSE),
    (broken.LeavesSharedMemory, Sentence.CLOSE),
    (timing.RunsForwardsAtOnce, Sentence.SUBMISSION_ORDER),
    (timing.IgnoresGates, Sentence.GATE_OP),
    (timing.IgnoresGates, Sentence.GATE_LAYER),
    (timing.IgnoresLayerGates, Sentence.GATE_LAYER),
    (timing.TakesEveryGateForLayers, Sentence.GATE_OP),
    (timing.LetsLayersOvertake, Sentence.GATE_LAYER),
    (timing.FinishesLayersBackwards, Sentence.LAYER_ORDER),
    (timing.RecordsOneLayer, Sentence.LAYER_TIMES),
    (timing.RecordsNoLayers, Sentence.LAYER_TIMES),
    (timing.TimesOutEarly, Sentence.DEADLINE),
    (timing.TimesOutLate, Sentence.DEADLINE),
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
    (broken.IsShared, Sentence.SIDE_BY_SIDE),
]


@cache
def errors_by_name(name: str) -> dict[str, BackendContractError]:
    """Return what each check finds wrong with a backend, by the name of the check."""
    wrong = getattr(broken, name, None) or getattr(timing, name)
    found: dict[str, BackendContractError] = {}
    for check in BACKEND_CHECKS:
        try:
            check(wrong, TRAITS)
        except BackendContractError as error:
            found[check.name] = error
    broken.clean_up()
    return found


@pytest.mark.parametrize(("wrong", "sentence"), WRONG)
def test_a_wrong_backend_is_told_which_sentence_it_broke(
    wrong: type[broken.Right], sentence: Sentence
) -> None:
    errors = errors_by_name(wrong.__name__).values()
    assert any(str(error).endswith(f'. The contract: "{sentence}"') for error in errors)


def test_nothing_is_wrong_with_the_backend_that_the_wrong_ones_are_made_from() -> None:
    assert errors_by_name("Right") == {}


def test_every_check_finds_something_and_every_sentence_can_be_broken() -> None:
    found: set[str] = set()
    for wrong, _ in WRONG:
        found |= errors_by_name(wrong.__name__).keys()
    assert found == {check.name for check in BACKEND_CHECKS}
    assert {sentence for _, sentence in WRONG} == set(Sentence)


# -- the sentences


def in_one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_the_sentences_are_those_of_the_contract() -> None:
    ports, ops = (
        in_one_line((ROOT / "kvsim/core" / name).read_text(encoding="utf-8"))
        for name in ("ports.py", "ops.py")
    )
    assert [each for each in Sentence if each not in ports and each not in ops] == []


def test_the_contract_has_no_sentence_without_a_check() -> None:
    calls = (Backend.now, Backend.submit, Backend.wait, Backend.close)
    texts = [in_one_line(call.__doc__ or "") for call in (Backend, *calls)]
    for sentence in Sentence:
        texts = [text.replace(sentence, "") for text in texts]
    # What is left: the title, and the headings of what `submit` raises.
    assert [text.strip() for text in texts] == [
        "Executes ops and owns time.",
        "",
        "Raises ------ MisuseError",
        "",
        "",
    ]


# -- what is done with a check


def test_the_first_broken_sentence_is_raised() -> None:
    with pytest.raises(BackendContractError, match="a second Completion of op 0: DONE after DONE"):
        check_backend(broken.AnswersTwice, TRAITS)


def test_the_report_says_which_checks_were_not_applicable() -> None:
    report = check_backend(broken.Right, BackendTraits(tick_ns=1, steps_take_time=False))
    skipped = {result.name: result.reason for result in report.results if result.reason}
    assert skipped["ops_fail_with_a_failed_predecessor"] == "needs a backend with can_fail"
    assert skipped["layers_are_recorded"] == "needs a backend with records_layers"
    assert skipped["a_submit_does_not_wait_for_the_op"] == "needs a backend with steps_take_time"
    num_kept = len(BACKEND_CHECKS) - len(skipped)
    assert str(report).endswith(f"{num_kept} of {len(BACKEND_CHECKS)} checks made, all kept")


class Stumbles(broken.Right):
    """Has a bug of its own."""

    def wait(self, until: int | None) -> Sequence[Answer]:
        raise ZeroDivisionError


def test_an_error_of_the_backend_itself_is_raised_as_it_is_with_a_note() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        check_backend(Stumbles, TRAITS)
    (note,) = caught.value.__notes__
    assert note.startswith("In the_clock_never_goes_back, wait(20) at 0 with nothing in flight.")


@pytest.mark.parametrize("name", ["tick_ns", "num_ranks", "num_layers", "patience_s"])
def test_sizes_are_positive(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be positive, not 0"):
        replace(TRAITS, **cast("dict[str, Any]", {name: 0}))


def test_a_specification_asks_for_what_the_traits_say() -> None:
    traits = BackendTraits(tick_ns=3, num_ranks=2, num_layers=7, block_size=5, seed=9)
    spec = traits.spec()
    assert (spec.num_ranks, spec.num_layers, spec.block_size, spec.seed) == (2, 7, 5, 9)
    assert (spec.tick_ns, spec.step_ns, spec.copy_ns, spec.faults) == (3, 6, 3, None)
    # Prompts are two whole blocks; no two requests share one.
    keys = [key for request in spec.requests for key in request.block_keys]
    assert len(set(keys)) == len(keys) == 2 * len(spec.requests)
    assert {request.num_input_tokens for request in spec.requests} == {10}
