"""The ops under way on one rank, as tasks that take turns: none of them ever blocks the others.

A task is asked to `advance`, does the next piece of its work and says when it wants to be asked
again. The piece is a layer, so a copy goes on between the layers of a step, as on a GPU with a
stream for copies; of a run of steps it is all that is due.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from kvsim.backends.paddle.orders import RankDone
from kvsim.core.ops import Gate, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.backends.faults import Fault
    from kvsim.backends.paddle.copier import Copy
    from kvsim.backends.paddle.memory import Tally
    from kvsim.backends.paddle.orders import Acknowledgement, OpOrder
    from kvsim.types import OpId

AT_ONCE: Final = 0
"""A time that has always come: more can be done now."""

_POLL_NS: Final = 20_000
"""How often a copy that goes on by itself is asked whether it is done: a copy of a megabyte takes
as long, and to ask costs a twentieth of it."""


class RankOps:
    """How far each op is on this rank, and what has been told about it.

    Parameters
    ----------
    rank
        Number of the rank.
    tell
        Takes acknowledgements.
    """

    def __init__(self, rank: int, tell: Callable[[Acknowledgement], None]) -> None:
        self.rank = rank
        self.tell = tell
        self._layer_times: dict[OpId, list[int]] = {}
        self._outcomes: dict[OpId, Outcome] = {}
        self._num_waiting: dict[OpId, int] = {}
        self._unwanted: set[OpId] = set()

    def begin(self, order: OpOrder) -> None:
        """Take an op up: what it waits for is kept until it has ended itself."""
        for op_id in order.after:
            self._num_waiting[op_id] = self._num_waiting.get(op_id, 0) + 1

    def lost_predecessor(self, order: OpOrder) -> OpId | None:
        """Return an op that `order` waits for and that did not end DONE here, if there is one."""
        for op_id in order.after:
            if self._outcomes.get(op_id, Outcome.DONE) is not Outcome.DONE:
                return op_id
        return None

    def may_start(self, order: OpOrder, layer: int) -> bool:
        """Whether the gate of an op is open for `layer`.

        An op that this rank has not heard of yet has no layer finished.
        """
        if order.gate is Gate.OP:
            return self.may_end(order)
        return all(
            op_id in self._outcomes or len(self._layer_times.get(op_id, ())) > layer
            for op_id in order.after
        )

    def may_end(self, order: OpOrder) -> bool:
        """Whether all that an op waits for has ended here."""
        return all(op_id in self._outcomes for op_id in order.after)

    def finish_layer(self, op_id: OpId, at: int) -> None:
        """Let those that wait for the next layer of an op go on."""
        self._layer_times.setdefault(op_id, []).append(at)

    def layer_times(self, op_id: OpId) -> tuple[int, ...]:
        """Return when each layer of an op was finished, of those that are."""
        return tuple(self._layer_times.get(op_id, ()))

    def finish(self, order: OpOrder, done: RankDone) -> None:
        """Let those that wait for an op go on, or fail."""
        self._outcomes[done.op_id] = done.outcome
        for op_id in order.after:
            self._num_waiting[op_id] -= 1
            if not self._num_waiting[op_id]:
                del self._num_waiting[op_id]
                if op_id in self._unwanted:
                    self.forget(op_id)
        self.tell(done)

    def outcome_of(self, op_id: OpId) -> Outcome | None:
        """Return how an op ended on this rank."""
        return self._outcomes.get(op_id)

    def forget(self, op_id: OpId) -> None:
        """Drop an op that no order to come will name, when nobody waits for it any more."""
        if op_id in self._num_waiting:
            self._unwanted.add(op_id)
            return
        self._unwanted.discard(op_id)
        self._layer_times.pop(op_id, None)
        self._outcomes.pop(op_id, None)


class Ending:
    """How an op comes to its end on a rank: well, or as a fault will have it.

    Parameters
    ----------
    order
        The op.
    ops
        Where its end is told.
    fault
        What goes wrong with it here: it fails or hangs when half of its layers, or of its steps,
        are done; or it ends late.
    tally
        What it has read.
    """

    def __init__(self, order: OpOrder, ops: RankOps, fault: Fault | None, tally: Tally) -> None:
        self._order = order
        self._ops = ops
        self._delay_ns = 0 if fault is None else fault.delay_ns
        self.reason = "" if fault is None else fault.reason
        self._settle_at: int | None = None
        if fault is not None and fault.settle_ns is not None:
            # Only an op with a deadline hangs (see `kvsim.backends.faults`).
            self._settle_at = (order.deadline_at or 0) + fault.settle_ns
        self._tally = tally
        self.started_at: int | None = None
        self.is_over = False
        self._late_until: int | None = None

    @property
    def is_troubled(self) -> bool:
        """Whether the op fails or hangs when half of it is done."""
        return bool(self.reason) or self._settle_at is not None

    @property
    def hears(self) -> bool:
        """Whether the op can be stopped: one that hangs cannot."""
        return self._settle_at is None or self.started_at is None

    def trouble(self, now: int) -> int:
        """Fail, or hang until the time to settle has come; return when to ask again."""
        if self._settle_at is not None:
            if now < self._settle_at:
                return self._settle_at
            return self.end(now, Outcome.FAILED, reason="it hung (injected fault)")
        return self.end(now, Outcome.FAILED, reason=self.reason)

    def wait_if_late(self, now: int) -> int | None:
        """Return until when the op is held up; None if it is not, or no more."""
        if self._delay_ns and self._late_until is None:
            self._late_until = now + self._delay_ns
        if self._late_until is not None and now < self._late_until:
            return self._late_until
        return None

    def end(self, now: int, outcome: Outcome, *, steps_done: int = 0, reason: str = "") -> int:
        """Acknowledge, once; return `AT_ONCE`."""
        self.is_over = True
        self._ops.finish(
            self._order,
            RankDone(
                self._ops.rank,
                self._order.op_id,
                outcome,
                now if self.started_at is None else self.started_at,
                now,
                steps_done,
                reason,
                self._tally.num_wrong_bytes,
                self._tally.first_wrong,
                self._ops.layer_times(self._order.op_id),
                self._tally.copy_ns,
            ),
        )
        return AT_ONCE

    def end_if_lost(self, now: int) -> bool:
        """Fail if an op it waits for has not ended well; return whether it was so."""
        op_id = self._ops.lost_predecessor(self._order)
        if op_id is None:
            return False
        outcome = self._ops.outcome_of(op_id)
        self.end(now, Outcome.FAILED, reason=f"op {op_id}, which it waits for, ended {outcome}")
        return True


class LayerTask:
    """An op that goes through the layers once: a Transfer, or a Forward of one step.

    Layer l begins when its gate is open and layer l - 1 is finished, and takes at least its share
    of `step_ns`.

    Parameters
    ----------
    order
        The op.
    ops
        The ops of the rank.
    ending
        Its end.
    do_layer
        Begins the work of a layer, and returns what says when it is done.
    num_layers, step_ns
        Of the shape; and how long the op must take.
    is_step
        Whether a stop waits for the end of the op, once it has begun.
    is_whole
        Whether `do_layer(0)` does the work of all layers, which then finish together.
    """

    def __init__(
        self,
        order: OpOrder,
        ops: RankOps,
        ending: Ending,
        do_layer: Callable[[int], Copy],
        *,
        num_layers: int,
        step_ns: int,
        is_step: bool,
        is_whole: bool = False,
    ) -> None:
        self._order = order
        self._ops = ops
        self.ending = ending
        self._do_layer = do_layer
        self._num_layers = num_layers
        self._step_ns = step_ns
        self._is_step = is_step
        self._num_at_once = num_layers if is_whole else 1
        self._layer = 0
        self._work: Copy | None = None
        self._due_at = 0  # when the present layer is over, or the last one was
        self._stop: bool | None = None  # at once, or at the end of the step; None: not wanted

    def stop(self, *, at_once: bool) -> None:
        """End early, at the next `advance`, if the op still can."""
        self._stop = at_once or bool(self._stop)

    def advance(self, now: int) -> int | None:
        """Do the next thing that can be done at `now`; return when to ask again.

        None: when another op has moved.
        """
        ending = self.ending
        if self._work is not None and not self._work.is_done():
            # It cannot be stopped: whoever gets the blocks next must not be written over.
            return now + _POLL_NS
        if self._stop is not None and ending.hears:
            has_begun = ending.started_at is not None
            if self._stop or not has_begun or not self._is_step:
                return ending.end(now, Outcome.CANCELLED)
        if self._work is not None:
            return self._finish_layer(now)
        if self._layer == self._num_layers:
            return self._finish(now)
        if ending.is_troubled and 2 * self._layer >= self._num_layers:
            return ending.trouble(now)
        return self._begin_layer(now)

    def _begin_layer(self, now: int) -> int | None:
        if self.ending.end_if_lost(now):
            return AT_ONCE
        begin, end = self._layer, self._layer + self._num_at_once
        if not self._ops.may_start(self._order, end - 1):
            return None
        if self.ending.started_at is None:
            self.ending.started_at = self._due_at = now
        elif self._order.after:
            self._due_at = max(self._due_at, now)
        self._due_at += self._step_ns * end // self._num_layers
        self._due_at -= self._step_ns * begin // self._num_layers
        self._work = self._do_layer(begin)
        return AT_ONCE

    def _finish(self, now: int) -> int | None:
        """End, but not before the ops it waits for: one of them may still fail after its layers."""
        late_until = self.ending.wait_if_late(now)
        if late_until is not None:
            return late_until
        if self.ending.end_if_lost(now):
            return AT_ONCE
        if not self._ops.may_end(self._order):
            return None
        return self.ending.end(now, Outcome.DONE, steps_done=int(self._is_step))

    def _finish_layer(self, now: int) -> int:
        if now < self._due_at:
            return self._due_at
        self._work = None
        for _ in range(self._num_at_once):
            self._ops.finish_layer(self._order.op_id, now)
            self._layer += 1
        return AT_ONCE


class RunTask:
    """A Forward of several steps, which can be ended at any step boundary.

    It begins when all it waits for has ended: later than its gate may allow, never too early.

    Parameters
    ----------
    order, ops, ending
        See `LayerTask`.
    begin
        Checks what is read, before the first step.
    do_steps
        Does the work of the steps from the first to before the second argument.
    num_layers
        Of the shape.
    step_ends_ns
        End of each step after the start.
    """

    def __init__(
        self,
        order: OpOrder,
        ops: RankOps,
        ending: Ending,
        begin: Callable[[], None],
        do_steps: Callable[[int, int], None],
        *,
        num_layers: int,
        step_ends_ns: Sequence[int],
    ) -> None:
        self._order = order
        self._ops = ops
        self.ending = ending
        self._begin = begin
        self._do_steps = do_steps
        self._num_layers = num_layers
        self._step_ends_ns = step_ends_ns
        # One that fails or hangs comes to half of its steps.
        self._last_step = len(step_ends_ns) // (2 if ending.is_troubled else 1)
        self._num_done = 0
        self._stop: bool | None = None

    def stop(self, *, at_once: bool) -> None:
        """End early, at the next `advance`, if the op still can."""
        self._stop = at_once or bool(self._stop)

    def advance(self, now: int) -> int | None:
        """Do the steps whose time has come; return when to ask again."""
        ending = self.ending
        if ending.started_at is None:
            if self._stop is not None:
                return ending.end(now, Outcome.CANCELLED)
            if ending.end_if_lost(now):
                return AT_ONCE
            if not self._ops.may_end(self._order):
                return None
            ending.started_at = now
            self._begin()
            return AT_ONCE
        if self._stop and ending.hears:
            return ending.end(now, Outcome.CANCELLED)
        return self._advance_steps(now, ending.started_at)

    def _advance_steps(self, now: int, started_at: int) -> int | None:
        ending, ends = self.ending, self._step_ends_ns
        num_due = min(bisect_right(ends, now - started_at), self._last_step)
        if self._stop is not None and num_due < self._last_step:
            self._last_step = min(num_due + 1, self._last_step)
            self._stop = None
        if num_due > self._num_done:
            self._do_steps(self._num_done, num_due)
            self._num_done = num_due
            return AT_ONCE
        if num_due < self._last_step:
            # It is not asked at every step: what is due by then is done together.
            return started_at + ends[self._last_step - 1]
        if ending.is_troubled:
            return ending.trouble(now)
        late_until = ending.wait_if_late(now)
        if late_until is not None:
            return late_until
        for _ in range(self._num_layers):
            self._ops.finish_layer(self._order.op_id, now)
        return ending.end(now, Outcome.DONE, steps_done=self._num_done)
