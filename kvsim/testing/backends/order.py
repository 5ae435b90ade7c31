"""Checks of order: the queue of an instance, the two gates, and many ops at once."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from kvsim.core.ops import Gate, Outcome
from kvsim.testing.backends.check import check
from kvsim.testing.backends.contract import Sentence

if TYPE_CHECKING:
    from kvsim.core.ops import Forward, Transfer
    from kvsim.testing.backends.check import Stage
    from kvsim.testing.backends.witness import Witness
    from kvsim.types import OpId

_NUM_OPS: Final = 260
_NUM_GRAPHS: Final = 3


def forwards_run_in_submission_order(stage: Stage) -> None:
    """Submit shorter ones behind longer ones, and one that could start behind one that waits."""
    run = stage.start(step_ticks=3, copy_ticks=9)
    write = run.write
    instances = range(run.spec.num_instances)
    for instance in instances:
        run.submit(write.prefill(instance=instance))
    run.drain()
    for instance in instances:
        run.submit(write.decode(4, instance, instance=instance))
        run.submit(write.prefill(instance=instance))
        slow = run.submit(write.copy_down(instance, instance=instance))
        run.submit(write.prefill(instance=instance, after=(slow,), gate=Gate.OP))
        run.submit(write.prefill(instance=instance))
        run.submit(write.reread(instance, instance=instance))
    run.finish()
    _all_done(run, Sentence.SUBMISSION_ORDER)


def nothing_starts_before_an_op_gate(stage: Stage) -> None:
    """Submit a copy behind a step, a copy behind a copy, and a step behind that."""
    run = stage.start(step_ticks=4, copy_ticks=3)
    _round_trips(run, Gate.OP)
    run.finish()
    _all_done(run, Sentence.GATE_OP)


def no_layer_overtakes_a_layer_gate(stage: Stage) -> None:
    """Submit a send and a reload layer by layer, and a step behind them."""
    run = stage.start(step_ticks=4, copy_ticks=3)
    _round_trips(run, Gate.LAYER)
    run.finish()
    _all_done(run, Sentence.GATE_LAYER)


def an_op_waits_for_the_last_of_several(stage: Stage) -> None:
    """Wait, with either gate, for a short op, a long one, and one that has ended."""
    run = stage.start(step_ticks=4, copy_ticks=1)
    write = run.write
    ended = run.submit(write.prefill())
    run.drain()
    for gate in Gate:
        brief = run.submit(write.copy_down(0))
        long = run.submit(write.decode(4, 0))
        run.submit(write.copy_down(0, after=(ended, brief, long), gate=gate))
        run.submit(write.reread(0, after=(long, ended, brief), gate=gate))
    run.finish()
    _all_done(run, Sentence.GATE_OP)


def many_ops_at_once_are_all_answered(stage: Stage) -> None:
    """Submit random graphs of copies and Forwards behind each other; cancel some of them."""
    for graph in range(_NUM_GRAPHS):
        _random_graph(stage.start(step_ticks=1), Random(f"{stage.traits.seed}:{graph}"))


def _round_trips(run: Witness, gate: Gate) -> None:
    write = run.write
    for request_id in range(3):
        run.submit(write.prefill())
        run.submit(write.copy_down(request_id, gate=gate))
        run.submit(write.copy_up(request_id, gate=gate))
        run.submit(write.reread(request_id, gate=gate))


def _random_graph(run: Witness, rng: Random) -> None:
    submitted: list[OpId] = []
    for _ in range(_NUM_OPS):
        after = tuple(rng.sample(submitted, min(len(submitted), rng.choice((0, 0, 1, 3)))))
        submitted.append(run.submit(_random_op(run, rng, after)))
        if rng.random() < 0.04:
            run.cancel(rng.choice(submitted))
        if rng.random() < 0.02:
            run.wait(run.now() + run.ticks(1))
    run.finish()


def _random_op(run: Witness, rng: Random, after: tuple[OpId, ...]) -> Forward | Transfer:
    """Return a copy, three times in four, or a Forward; the first is a prefill."""
    write, gate = run.write, rng.choice(list(Gate))
    instance = rng.randrange(run.spec.num_instances)
    here = write.prompts_in(instance=instance)
    draw = rng.random()
    if not here or (draw < 0.15 and write.num_requests_left):
        return write.prefill(instance=instance, after=after, gate=gate)
    request_id = rng.choice(here)
    if draw < 0.2:
        return write.decode(
            rng.randint(1, 4), request_id, instance=instance, after=after, gate=gate
        )
    if draw < 0.25:
        return write.reread(request_id, instance=instance, after=after, gate=gate)
    below = write.prompts_in(instance=instance, tier=1)
    if below and draw < 0.5:
        return write.copy_up(rng.choice(below), instance=instance, after=after, gate=gate)
    return write.copy_down(request_id, instance=instance, after=after, gate=gate)


def _all_done(run: Witness, sentence: Sentence) -> None:
    for op_id in run.commands:
        run.completion(op_id, Outcome.DONE, sentence=sentence)


CHECKS: Final = (
    check(forwards_run_in_submission_order, Sentence.SUBMISSION_ORDER),
    check(nothing_starts_before_an_op_gate, Sentence.GATE_OP),
    check(no_layer_overtakes_a_layer_gate, Sentence.GATE_LAYER),
    check(an_op_waits_for_the_last_of_several, Sentence.GATE_OP),
    check(many_ops_at_once_are_all_answered, Sentence.ONE_COMPLETION),
)
