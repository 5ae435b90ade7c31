"""The conformance suite of transports: wrong ones hear which sentence they break."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from kvsim.errors import UnknownNameError
from kvsim.testing.transports import (
    TRANSPORT_CHECKS,
    Sentence,
    TransportContractError,
    TransportReport,
    check_transport,
)
from tests.unit.testing import broken_transports as broken

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[3]
CHECKS: Final = {check.name: check for check in TRANSPORT_CHECKS}
BETWEEN_PROCESSES: Final = {
    "bytes_cross_processes",
    "writes_to_a_killed_process_fail",
    "writes_to_a_frozen_process_time_out",
    "a_killed_writer_is_missed",
    "nothing_is_left_of_a_lost_process",
}
WRONG: Final = [
    (broken.TellsTheKey, "a_description_is_short_and_holds_no_key", Sentence.DESCRIPTION),
    (broken.ShiftsBytes, "bytes_land_where_they_belong", Sentence.WRITE),
    (broken.TellsTagsFirst, "a_tag_comes_after_its_bytes", Sentence.TAG_AFTER_BYTES),
    (broken.LosesTags, "a_tag_goes_without_bytes", Sentence.TAG_ALONE),
    (broken.EndsTwice, "a_write_has_one_end", Sentence.ONE_END),
    (broken.NeverNotifies, "whoever_waits_is_notified", Sentence.NOTIFY),
    (broken.FailsEmptyWrites, "nothing_to_write_is_done", Sentence.EMPTY),
    (broken.DoesNotWait, "a_write_waits_for_its_connection", Sentence.WAITS),
    (broken.WritesToNobody, "a_write_to_nobody_fails", Sentence.NOT_CONNECTED),
    (broken.WritesBeforeItRefuses, "what_is_out_of_range_is_refused", Sentence.RANGE),
    (broken.TakesAnIdTwice, "misuse_is_refused", Sentence.MISUSE),
    (broken.ConnectsTwice, "a_connection_is_made_once", Sentence.CONNECT),
    (broken.ForgetsThatItIsConnected, "a_connection_is_made_once", Sentence.CONNECTED_ALREADY),
    (broken.TakesAnyDescription, "a_wrong_description_is_refused", Sentence.WRONG_DESCRIPTION),
    (broken.TakesAnyKey, "without_the_key_nobody_gets_in", Sentence.KEY),
    (broken.IgnoresFlushes, "a_flush_holds_later_writes_back", Sentence.FLUSH),
    (broken.IgnoresCancels, "a_cancelled_write_ends_once", Sentence.CANCEL),
    (broken.HidesLosses, "both_sides_hear_of_a_lost_peer", Sentence.PEER_LOST),
    (broken.StainsOthers, "a_lost_peer_touches_no_other", Sentence.WRITE),
    (broken.StainsOthers, "a_peer_that_comes_back_is_welcome", Sentence.WRITE),
    (broken.WritesToTheOldOne, "a_peer_is_replaced_while_it_is_connected", Sentence.OTHERS),
    (broken.DoesNotDisconnect, "writes_to_a_disconnected_peer_fail", Sentence.DISCONNECT),
    (broken.LeavesAThread, "nothing_is_left_of_an_endpoint", Sentence.CLOSE),
    (broken.LeavesAFile, "nothing_is_left_of_an_endpoint", Sentence.CLOSE),
    (broken.ClosesOnce, "nothing_is_left_of_an_endpoint", Sentence.CLOSE_AGAIN),
    (broken.BlocksInWrite, "a_write_has_one_end", Sentence.NEVER_BLOCKS),
    (broken.ShiftsBytes, "bytes_cross_processes", Sentence.WRITE),
    (broken.HidesLosses, "writes_to_a_killed_process_fail", Sentence.PEER_LOST),
    (broken.TimesOutEarly, "writes_to_a_frozen_process_time_out", Sentence.DEADLINE),
    (broken.HidesLosses, "a_killed_writer_is_missed", Sentence.PEER_LOST),
    (broken.LeavesAThread, "nothing_is_left_of_a_lost_process", Sentence.CLOSE),
]
CASES: Final = [
    pytest.param(
        wrong.__name__,
        name,
        sentence,
        marks=[pytest.mark.thorough] if name in BETWEEN_PROCESSES else [],
        id=f"{wrong.__name__}-{name}",
    )
    for wrong, name, sentence in WRONG
]


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    broken.blocked.clear()
    yield
    broken.blocked.set()
    while broken.LeavesAFile.left:
        broken.LeavesAFile.left.pop().close()


@pytest.mark.parametrize(("wrong", "name", "sentence"), CASES)
def test_a_wrong_transport_is_told_which_sentence_it_broke(
    wrong: str, name: str, sentence: Sentence
) -> None:
    # What never comes is waited for: half a second here. What must come comes much sooner, but
    # another process takes some seconds to begin.
    patience_s = 5.0 if name in BETWEEN_PROCESSES else 0.5
    with pytest.raises(TransportContractError) as caught:
        CHECKS[name](f"tests.unit.testing.broken_transports:{wrong}", patience_s=patience_s)
    assert caught.value.sentence == sentence


@pytest.mark.parametrize("name", sorted(CHECKS.keys() - BETWEEN_PROCESSES))
def test_nothing_is_wrong_with_the_transport_that_the_wrong_ones_are_made_from(name: str) -> None:
    CHECKS[name]("tests.unit.testing.broken_transports:Right")


def test_every_check_finds_something_and_every_sentence_can_be_broken() -> None:
    assert {name for _, name, _ in WRONG} == CHECKS.keys()
    assert {sentence for _, _, sentence in WRONG} == set(Sentence)


def test_the_sentences_are_those_of_the_contract() -> None:
    text = (ROOT / "kvsim/backends/transports/ports.py").read_text(encoding="utf-8")
    contract = re.sub(r"\s+", " ", text)
    assert [each for each in Sentence if each not in contract] == []


def test_a_transport_that_is_not_there_is_a_line_with_those_that_are() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown transport 'ipd'.*'ipc'.*ipc, rdma, tcp"):
        check_transport("ipd")


def test_a_report_has_a_line_for_each_check() -> None:
    assert str(TransportReport(("one", "two"))) == "kept  one\nkept  two\n2 checks made, all kept"
