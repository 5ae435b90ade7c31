"""One rank: it takes orders, lets the ops under way take turns, and acknowledges."""

from __future__ import annotations

from functools import partial
from queue import Empty
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.backends.paddle.copier import CopyError
from kvsim.backends.paddle.memory import Tally
from kvsim.backends.paddle.orders import Close, Forget, ForwardOrder, Slots, Stop, TransferOrder
from kvsim.backends.paddle.tasks import AT_ONCE, Ending, LayerTask, RankOps, RunTask
from kvsim.core.ops import Outcome
from kvsim.types import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.paddle.memory import RankMemory
    from kvsim.backends.paddle.orders import Acknowledgement, Inbox, Order
    from kvsim.types import OpId

_LONGEST_WAIT_S: Final = 60.0  # far below what the system's waits can express


class RankWorker:
    """Carries out orders until it is told to close.

    Parameters
    ----------
    rank
        Number of the rank.
    memory
        Its pools.
    clock
        Gives the time in nanoseconds, the same on all ranks.
    inbox
        Where orders come from.
    tell
        Takes acknowledgements.
    """

    def __init__(
        self,
        *,
        rank: int,
        memory: RankMemory,
        clock: Callable[[], int],
        inbox: Inbox[Order],
        tell: Callable[[Acknowledgement], None],
    ) -> None:
        self._rank = rank
        self._memory = memory
        self._clock = clock
        self._inbox = inbox
        self._ops = RankOps(rank, tell)
        self._tasks: dict[OpId, LayerTask | RunTask] = {}

    def run(self) -> None:
        """Work until told to close; no copy is on its way after that."""
        try:
            self._work()
        finally:
            self._memory.close()

    def _work(self) -> None:
        while True:
            order = self._receive(self._advance_all())
            while order is not None:
                if isinstance(order, Close):
                    return
                self._take(order)
                order = self._receive(AT_ONCE)

    def _advance_all(self) -> int:
        """Give every op a turn; return when the first of them wants another."""
        wake_at = NEVER
        for op_id, task in list(self._tasks.items()):
            try:
                again_at = task.advance(self._clock())
            except CopyError as error:
                self._memory.drain()  # other pieces of it may be on their way
                again_at = task.ending.end(self._clock(), Outcome.FAILED, reason=str(error))
            if task.ending.is_over:
                del self._tasks[op_id]
            if again_at is not None and again_at < wake_at:
                wake_at = again_at
        return wake_at

    def _receive(self, until: int) -> Order | None:
        """Return the next order; None if none has come by `until`."""
        wait_s = 0.0 if until == AT_ONCE else (until - self._clock()) / 10**9
        try:
            if wait_s <= 0:
                return self._inbox.get(block=False)
            return self._inbox.get(timeout=min(wait_s, _LONGEST_WAIT_S))
        except Empty:
            return None

    def _take(self, order: Order) -> None:
        if isinstance(order, Stop):
            task = self._tasks.get(order.op_id)
            if task is not None:
                task.stop(at_once=order.at_once)
        elif isinstance(order, Forget):
            self._ops.forget(order.op_id)
        elif isinstance(order, TransferOrder):
            self._ops.begin(order)
            self._tasks[order.op_id] = self._copy(order)
        elif isinstance(order, ForwardOrder):
            self._ops.begin(order)
            self._tasks[order.op_id] = self._compute(order)

    def _copy(self, order: TransferOrder) -> LayerTask:
        memory = self._memory
        is_whole = memory.goes_whole(order)
        tally = Tally()
        ending = Ending(order, self._ops, order.fault_of(self._rank), tally)
        if ending.is_troubled:  # it comes to half of its layers
            is_whole = False
        return LayerTask(
            order,
            self._ops,
            ending,
            partial(
                memory.timed,
                (lambda _: memory.copy_blocks(order))
                if is_whole
                else partial(memory.copy_layer, order),
                tally,
            ),
            num_layers=memory.num_layers,
            step_ns=0,
            is_step=False,
            is_whole=is_whole,
        )

    def _compute(self, order: ForwardOrder) -> LayerTask | RunTask:
        tally = Tally()
        ending = Ending(order, self._ops, order.fault_of(self._rank), tally)
        if len(order.step_ends_ns) == 1:
            return LayerTask(
                order,
                self._ops,
                ending,
                partial(self._memory.compute_layer, order, tally),
                num_layers=self._memory.num_layers,
                step_ns=order.step_ends_ns[0],
                is_step=True,
            )
        return RunTask(
            order,
            self._ops,
            ending,
            partial(self._check_reads, order, tally),
            partial(self._write_steps, order.slot_writes),
            num_layers=self._memory.num_layers,
            step_ends_ns=order.step_ends_ns,
        )

    def _check_reads(self, order: ForwardOrder, tally: Tally) -> None:
        for layer in range(self._memory.num_layers):
            self._memory.check_layer(order, tally, layer)

    def _write_steps(self, slots: Slots, first: int, end: int) -> None:
        """Write what the steps from `first` to before `end` compute: slots, never whole blocks."""
        start, stop = np.searchsorted(slots.steps, (first, end))
        part = Slots(*(column[start:stop] for column in slots))
        for layer in range(self._memory.num_layers):
            self._memory.write_slots(part, layer)
