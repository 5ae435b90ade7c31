from __future__ import annotations

from kvsim.analysis.records import EventLog, ProgressLog, TransferLog
from kvsim.core.ops import Cancel, Completion, Outcome, Place, Settled, Transfer
from kvsim.events import OpAnswered

GPU, CPU = Place(instance=0, tier=0), Place(instance=0, tier=1)


def up(op_id: int) -> Transfer:
    return Transfer(op_id, CPU, GPU, (4, 5), (7, 8), attempts=((31, 0),))


def down(op_id: int) -> Transfer:
    return Transfer(op_id, GPU, CPU, (7,), (4,), releases_source=True)


def test_a_transfer_is_kept_with_its_times_and_its_request() -> None:
    log = TransferLog()
    log.turn(100, [up(1), Cancel(9)], [])
    assert log.records == []
    log.turn(250, [], [Completion(1, Outcome.DONE, 120, 250)])
    (record,) = log.records
    assert (record.op_id, record.source, record.target, record.num_blocks) == (1, 1, 0, 2)
    assert (record.issued_at, record.started_at, record.finished_at) == (100, 120, 250)
    assert (record.outcome, record.settled_at, record.request_id) == ("done", None, 31)


def test_a_write_back_has_no_request() -> None:
    log = TransferLog()
    log.turn(0, [down(1)], [Completion(1, Outcome.FAILED, 0, 5, reason="lost")])
    assert [(each.request_id, each.outcome) for each in log.records] == [(None, "failed")]


def test_a_transfer_that_timed_out_gets_the_time_at_which_it_settled() -> None:
    log = TransferLog()
    log.turn(0, [up(1), down(2)], [Completion(1, Outcome.TIMED_OUT, 0, 50)])
    log.turn(50, [], [Completion(2, Outcome.DONE, 0, 60)])
    log.turn(60, [], [Settled(1, 90)])
    assert [(each.op_id, each.outcome, each.settled_at) for each in log.records] == [
        (1, "timed_out", 90),
        (2, "done", None),
    ]


def test_answers_to_forwards_are_not_kept() -> None:
    log = TransferLog()
    log.turn(0, [up(2)], [Completion(1, Outcome.DONE, 0, 5)])
    assert log.records == []


def test_progress_is_told_after_every_64_requests() -> None:
    ended: list[object] = []
    told: list[int] = []
    log = ProgressLog(TransferLog(), ended, told.append)
    for num_ended in (0, 63, 64, 100, 200):
        ended += [None] * (num_ended - len(ended))
        log.turn(0, [], [])
    assert told == [64, 200]


def test_events_are_kept_in_order() -> None:
    log = EventLog()
    for op_id in (3, 1):
        log.emit(OpAnswered(at=0, op_id=op_id, outcome="done"))
    assert [event.op_id for event in log.events if isinstance(event, OpAnswered)] == [3, 1]
