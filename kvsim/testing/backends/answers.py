"""Checks of the answers: one for each op, with its steps and layers, and failures passed on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.config import FaultConfig
from kvsim.core.ops import Gate, Outcome
from kvsim.testing.backends.check import LONG_STEP_TICKS, LONG_STEPS, check
from kvsim.testing.backends.contract import Sentence, require

if TYPE_CHECKING:
    from kvsim.core.ops import Completion
    from kvsim.testing.backends.check import Stage
    from kvsim.testing.backends.witness import Witness
    from kvsim.types import OpId

DONE, FAILED = Outcome.DONE, Outcome.FAILED


def every_op_has_one_completion(stage: Stage) -> None:
    """Submit all kinds of ops, alone and behind others; afterwards nothing more is answered."""
    run = stage.start()
    write = run.write
    first = run.submit(write.prefill())
    run.submit(write.copy_down(0, after=(first,)))
    run.submit(write.decode(5, 0))
    run.submit(write.prefill(decoding=(0,)))
    run.submit(write.copy_up(0))
    run.submit(write.reread(0))
    run.submit(write.decode(3, 0, 1))
    run.finish()
    _all_done(run)
    alone = run.submit(write.decode(1, 1))
    run.finish()
    run.completion(alone, DONE, sentence=Sentence.ENDS_DONE)


def a_full_run_has_done_all_its_steps(stage: Stage) -> None:
    """Decode 1 to 40 steps, over the edge of a block; a step takes its time."""
    run = stage.start(step_ticks=1)
    prompt = run.submit(run.write.prefill())
    op_ids = [run.submit(run.write.decode(n, 0)) for n in (1, 2, 7, 40)]
    run.finish()
    _all_done(run)
    if stage.traits.steps_take_time:
        for op_id in (prompt, *op_ids):
            took_its_time(run, run.completions[op_id])


def took_its_time(run: Witness, answer: Completion) -> None:
    """Check that no more steps are counted than there was time for."""
    took_ns = answer.finished_at - answer.started_at
    require(
        took_ns >= answer.steps_done * run.spec.step_ns,
        Sentence.STEPS_DONE,
        f"forward {answer.op_id} counts {answer.steps_done} steps of {run.spec.step_ns} ns or"
        f" more in {took_ns} ns",
    )


def ops_fail_with_a_failed_predecessor(stage: Stage) -> None:
    """Let every copy fail, and all that waits for it, whether submitted before or afterwards."""
    run = stage.start(faults=FaultConfig(fail_rate=1.0, kinds=("transfer",)))
    write = run.write
    source = run.submit(write.prefill())
    failing = run.submit(write.copy_down(0, after=(source,)))
    chain = _chain_behind(run, failing)
    unrelated = run.submit(write.decode(2, 0))
    run.finish()
    run.completion(failing, FAILED, sentence=Sentence.ENDS_DONE)
    run.completion(unrelated, DONE, sentence=Sentence.ENDS_DONE)
    chain += _chain_behind(run, failing)
    run.finish()
    _all_failed(run, chain)


def ops_fail_with_a_cancelled_predecessor(stage: Stage) -> None:
    """Cancel a Forward that waits for a long run, and submit ops behind it before and after."""
    run = stage.start(step_ticks=LONG_STEP_TICKS)
    write = run.write
    run.submit(write.prefill())
    blocker = run.submit(write.decode(LONG_STEPS, 0))
    queued = run.submit(write.prefill())
    chain = _chain_behind(run, queued)
    run.cancel(queued)
    run.cancel(blocker)
    run.finish()
    if run.completions[queued].outcome is not DONE:
        chain += _chain_behind(run, queued)
        run.finish()
        _all_failed(run, chain)


def ops_fail_with_a_timed_out_predecessor(stage: Stage) -> None:
    """Submit ops before the deadline, after it, and after the op has settled."""
    run = stage.start(step_ticks=10)
    write = run.write
    run.submit(write.prefill())
    run.drain()
    late = run.submit(write.decode(6, 0, deadline_at=run.now() + run.ticks(12)))
    chain = _chain_behind(run, late)
    run.wait_for(late)
    run.completion(late, Outcome.TIMED_OUT, sentence=Sentence.DEADLINE)
    chain += _chain_behind(run, late)
    run.finish()
    chain += _chain_behind(run, late)
    run.finish()
    _all_failed(run, chain)


def an_op_may_wait_for_one_that_has_ended(stage: Stage) -> None:
    """Wait for one that ended DONE before the submit, with either gate."""
    run = stage.start()
    first = run.submit(run.write.prefill())
    run.drain()
    for gate in Gate:
        run.submit(run.write.copy_down(0, after=(first,), gate=gate))
        run.submit(run.write.reread(0, after=(first,), gate=gate))
    run.finish()
    _all_done(run)


def a_long_chain_of_failures_is_answered(stage: Stage) -> None:
    """Put two hundred ops behind each other, and the first behind one that is cancelled."""
    run = stage.start(step_ticks=LONG_STEP_TICKS)
    write = run.write
    run.submit(write.prefill())
    blocker = run.submit(write.decode(LONG_STEPS, 0))
    last = queued = run.submit(write.prefill())
    for i in range(200):
        command = write.copy_down(1, after=(last,)) if i % 2 else write.reread(1, after=(last,))
        last = run.submit(command)
    run.cancel(queued)
    run.cancel(blocker)
    run.finish()


def layers_are_recorded(stage: Stage) -> None:
    """Look for a time of each layer, of steps, runs and copies; the witness checks the order."""
    run = stage.start(step_ticks=4, copy_ticks=4)
    write = run.write
    run.submit(write.prefill())
    run.submit(write.copy_down(0))
    run.submit(write.decode(3, 0))
    run.submit(write.reread(0))
    run.finish()
    _all_done(run)
    for answer in run.completions.values():
        require(
            answer.layers_finished_at,
            Sentence.LAYER_TIMES,
            f"op {answer.op_id} has no layer times, though the backend records them",
        )


def _chain_behind(run: Witness, op_id: OpId) -> list[OpId]:
    """Submit four ops, the first behind `op_id` and each further one behind the one before it."""
    write = run.write
    first = write.prefill(after=(op_id,), gate=Gate.OP)
    chain = [run.submit(first)]
    request_id = first.prefill[0].request_id
    chain.append(run.submit(write.copy_down(request_id, gate=Gate.LAYER)))
    chain.append(run.submit(write.copy_up(request_id)))
    chain.append(run.submit(write.reread(request_id)))
    return chain


def _all_done(run: Witness) -> None:
    for op_id in run.commands:
        run.completion(op_id, DONE, sentence=Sentence.ENDS_DONE)


def _all_failed(run: Witness, op_ids: list[OpId]) -> None:
    for op_id in op_ids:
        answer = run.completion(op_id, FAILED, sentence=Sentence.FAILS_WITH_PREDECESSOR)
        require(answer.reason, Sentence.REASON, f"op {op_id} failed and gives no reason")


CHECKS: Final = (
    check(every_op_has_one_completion, Sentence.ONE_COMPLETION),
    check(a_full_run_has_done_all_its_steps, Sentence.ALL_STEPS),
    check(ops_fail_with_a_failed_predecessor, Sentence.FAILS_WITH_PREDECESSOR, "can_fail"),
    check(ops_fail_with_a_cancelled_predecessor, Sentence.FAILS_WITH_PREDECESSOR),
    check(
        ops_fail_with_a_timed_out_predecessor, Sentence.FAILS_WITH_PREDECESSOR, "steps_take_time"
    ),
    check(an_op_may_wait_for_one_that_has_ended, Sentence.ENDS_DONE),
    check(a_long_chain_of_failures_is_answered, Sentence.FAILS_WITH_PREDECESSOR),
    check(layers_are_recorded, Sentence.LAYER_TIMES, "records_layers"),
)
