"""Calls that the manager's contract forbids are answered with what is wrong, and change nothing."""

from __future__ import annotations

import pytest

from kvsim.core.ops import Completion, Outcome, Settled
from kvsim.errors import MisuseError
from kvsim.events import EndReason
from tests.property.story import (
    admitted,
    answer,
    issued,
    last_transfer,
    new_driver,
    refused,
    served,
    tokens,
)


def settled(op_id: int) -> Settled:
    """Return the news that an op has come to rest."""
    return Settled(op_id=op_id, finished_at=0)


def completion(op_id: int, outcome: Outcome = Outcome.DONE) -> Completion:
    """Return the answer to an op."""
    return Completion(op_id=op_id, outcome=outcome, started_at=0, finished_at=0)


def test_an_op_that_was_never_issued_has_no_answer() -> None:
    with pytest.raises(MisuseError, match="op 7 is not open: answered twice, or never issued"):
        new_driver(2, block_size=4).manager.settle(completion(7))


def test_an_op_answers_once() -> None:
    driver = new_driver(2, 2, block_size=4)
    served(driver, tokens(1, 8))
    refused(driver, tokens(21, 28))
    store = last_transfer(driver)
    answer(driver, store)
    with pytest.raises(MisuseError, match="is not open: answered twice"):
        driver.manager.settle(completion(store.op_id))


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_timed_out_op_has_no_second_completion(outcome: Outcome) -> None:
    driver = new_driver(2, 2, block_size=4)
    served(driver, tokens(1, 8))
    refused(driver, tokens(21, 28))
    store = last_transfer(driver)
    answer(driver, store, Outcome.TIMED_OUT)
    with pytest.raises(MisuseError, match=f"op {store.op_id} has had its Completion"):
        driver.manager.settle(completion(store.op_id, outcome))


def test_a_timed_out_forward_has_no_second_completion() -> None:
    driver = new_driver(2, block_size=4)
    forward = issued(driver, admitted(driver, tokens(1, 4)))
    answer(driver, forward, Outcome.TIMED_OUT)
    with pytest.raises(MisuseError, match=f"op {forward.op_id} has had its Completion"):
        driver.manager.settle(completion(forward.op_id))


def test_only_a_timed_out_op_settles_later() -> None:
    driver = new_driver(2, block_size=4)
    forward = issued(driver, admitted(driver, tokens(1, 4)))
    with pytest.raises(MisuseError, match="has not timed out, so it cannot settle"):
        driver.manager.settle(settled(forward.op_id))


def test_an_attempt_is_released_once() -> None:
    driver = new_driver(2, block_size=4)
    client = admitted(driver, tokens(1, 4))
    driver.end(client)
    with pytest.raises(MisuseError, match="attempt 0 of request 0 holds nothing"):
        driver.manager.release(client.attempt, EndReason.FINISHED, 0)
    assert driver.manager.num_free_blocks() == 2


def test_a_request_is_admitted_once() -> None:
    driver = new_driver(4, block_size=4)
    client = admitted(driver, tokens(1, 4))
    with pytest.raises(MisuseError, match="request 0 is admitted already"):
        driver.manager.admit(client.attempt, 0)
    assert driver.manager.num_free_blocks() == 3


def test_what_was_never_admitted_cannot_grow() -> None:
    driver = new_driver(4, block_size=4)
    client = driver.submit(tokens(1, 4))
    with pytest.raises(MisuseError, match="was never admitted, or has ended"):
        driver.manager.grow(client.attempt, 1, 0)
