"""Sends behind signals per step. The names say what the older messager of the two got wrong."""

from __future__ import annotations

import pytest

from kvsim.core.handoff import SendError
from kvsim.core.signals import STEP_MODULUS
from kvsim.errors import MisuseError
from tests.unit.core.rank import PEER, Rank, every, task


def layers(rank: Rank) -> list[int]:
    """Return the layers written so far, in order."""
    return [each.layer for each in rank.writes]


def test_a_layer_is_written_when_its_step_has_computed_it() -> None:
    rank = Rank()
    rank.add(task(step=5))
    seen = []
    for layer in (-1, 0, 1, 2):
        rank.step(5, layer)
        seen.append(layers(rank))
    assert seen == [[], [0], [0, 1], [0, 1, 2]]
    assert rank.written() == every(3)
    assert rank.reports == []
    rank.finish()
    assert rank.reports == [(0, 0, None)]


def test_nothing_is_written_before_the_first_layer_of_its_step() -> None:
    rank = Rank()
    rank.step(4, 2)  # the step before is through
    rank.add(task(step=5))
    rank.step(5, -1)
    assert rank.writes == []


def test_a_step_that_is_past_is_written_as_a_whole() -> None:
    rank = Rank()
    rank.step(6, -1)
    rank.add(task(step=5))
    assert rank.written() == every(3)


def test_a_task_that_comes_late_catches_up() -> None:
    rank = Rank()
    rank.step(5, 1)
    rank.add(task(step=5))
    assert layers(rank) == [0, 1]


def test_steps_go_on_after_the_counter_has_wrapped() -> None:
    rank = Rank()
    last = STEP_MODULUS - 1
    rank.add(task(0, step=last))
    rank.add(task(1, step=0))
    rank.step(last, 0)
    assert {each.request_id for each in rank.writes} == {0}
    rank.step(0, -1)  # 100003 is 0 again: the last step is past, this one has not begun
    assert rank.written(0) == every(3)
    assert rank.written(1) == []
    rank.step(0, 0)
    assert [each.layer for each in rank.writes if each.request_id == 1] == [0]


def test_a_new_request_after_a_wrap_does_not_look_finished() -> None:
    rank = Rank()
    for step in (STEP_MODULUS - 1, 0, 1):
        rank.step(step, 2)
    rank.add(task(step=2))
    assert rank.writes == []
    rank.step(2, -1)
    assert rank.writes == []


@pytest.mark.parametrize("start", [0, 1, STEP_MODULUS // 2, STEP_MODULUS - 2, STEP_MODULUS - 1])
def test_the_wrap_is_transparent_wherever_counting_starts(start: int) -> None:
    rank = Rank()
    for request_id in range(4):
        step = (start + request_id) % STEP_MODULUS
        rank.add(task(request_id, step=step))
        for layer in (-1, 0, 1, 2):
            rank.step(step, layer)
            written = [each.layer for each in rank.writes if each.request_id == request_id]
            assert written == list(range(layer + 1))


def test_a_wrap_is_not_missed_while_there_is_nothing_to_send() -> None:
    rank = Rank()
    rank.step(STEP_MODULUS - 3, 2)
    rank.step(7, 2)  # nobody looked at the steps between
    rank.add(task(step=8))
    assert rank.writes == []
    rank.step(8, 0)
    assert layers(rank) == [0]


def test_what_was_said_before_or_comes_late_changes_nothing() -> None:
    rank = Rank()
    rank.add(task(step=5))
    rank.step(5, 1)
    for step, layer in [(5, 1), (5, 0), (5, -1), (4, 2)]:
        rank.step(step, layer)
    assert layers(rank) == [0, 1]


def test_a_signal_that_was_missed_is_made_up_for_by_the_next() -> None:
    rank = Rank()
    rank.add(task(step=5))
    rank.step(5, 2)
    assert rank.written() == every(3)


def test_an_error_is_the_one_status_however_much_is_written_after_it() -> None:
    rank = Rank()
    rank.add(task(step=5))
    rank.step(5, 1)
    first, second = rank.writes
    rank.do(rank.messager.write_failed(second.number, "no space"))
    assert rank.reports == []  # the other write is still under way
    rank.step(5, 2)
    assert layers(rank) == [0, 1]  # nothing more of it
    rank.finish([first])
    assert rank.reports == [(0, 0, SendError.WRITE)]
    rank.do(rank.messager.write_failed(first.number, "late"))
    rank.do(rank.messager.cancel(0, 0))
    rank.step(6, -1)
    assert rank.reports == [(0, 0, SendError.WRITE)]


def test_nothing_to_send_is_finished() -> None:
    rank = Rank()
    rank.add(task(step=5, cached=10))  # decode has all of it
    assert rank.writes == []
    assert rank.reports == [(0, 0, None)]
    assert rank.messager.num_open_tasks == 0


def test_nothing_to_send_needs_no_connection() -> None:
    rank = Rank(is_connected=False)
    rank.add(task(step=5, cached=10))
    assert rank.reports == [(0, 0, None)]
    assert rank.connects == []


def test_what_decode_has_cached_is_left_out_by_position() -> None:
    # Positions 0 and 1 are there: position 2 goes to the first of the targets.
    rank = Rank()
    rank.add(task(step=5, num_tokens=16, cached=8))
    rank.step(6, -1)
    assert rank.written() == every(4, first=2)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_cached_tokens": 6}, "6 tokens cached, which are no whole blocks of 4"),
        ({"target_ids": tuple(range(9))}, "9 target blocks for positions 0 to 3"),
        ({"target_ids": (1,)}, "1 target blocks for positions 0 to 3"),
        ({"num_tokens": 13}, "13 tokens do not lie in 3 blocks of 4"),
        ({"num_tokens": 0}, "0 tokens do not lie in 3 blocks of 4"),
    ],
)
def test_a_task_whose_numbers_do_not_fit_is_refused_and_harms_no_other(
    changes: dict[str, object], problem: str
) -> None:
    rank = Rank()
    rank.add(task(0, step=5))
    fields = {name: getattr(task(1, step=5), name) for name in task().__slots__}
    with pytest.raises(MisuseError, match=problem):
        rank.add(type(task())(**(fields | changes)))
    rank.step(6, -1)
    rank.finish()
    assert rank.reports == [(0, 0, None)]


def test_an_attempt_is_taken_once() -> None:
    rank = Rank()
    rank.add(task(step=5))
    with pytest.raises(MisuseError, match="attempt 0 of request 0 is known"):
        rank.add(task(step=5))


def test_an_entry_that_is_never_computed_has_an_end() -> None:
    rank = Rank()
    rank.add(task(step=5, deadline_at=50))
    rank.step(4, 2)
    assert rank.messager.next_wakeup_at == 50
    rank.do(rank.messager.wake(49))
    assert rank.reports == []
    rank.do(rank.messager.wake(50))
    assert rank.reports == [(0, 0, SendError.TIMEOUT)]
    assert rank.rests == [(0, 0)]
    assert rank.messager.num_open_tasks == 0


def test_a_write_that_hangs_is_told_at_the_deadline_and_comes_to_rest_later() -> None:
    rank = Rank()
    rank.add(task(step=5, deadline_at=50))
    rank.step(5, 0)
    rank.do(rank.messager.wake(50))
    assert rank.reports == [(0, 0, SendError.TIMEOUT)]
    assert rank.rests == []
    rank.step(5, 2)
    assert len(rank.writes) == 1  # nothing more is sent
    rank.finish()
    assert rank.rests == [(0, 0)]
    assert rank.reports == [(0, 0, SendError.TIMEOUT)]


def test_what_is_called_off_is_told_when_nothing_of_it_is_under_way() -> None:
    rank = Rank()
    rank.add(task(step=5))
    rank.step(5, 0)
    rank.do(rank.messager.cancel(0, 0))
    assert rank.reports == []
    rank.step(6, -1)
    assert layers(rank) == [0]
    rank.finish()
    assert rank.reports == [(0, 0, SendError.CANCELLED)]
    rank.do(rank.messager.cancel(7, 0))  # a stranger


def test_the_next_attempt_of_a_request_is_another_task() -> None:
    rank = Rank()
    rank.add(task(attempt=0, step=5))
    rank.step(5, 0)
    late = rank.writes[0]
    rank.do(rank.messager.cancel(0, 0))
    rank.add(task(attempt=1, step=6))
    rank.step(7, -1)
    rank.finish([each for each in rank.writes if each.attempt == 1])
    assert rank.reports == [(0, 1, None)]
    rank.finish([late])
    assert rank.reports == [(0, 1, None), (0, 0, SendError.CANCELLED)]
    rank.add(task(attempt=0, step=7))  # the id comes again, and starts clean
    assert rank.written(0, 0) == [(0, 0, 100), (0, 1, 101), (0, 2, 102)]


def test_a_result_that_nobody_waits_for_is_ignored() -> None:
    rank = Rank()
    assert rank.messager.written(99, 0) == []
    assert rank.messager.write_failed(99, "what?") == []


def test_a_peer_that_is_lost_ends_its_tasks_and_no_others() -> None:
    rank = Rank()
    rank.add(task(0, step=5))
    rank.add(task(1, step=5, peer=PEER._replace(rank=1)))
    rank.step(5, 0)
    rank.do(rank.messager.peer_lost(PEER, "reset by peer"))
    assert rank.reports == [(0, 0, SendError.PEER_LOST)]
    (connect,) = rank.connects
    rank.do(rank.messager.connected(connect.peer, connect.number, 0))
    rank.step(6, -1)
    rank.finish()
    assert rank.reports == [(0, 0, SendError.PEER_LOST), (1, 0, None)]


def test_one_lost_connection_does_not_mark_the_pair_for_ever() -> None:
    rank = Rank()
    rank.add(task(attempt=0, step=5))
    rank.do(rank.messager.peer_lost(PEER, "reset by peer"))
    rank.add(task(attempt=1, step=6))
    (connect,) = rank.connects
    rank.do(rank.messager.connected(PEER, connect.number, 0))
    rank.step(7, -1)
    rank.finish()
    assert rank.reports == [(0, 0, SendError.PEER_LOST), (0, 1, None)]
