"""Checks of Cancel: what it ends, how, and what it leaves alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.core.ops import Outcome
from kvsim.testing.backends.answers import took_its_time
from kvsim.testing.backends.check import LONG_STEP_TICKS, LONG_STEPS, check
from kvsim.testing.backends.contract import Sentence, broken

if TYPE_CHECKING:
    from kvsim.core.ops import Completion
    from kvsim.testing.backends.check import Stage
    from kvsim.testing.backends.witness import Witness
    from kvsim.types import OpId

_CANCELLABLE: Final = (Outcome.DONE, Outcome.CANCELLED)
_HEAD_STARTS: Final = (10, 50, 250)
"""Ticks that a run gets before it is cancelled, in turn: a loaded machine may need the last."""


def a_cancel_has_no_answer_of_its_own(stage: Stage) -> None:
    """Cancel ops under way, queued, or ended before it is heard: each has one answer."""
    run = stage.start(step_ticks=2, copy_ticks=4)
    write = run.write
    run.submit(write.prefill())
    run.submit(write.prefill())
    run.drain()
    cancelled = [
        run.submit(write.copy_down(0)),
        run.submit(write.decode(20, 0, 1)),
        run.submit(write.prefill()),
        run.submit(write.copy_down(1)),
    ]
    for op_id in cancelled:
        run.cancel(op_id)
        run.cancel(op_id)
    run.finish()
    for op_id in cancelled:
        run.completion(op_id, *_CANCELLABLE, sentence=Sentence.CANCEL_HAS_NO_ANSWER)


def a_cancelled_run_ends_at_a_step_boundary(stage: Stage) -> None:
    """Cancel a run of 500 steps in one of its first; a further run goes on where it ended."""
    run = stage.start(step_ticks=LONG_STEP_TICKS)
    run.submit(run.write.prefill())
    run.drain()
    for head_start in _HEAD_STARTS:
        answer = _cancelled_run(run, head_start)
        if answer.outcome is Outcome.DONE and answer.steps_done < LONG_STEPS:
            break
    else:
        problem = f"a run of {LONG_STEPS} steps was cancelled {head_start} ticks after its submit"
        problem += f" and ended {answer.outcome.name} with {answer.steps_done} steps"
        broken(Sentence.STEP_BOUNDARY, problem)
    took_its_time(run, answer)
    rest = run.submit(run.write.decode(3, 0))
    run.finish()
    run.completion(rest, Outcome.DONE, sentence=Sentence.ENDS_DONE)


def _cancelled_run(run: Witness, head_start: int) -> Completion:
    op_id = run.submit(run.write.decode(LONG_STEPS, 0))
    run.wait_ticks(head_start)
    run.cancel(op_id)
    run.finish()
    return run.completion(op_id, *_CANCELLABLE, sentence=Sentence.STEP_BOUNDARY)


def a_cancelled_step_is_done_or_never_started(stage: Stage) -> None:
    """Cancel a Forward of one step, and a queued run; the witness checks steps and outcome."""
    run = stage.start(step_ticks=4)
    write = run.write
    for _ in range(2):
        run.submit(write.prefill())
    run.drain()
    op_ids = [run.submit(write.prefill(decoding=(0,))), run.submit(write.decode(9, 1))]
    run.wait_ticks(1)
    for op_id in op_ids:
        run.cancel(op_id)
    run.finish()
    for op_id in op_ids:
        run.completion(op_id, *_CANCELLABLE, sentence=Sentence.STEP_BOUNDARY)


def a_cancel_of_nothing_is_ignored(stage: Stage) -> None:
    """Cancel an op that was never submitted, and ops that have ended."""
    run = stage.start()
    run.cancel(12_345)
    first = run.submit(run.write.prefill())
    run.drain()
    run.cancel(first)
    second = run.submit(run.write.copy_down(0))
    run.drain()
    run.cancel(second)
    run.cancel(first)
    last = run.submit(run.write.decode(2, 0))
    run.finish()
    for op_id in (first, second, last):
        run.completion(op_id, Outcome.DONE, sentence=Sentence.IDLE_CANCEL)


def a_cancel_after_the_deadline_is_ignored(stage: Stage) -> None:
    """Cancel an op that has its answer: it settles once, cancelled or not."""
    run = stage.start(step_ticks=4)
    run.submit(run.write.prefill())
    run.drain()
    late = _timed_out(run)
    run.cancel(late)
    run.finish()
    run.cancel(late)
    run.finish()


def _timed_out(run: Witness) -> OpId:
    late = run.submit(run.write.decode(10, 0, deadline_at=run.now() + run.ticks(6)))
    run.wait_for(late)
    run.completion(late, Outcome.TIMED_OUT, sentence=Sentence.DEADLINE)
    return late


def the_batch_changes_whatever_becomes_of_the_forward(stage: Stage) -> None:
    """Cancel a queued Forward in which one request joins and another one leaves.

    Later Forwards say nothing of either: the one decodes, the other does not.
    """
    run = stage.start(step_ticks=LONG_STEP_TICKS)
    write = run.write
    for _ in range(2):
        run.submit(write.prefill())
    run.drain()
    blocker = run.submit(write.decode(LONG_STEPS, 0))
    queued = run.submit(write.decode(2, 1))
    run.cancel(queued)
    run.cancel(blocker)
    run.drain()
    going_on = run.submit(write.decode(2, 1))
    emptied = run.submit(write.prefill())
    run.drain()
    for op_id in (going_on, emptied):
        run.completion(op_id, Outcome.DONE, sentence=Sentence.DIFFERENCE_HOLDS)
    run.finish()


CHECKS: Final = (
    check(a_cancel_has_no_answer_of_its_own, Sentence.CANCEL_HAS_NO_ANSWER),
    check(a_cancelled_run_ends_at_a_step_boundary, Sentence.STEP_BOUNDARY, "steps_take_time"),
    check(a_cancelled_step_is_done_or_never_started, Sentence.STEP_BOUNDARY),
    check(a_cancel_of_nothing_is_ignored, Sentence.IDLE_CANCEL),
    check(a_cancel_after_the_deadline_is_ignored, Sentence.IDLE_CANCEL, "steps_take_time"),
    check(the_batch_changes_whatever_becomes_of_the_forward, Sentence.DIFFERENCE_HOLDS),
)
