"""Checks of time: the clock, the order and the dates of answers, waiting, and deadlines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.config import FaultConfig
from kvsim.core.ops import Outcome
from kvsim.testing.backends.check import LONG_STEP_TICKS, LONG_STEPS, check
from kvsim.testing.backends.contract import Sentence, broken, require

if TYPE_CHECKING:
    from kvsim.testing.backends.check import Stage
    from kvsim.testing.backends.witness import Witness
    from kvsim.types import OpId

TIMED_OUT = Outcome.TIMED_OUT
_LATE_STEPS: Final = (15, 60, 240)
_NUM_WAITS: Final = 100  # of a tick each, for a run of nine


def the_clock_never_goes_back(stage: Stage) -> None:
    """Read it while idle, while ops are under way, and after them; the witness compares."""
    run = stage.start()
    run.wait_ticks(2)
    run.submit(run.write.prefill())
    for _ in range(100):
        run.now()
    run.drain()
    run.wait_ticks(2)
    run.finish()


def answers_come_in_the_order_of_their_finish(stage: Stage) -> None:
    """Submit copies and Forwards that end together, and far apart."""
    run = stage.start(step_ticks=2, copy_ticks=2)
    write = run.write
    run.submit(write.prefill())
    run.drain()
    for _ in range(3):
        for _ in range(6):
            run.submit(write.copy_down(0))
        run.submit(write.reread(0))
        run.submit(write.copy_up(0))
        run.submit(write.decode(2, 0))
    run.finish()


def an_op_that_ends_unseen_is_dated_after_the_last_reading(stage: Stage) -> None:
    """Let ops end while nobody waits; then read the time, and only then fetch the answers."""
    run = stage.start(step_ticks=1)
    write = run.write
    run.submit(write.prefill())
    run.drain()
    for _ in range(3):
        run.submit(write.copy_down(0))
        run.submit(write.decode(2, 0))
        run.look_away(5)
        run.wait(run.now())
    run.finish()


def a_wait_ends_with_an_answer_or_at_its_limit(stage: Stage) -> None:
    """Wait to limits before the end of a run, behind it, and with nothing in flight."""
    run = stage.start(step_ticks=3)
    run.submit(run.write.prefill())
    run.drain()
    op_id = run.submit(run.write.decode(3, 0))
    for _ in range(_NUM_WAITS):
        run.wait(run.now() + run.ticks(1))
        if op_id in run.completions:
            break
    run.submit(run.write.copy_down(0))
    run.wait(run.now() + run.ticks(100_000))
    run.finish()
    run.wait(run.now() + run.ticks(3))


def a_wait_for_nothing_returns(stage: Stage) -> None:
    """Wait before the first op, after the last, and after a Cancel, which is no op."""
    run = stage.start()
    require(not run.wait(None), Sentence.EMPTY_WAIT, "an answer before the first op")
    run.cancel(0)
    require(not run.wait(None), Sentence.EMPTY_WAIT, "an answer before the first op")
    run.submit(run.write.prefill())
    run.finish()
    require(not run.wait(None), Sentence.EMPTY_WAIT, "an answer after the last op")


def a_wait_for_the_past_returns(stage: Stage) -> None:
    """Wait for a time before now, and for now itself, idle and with an op in flight."""
    run = stage.start(step_ticks=3)
    run.wait_ticks(3)
    run.wait(run.now() - run.ticks(2))
    run.wait(run.now())
    run.submit(run.write.prefill())
    for until in (run.now() - run.ticks(2), 0, run.now()):
        run.wait(until)
    run.finish()


def all_ends_by_waiting_alone(stage: Stage) -> None:
    """Submit a queue, a chain, and a Cancel; without a further command, all is answered."""
    run = stage.start()
    write = run.write
    for request_id in range(4):
        run.submit(write.prefill())
        run.submit(write.copy_down(request_id))
        run.submit(write.copy_up(request_id))
    run.submit(write.decode(7, 0, 1))
    run.cancel(run.submit(write.prefill()))
    run.drain(sentence=Sentence.PROGRESS)
    run.finish()


def a_submit_does_not_wait_for_the_op(stage: Stage) -> None:
    """Submit a run of 500 steps in less time than it takes."""
    run = stage.start(step_ticks=LONG_STEP_TICKS)
    run.submit(run.write.prefill())
    run.drain()
    long = run.write.decode(LONG_STEPS, 0)
    before = run.now()
    op_id = run.submit(long)
    took_ns = run.now() - before
    run.cancel(op_id)
    require(
        took_ns < LONG_STEPS * run.spec.step_ns,
        Sentence.SUBMIT,
        f"submit(forward {op_id}) took {took_ns} ns, as long as the op itself",
    )
    run.finish()


def a_deadline_is_missed_when_it_has_passed(stage: Stage) -> None:
    """Let a run miss one, and another queued behind it, but not an op with time enough."""
    run = stage.start(step_ticks=4)
    write = run.write
    run.submit(write.prefill())
    run.drain()
    start = run.now()
    late = [
        run.submit(write.decode(10, 0, deadline_at=start + run.ticks(9))),
        run.submit(write.prefill(deadline_at=start + run.ticks(5))),
    ]
    early = run.submit(write.copy_down(0, deadline_at=start + run.ticks(10**9)))
    run.finish()
    _time_out(run, late[:1])
    run.completion(late[1], TIMED_OUT, sentence=Sentence.DEADLINE)
    run.completion(early, Outcome.DONE, sentence=Sentence.ENDS_DONE)


def a_deadline_does_not_wait_for_the_op(stage: Stage) -> None:
    """Look for the answer of a late run before the run is over, if need be of longer ones."""
    run = stage.start(step_ticks=4)
    run.submit(run.write.prefill())
    run.drain()
    for num_steps in _LATE_STEPS:
        end_at = run.now() + num_steps * run.spec.step_ns
        late = run.submit(run.write.decode(num_steps, 0, deadline_at=run.now() + run.ticks(6)))
        run.finish()
        answer = run.completion(late, TIMED_OUT, sentence=Sentence.DEADLINE)
        if answer.finished_at < end_at:
            return
        run.submit(run.write.prefill())  # the request leaves: what it has got is not known
    problem = f"forward {late} missed its deadline of {run.commands[late].deadline_at}, and was"
    broken(Sentence.DEADLINE, f"{problem} answered at {answer.finished_at}, when it was over")


def a_deadline_may_have_passed_at_the_submit(stage: Stage) -> None:
    """Submit a run too late: it misses its deadline then, and not before."""
    run = stage.start(step_ticks=4)
    run.submit(run.write.prefill())
    run.drain()
    late = run.submit(run.write.decode(3, 0, deadline_at=run.now() - run.ticks(1)))
    run.finish()
    _time_out(run, [late])


def an_op_that_hangs_times_out_and_settles(stage: Stage) -> None:
    """Let a copy hang; one without a deadline, which nothing would ever end, fails."""
    settle_ns = 6 * stage.traits.tick_ns
    faults = FaultConfig(hang_rate=1.0, settle_ns=settle_ns, kinds=("transfer",))
    run = stage.start(faults=faults)
    write = run.write
    run.submit(write.prefill())
    run.drain()
    hung = run.submit(write.copy_down(0, deadline_at=run.now() + run.ticks(5)))
    failing = run.submit(write.copy_down(0))
    behind = run.submit(write.copy_up(0, after=(hung,)))
    run.finish()
    _time_out(run, [hung])
    run.completion(failing, Outcome.FAILED, sentence=Sentence.PROGRESS)
    run.completion(behind, Outcome.FAILED, sentence=Sentence.FAILS_WITH_PREDECESSOR)


def _time_out(run: Witness, op_ids: list[OpId]) -> None:
    """Check that these have timed out; the witness has checked when, and that they settled."""
    for op_id in op_ids:
        run.completion(op_id, TIMED_OUT, sentence=Sentence.DEADLINE)
        require(op_id in run.settled, Sentence.ONE_SETTLED, f"op {op_id} has not settled")


CHECKS: Final = (
    check(the_clock_never_goes_back, Sentence.CLOCK),
    check(answers_come_in_the_order_of_their_finish, Sentence.WAIT),
    check(an_op_that_ends_unseen_is_dated_after_the_last_reading, Sentence.FINISH_WINDOW),
    check(a_wait_ends_with_an_answer_or_at_its_limit, Sentence.EMPTY_WAIT),
    check(a_wait_for_nothing_returns, Sentence.EMPTY_WAIT),
    check(a_wait_for_the_past_returns, Sentence.EMPTY_WAIT),
    check(all_ends_by_waiting_alone, Sentence.PROGRESS),
    check(a_submit_does_not_wait_for_the_op, Sentence.SUBMIT, "steps_take_time"),
    check(a_deadline_is_missed_when_it_has_passed, Sentence.DEADLINE, "steps_take_time"),
    check(a_deadline_does_not_wait_for_the_op, Sentence.DEADLINE, "steps_take_time"),
    check(a_deadline_may_have_passed_at_the_submit, Sentence.DEADLINE, "steps_take_time"),
    check(an_op_that_hangs_times_out_and_settles, Sentence.ONE_SETTLED, "can_fail"),
)
