"""Checks of misuse, of `close`, and of two backends side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.core.ops import Outcome
from kvsim.errors import BackendContractError
from kvsim.testing.backends.belongings import belongings
from kvsim.testing.backends.check import LONG_STEP_TICKS, LONG_STEPS, check
from kvsim.testing.backends.contract import Sentence, broken

if TYPE_CHECKING:
    from kvsim.testing.backends.check import Stage
    from kvsim.testing.backends.witness import Witness

_NUM_ROUNDS: Final = 3


def an_op_id_in_flight_is_refused(stage: Stage) -> None:
    """Use the id of a long run again, for another run and for a copy."""
    run = stage.start(step_ticks=LONG_STEP_TICKS)
    run.submit(run.write.prefill())
    run.drain()
    long = run.submit(run.write.decode(LONG_STEPS, 0))
    for other in (run.write.decode(2, 0), run.write.copy_down(0)):
        run.refuses(other._replace(op_id=long), f"op {long} is in flight")


def an_op_behind_one_never_submitted_is_refused(stage: Stage) -> None:
    """Submit either kind, also where another op that it names was submitted."""
    run = stage.start()
    first = run.submit(run.write.prefill())
    run.drain()
    behind = run.write.copy_down(0)._replace(after=(12_345,))
    run.refuses(behind, "op 12345 was never submitted")
    more = run.write.reread(0)._replace(after=(first, 12_345))
    run.refuses(more, "op 12345 was never submitted")


def a_closed_backend_refuses_commands(stage: Stage) -> None:
    """Submit after a close with nothing in flight."""
    run = stage.start()
    run.submit(run.write.prefill())
    run.drain()
    command = run.write.copy_down(0)
    run.close()
    run.refuses(command, "it is closed")


def a_close_may_come_twice_and_at_any_time(stage: Stage) -> None:
    """Close before the first op, with ops in flight, and behind the last; each time twice."""
    for is_used, is_drained in ((False, True), (True, False), (True, True)):
        run = stage.start(step_ticks=3)
        if is_used:
            _set_to_work(run)
        if is_drained:
            run.drain()
        run.close()
        run.close()


def a_close_leaves_nothing_behind(stage: Stage) -> None:
    """Look for threads, child processes, shared memory and open files of closed backends.

    What is still there after a first backend belongs to its libraries. What others on the machine
    make meanwhile is told apart by looking again: a leak leaves something every time.
    """
    left: list[str] = []
    _use_and_close(stage)
    for _ in range(_NUM_ROUNDS):
        before = belongings()
        _use_and_close(stage)
        left = sorted(what for what, _ in belongings() - before)
        if not left:
            return
    broken(Sentence.CLOSE, f"close() left behind: {', '.join(left)}")


def backends_side_by_side_do_not_disturb_each_other(stage: Stage) -> None:
    """Submit the same ops to two, in turn; close one while the other has work."""
    one, other = stage.start(), stage.start()
    try:
        _work_in_turn(one, other)
    except BackendContractError as error:
        raise BackendContractError(Sentence.SIDE_BY_SIDE, error.problem) from error


def _work_in_turn(one: Witness, other: Witness) -> None:
    for request_id in range(3):
        for run in (one, other):
            run.submit(run.write.prefill())
            run.submit(run.write.copy_down(request_id))
    one.wait(None)
    other.submit(other.write.decode(5, 0))
    one.finish()
    one.close()
    other.submit(other.write.copy_up(0))
    other.finish()
    for run in (one, other):
        for op_id in run.commands:
            run.completion(op_id, Outcome.DONE, sentence=Sentence.ENDS_DONE)


def _set_to_work(run: Witness) -> None:
    """Let ops be under way and queued."""
    run.submit(run.write.prefill())
    run.submit(run.write.copy_down(0))
    run.submit(run.write.decode(4, 0))
    run.wait(None)


def _use_and_close(stage: Stage) -> None:
    drained, busy = stage.start(step_ticks=3), stage.start(step_ticks=3)
    for run in (drained, busy):
        _set_to_work(run)
    drained.drain()
    drained.close()
    busy.close()


CHECKS: Final = (
    check(an_op_id_in_flight_is_refused, Sentence.MISUSE, "steps_take_time"),
    check(an_op_behind_one_never_submitted_is_refused, Sentence.MISUSE),
    check(a_closed_backend_refuses_commands, Sentence.MISUSE),
    check(a_close_may_come_twice_and_at_any_time, Sentence.CLOSE),
    check(a_close_leaves_nothing_behind, Sentence.CLOSE),
    check(backends_side_by_side_do_not_disturb_each_other, Sentence.SIDE_BY_SIDE),
)
