"""Forwards: one at a time on an instance, in the order they were submitted."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from kvsim.backends.sim.layers import gated_layer_times, straight
from kvsim.backends.sim.ledger import NOT_STARTED
from kvsim.core.ops import Gate, Outcome
from kvsim.cost import prefill_attention_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.faults import Fault
    from kvsim.backends.sim.layers import LayerCurve
    from kvsim.backends.sim.ledger import Clock, Ledger, SimOp
    from kvsim.core.ops import Forward
    from kvsim.cost import CostModel

_DONE: Final = Outcome.DONE


class ForwardOp:
    """A Forward under simulation.

    It is *queued* until it is the first of its instance (and, with gate OP, until all ops in
    `after` are done), then *parked* while ops in `after` are open (gate LAYER only; some of its
    layers may be computed by then), then *running*: step j ends at `base_at` + the cost of j steps.
    """

    __slots__ = (
        "base_at",
        "command",
        "curves",
        "fault",
        "instance",
        "is_timed_out",
        "layer_times",
        "num_open",
        "num_prefill_tokens",
        "num_steps",
        "op_id",
        "prefill_attention_tokens",
        "started_at",
        "ticket",
        "waiters",
    )

    def __init__(self, command: Forward, instance: Instance, fault: Fault | None) -> None:
        self.command = command
        self.op_id = command.op_id
        self.instance = instance
        self.fault = fault
        self.ticket = 0
        self.is_timed_out = False
        self.started_at = NOT_STARTED
        self.base_at = 0
        self.num_steps = command.num_steps
        self.num_open = 0
        self.waiters: list[SimOp] | None = None
        self.curves: list[LayerCurve] | None = None
        self.layer_times: tuple[int, ...] = ()
        num_tokens = attention_tokens = 0
        for piece in command.prefill:
            num_tokens += piece.num_tokens
            attention_tokens += prefill_attention_tokens(piece.first_token, piece.num_tokens)
        self.num_prefill_tokens = num_tokens
        self.prefill_attention_tokens = attention_tokens

    def wait_for(self, predecessor: SimOp | None) -> None:
        """Count one more op in `after` that has not ended."""
        self.num_open += 1

    def predecessor_started(self, predecessor: SimOp) -> None:
        """Do nothing: a Forward is worked out when all its predecessors are done."""

    def predecessor_done(self, predecessor: SimOp) -> None:
        """Keep the layer times of a predecessor if they matter; go on after the last one."""
        self.num_open -= 1
        if self.curves is not None:
            self.curves.append(predecessor.curve())
        if not self.num_open:
            self.instance.release(self)

    def first_layer_at(self) -> int | None:
        """Return when the first layer is finished, at the latest; None unless it runs one step.

        It is what the end leaves to the other layers: exact unless layers had to wait.
        """
        if self.started_at == NOT_STARTED or self.num_open or self.command.num_steps > 1:
            return None
        if self.fault is not None and self.fault.settle_ns is not None:
            return None
        return self.instance.first_layer_at(self)

    def curve(self) -> LayerCurve:
        """Return the layers of the last step, each as late as the op's end allows.

        Exact unless layers had to wait for other ops or a rank was late.
        """
        end_at = self.instance.now()
        return straight(end_at - self.instance.last_step_ns(self), end_at)

    def cancel(self) -> None:
        """End at the next step boundary, or at once if it is queued."""
        if self.started_at == NOT_STARTED:
            self.abort(Outcome.CANCELLED, "")
        else:
            self.instance.cut(self)

    def end(self) -> None:
        """Come to rest as planned, now."""
        self.instance.end(self)

    def abort(self, outcome: Outcome, reason: str) -> None:
        """Come to rest in another way, now."""
        self.instance.abort(self, outcome, reason)


class Instance:
    """The queue of one instance: its first Forward is under way or waits, the others follow."""

    __slots__ = ("_clock", "_forward_ns", "_ledger", "_num_layers", "_queue", "_records_layers")

    def __init__(
        self, cost: CostModel, clock: Clock, ledger: Ledger, *, records_layers: bool
    ) -> None:
        self._forward_ns = cost.forward_ns
        self._num_layers = cost.num_layers
        self._clock = clock
        self._ledger = ledger
        self._records_layers = records_layers
        self._queue: deque[ForwardOp] = deque()

    def submit(self, op: ForwardOp) -> None:
        """Take an op that has just been enrolled."""
        self._queue.append(op)
        if len(self._queue) == 1:
            self._become_first(op)

    def release(self, op: ForwardOp) -> None:
        """Go on with an op whose predecessors have all ended DONE."""
        if op.curves is not None:
            self._launch_gated(op, op.curves)
        elif self._queue[0] is op:
            self._launch(op)

    def end(self, op: ForwardOp) -> None:
        """End an op as planned: DONE, or FAILED if it has a fault that says so."""
        if op.fault is not None and op.fault.reason:
            self._ledger.finish(op, Outcome.FAILED, op.fault.reason)
        elif self._records_layers:
            layers = op.layer_times if op.num_steps == 1 else ()
            layers = layers or op.curve().layer_times(self._num_layers)
            self._ledger.finish(op, _DONE, steps_done=op.num_steps, layers_finished_at=layers)
        else:
            self._ledger.finish(op, _DONE, steps_done=op.num_steps)
        self._leave(op)

    def abort(self, op: ForwardOp, outcome: Outcome, reason: str) -> None:
        """End an op now, before it has run."""
        self._ledger.finish(op, outcome, reason)
        self._leave(op)

    def cut(self, op: ForwardOp) -> None:
        """End a started op at the first step boundary from now on; ignored in its last step.

        A rank that hangs does not hear it. A parked op has not finished its first step.
        """
        if op.num_steps == 1 or (op.fault is not None and op.fault.settle_ns is not None):
            return
        if op.num_open:
            op.num_steps = 1
            return
        spent_ns = self._clock.now - op.base_at
        num_steps = first_boundary(lambda steps: self._cost_ns(op, steps), op.num_steps, spent_ns)
        if num_steps < op.num_steps:
            op.num_steps = num_steps
            op.ticket += 1
            self._plan_end(op)
            self._ledger.watch(op)

    def now(self) -> int:
        """Return the time in nanoseconds."""
        return self._clock.now

    def last_step_ns(self, op: ForwardOp) -> int:
        """Return the time of the last of the op's steps."""
        run_ns = self._cost_ns(op, op.num_steps)
        return run_ns if op.num_steps == 1 else run_ns - self._cost_ns(op, op.num_steps - 1)

    def first_layer_at(self, op: ForwardOp) -> int:
        """Return when the first layer of a running op of one step is finished, at the latest."""
        step_ns = self._cost_ns(op, 1)
        delay_ns = 0 if op.fault is None else op.fault.delay_ns
        later_layers_ns = step_ns * (self._num_layers - 1) // self._num_layers
        return op.base_at + delay_ns + step_ns - later_layers_ns

    def _become_first(self, op: ForwardOp) -> None:
        if not op.num_open:
            self._launch(op)
        elif op.command.gate is Gate.LAYER:
            op.started_at = self._clock.now
            op.curves = []

    def _launch(self, op: ForwardOp) -> None:
        op.started_at = op.base_at = self._clock.now
        self._plan_end(op)
        if op.waiters is not None:
            self._announce(op)

    def _launch_gated(self, op: ForwardOp, curves: list[LayerCurve]) -> None:
        """Run a parked op: its first step ends as late as its predecessors' layers make it."""
        first_at, num_layers = op.started_at, self._num_layers
        step_ns = self._cost_ns(op, 1)
        end_at = first_at + step_ns
        for curve in curves:
            end_at = max(end_at, curve.gated_end_at(num_layers, step_ns))
            op.started_at = max(op.started_at, curve.finished_at(0, num_layers))
        op.base_at = end_at - step_ns
        if self._records_layers:
            delay_ns = 0 if op.fault is None else op.fault.delay_ns
            times = gated_layer_times(curves, first_at, num_layers, step_ns)
            op.layer_times = tuple(time + delay_ns for time in times)
        self._plan_end(op)
        if op.waiters is not None:
            self._announce(op)

    def _plan_end(self, op: ForwardOp) -> None:
        end_at = op.base_at + self._forward_ns(
            op.num_prefill_tokens,
            op.prefill_attention_tokens,
            op.command.num_decodes,
            op.command.context_tokens,
            op.num_steps,
        )
        if op.fault is not None:
            if op.fault.settle_ns is not None:
                return
            end_at += op.fault.delay_ns
        self._clock.at(end_at, op.end, op)

    def _announce(self, op: ForwardOp) -> None:
        for waiter in op.waiters or ():
            waiter.predecessor_started(op)

    def _leave(self, op: ForwardOp) -> None:
        queue = self._queue
        if queue[0] is not op:
            queue.remove(op)
            return
        queue.popleft()
        if queue:
            self._become_first(queue[0])

    def _cost_ns(self, op: ForwardOp, num_steps: int) -> int:
        command = op.command
        return self._forward_ns(
            op.num_prefill_tokens,
            op.prefill_attention_tokens,
            command.num_decodes,
            command.context_tokens,
            num_steps,
        )


def first_boundary(cost_ns: Callable[[int], int], num_steps: int, spent_ns: int) -> int:
    """Return the least j from 1 to `num_steps` with `cost_ns(j) >= spent_ns`, else `num_steps`.

    Steps get longer only slowly, so a straight line nearly hits it: three costs are worked out
    where bisection, which takes over if the line misses, would need ten.
    """
    run_ns = cost_ns(num_steps)
    if run_ns <= spent_ns:
        return num_steps
    low, high = 0, num_steps
    guess = spent_ns * num_steps // run_ns
    for probe in (guess, guess + 1, guess - 1):
        if low < probe < high:
            low, high = (probe, high) if cost_ns(probe) < spent_ns else (low, probe)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost_ns(middle) < spent_ns else (low, middle)
    return high
