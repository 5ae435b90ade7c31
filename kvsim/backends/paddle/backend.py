"""The controller of the ranks: a backend whose time is the machine's, and whose blocks are real."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from queue import Empty
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from kvsim.backends.paddle.ledger import Ledger
from kvsim.backends.paddle.orders import (
    Forget,
    RankCrashed,
    RankLost,
    TransferOrder,
)
from kvsim.core.ops import Forward, Gate, Outcome, Transfer
from kvsim.errors import ConfigError, MisuseError, TransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from kvsim.backends.faults import Fault, FaultPlan
    from kvsim.backends.paddle.ledger import OpenOp
    from kvsim.backends.paddle.orders import Acknowledgement, Inbox, OpOrder, Order
    from kvsim.backends.paddle.plans import ForwardPlanner
    from kvsim.backends.setup import TensorFigures
    from kvsim.core.ops import Answer, Command, Place
    from kvsim.types import OpId

_LONGEST_WAIT_S: Final = 60.0  # far below what the system's waits can express


class Rank(Protocol):
    """A worker as the controller sees it: a `RankThread` or a `RankProcess`."""

    def tell(self, order: Order) -> None:
        """Hand an order over, without waiting. Orders are taken in this order."""

    def start(self) -> None:
        """Begin to work."""

    def close(self) -> None:
        """Ask it to stop, without waiting."""

    def join(self) -> None:
        """Wait until it has stopped; at once if it never started."""

    def fence(self) -> None:
        """See to it that it touches no block any more, and wait until that is so."""


class WallClock:
    """Nanoseconds since a start; the same for everybody who asks, in every process of the machine.

    Parameters
    ----------
    start_ns
        By `time.monotonic_ns`, which is CLOCK_MONOTONIC: one clock for the whole machine. Default:
        now.
    """

    __slots__ = ("start_ns",)

    def __init__(self, start_ns: int | None = None) -> None:
        self.start_ns = monotonic_ns() if start_ns is None else start_ns

    def __call__(self) -> int:
        """Return the time."""
        return monotonic_ns() - self.start_ns


def _is_held(op: OpenOp) -> bool:
    """Whether an op may start on no rank before others have ended on all of them."""
    return op.command.gate is Gate.OP and op.num_open_before > 0


class TensorBackend:
    """Has ops carried out by one worker a rank; a `kvsim.core.ports.Backend`.

    Ranks take an op up as soon as its gate is open there, each at its own pace. An op ends when it
    has come to rest on all of them, as the worst of them ended: DONE only if DONE everywhere, after
    the fewest steps that a rank has done. What a faster rank has written beyond is written again.

    Parameters
    ----------
    ranks
        The workers, not yet started.
    acknowledgements
        Where they put what they say.
    clock
        The time, as the ranks have it.
    planner
        Spells the Forwards out.
    places
        Where there are pools.
    faults
        What goes wrong; None: nothing.
    record_layers
        Whether completions that are DONE carry `layers_finished_at`.

    Notes
    -----
    An op is timed out also if it has ended, but after its deadline, or so close before it that the
    deadline was seen first. An op that hangs on a rank hears neither Cancel nor the end of its
    time there. Only instance 0 is known.

    A rank that is lost ends the run. All ranks are fenced, then every open op ends FAILED, or
    settles if it has timed out, so that nothing stays in quarantine; `submit`, and `wait` when it
    has returned these answers, raise `TransferError`.

    All methods are for one thread, the engine's. Between it and the ranks go nothing but orders and
    acknowledgements, neither of which is changed once it is made; the pools are the ranks' own.
    """

    def __init__(
        self,
        ranks: Sequence[Rank],
        acknowledgements: Inbox[Acknowledgement],
        *,
        clock: Callable[[], int],
        planner: ForwardPlanner,
        places: Collection[Place],
        faults: FaultPlan | None = None,
        record_layers: bool = False,
    ) -> None:
        self._ranks: Sequence[Rank] = ranks
        self._acknowledgements = acknowledgements
        self._clock = clock
        self._planner = planner
        self._places = places
        self._faults = faults
        self._ledger = Ledger(
            tell=self._tell_all,
            at_rest=self._rest,
            ready=self._go_on,
            records_layers=record_layers,
        )
        self._queue: deque[OpenOp] = deque()  # Forwards; the first may be on the ranks
        self._is_closed = False
        self._crash: BaseException | None = None
        self._loss: TransferError | None = None
        self._num_wrong_bytes = self._num_checked_blocks = self._num_swapped_blocks = 0
        self._first_wrong = ""
        self._copy_ns: dict[OpId, int] = {}
        with ExitStack() as undo:
            undo.callback(self.close)  # if one does not start, those that did must not stay
            for rank in ranks:
                rank.start()
            undo.pop_all()

    # -- the contract

    def now(self) -> int:
        """Return the time since the backend was made, in nanoseconds."""
        now = self._ledger.earliest_at = self._clock()
        return now

    def submit(self, command: Command) -> None:
        """Hand a command to the ranks.

        Raises
        ------
        MisuseError
            If the backend is closed, the op id is open already, or the op waits for one that was
            not submitted before it.
        ConfigError
            If there is no pool at one end of a Transfer, or the instance is not 0.
        TransferError
            If a rank is lost, whether `wait` has told so or not.
        """
        if self._is_closed:
            raise MisuseError("the backend is closed and takes no commands")
        if self._loss is not None:
            raise self._loss
        if isinstance(command, Forward):
            if command.instance:
                raise ConfigError(f"there is no instance {command.instance}, only 0")
            self._ledger.check(command)
            self._queue.append(self._ledger.enroll(command, self._clock()))
            self._launch()
        elif isinstance(command, Transfer):
            for place in (command.source, command.target):
                if place not in self._places:
                    raise ConfigError(f"there is no pool at {place}")
            self._ledger.check(command)
            op = self._ledger.enroll(command, self._clock())
            if self._ledger.is_open(command.op_id) and not _is_held(op):
                self._send(op, self._transfer_order(command))
        else:
            self._ledger.cancel(command.op_id, self._clock())

    def wait(self, until: int | None) -> Sequence[Answer]:
        """Sleep until an op has ended on all ranks, at most until `until`; return all answers.

        Raises
        ------
        TransferError
            If a rank is lost, and the answers to all open ops have been returned.
        Exception
            Whatever stopped the work of a rank (a bug), again in each call: nothing will go on.
        """
        ledger = self._ledger
        if self._crash is not None and not self._is_closed:
            raise self._crash
        while True:
            self._take_acknowledgements()
            now = self._clock()
            ledger.expire(now)
            self._launch()
            if ledger.answers:
                return ledger.take_answers()
            if self._loss is not None and not self._is_closed:
                raise self._loss
            if until is None:
                if not ledger.open_ops:
                    return ()
            elif now >= until:
                return ()
            times = [at for at in (until, ledger.next_deadline_at) if at is not None]
            wait_s = (min(times) - now) / 10**9 if times else _LONGEST_WAIT_S
            try:
                self._take(self._acknowledgements.get(timeout=min(wait_s, _LONGEST_WAIT_S)))
            except Empty:
                continue

    def close(self) -> None:
        """Stop the ranks, between two layers, wait until they have, and let their memory go.

        Idempotent. What was under way is answered no more.
        """
        self._is_closed = True
        for rank in self._ranks:
            rank.close()
        for rank in self._ranks:
            rank.join()
        self._ranks = ()
        self._ledger.open_ops.clear()
        self._ledger.answers.clear()
        self._queue.clear()

    # -- what is asked after a run

    def figures(self) -> TensorFigures:
        """Return what became of the bytes."""
        return {
            "wrong_bytes": self._num_wrong_bytes,
            "blocks_checked": self._num_checked_blocks,
            "blocks_swapped": self._num_swapped_blocks,
        }

    def copy_ns(self) -> Mapping[OpId, int]:
        """Return how long the slowest rank copied for each Transfer that is done (ns)."""
        return self._copy_ns

    def notes(self) -> list[str]:
        """Return one sentence about the first wrong bytes, if any were found."""
        return [self._first_wrong] if self._first_wrong else []

    # -- ranks

    def _send(self, op: OpenOp, order: OpOrder) -> None:
        op.is_on_ranks = True
        op.ranks_left.update(range(len(self._ranks)))
        self._tell_all(order)

    def _tell_all(self, order: Order) -> None:
        for rank in self._ranks:
            rank.tell(order)

    def _take_acknowledgements(self) -> None:
        """Take all that the ranks have said, without waiting."""
        while True:
            try:
                self._take(self._acknowledgements.get(block=False))
            except Empty:
                return

    def _take(self, said: Acknowledgement) -> None:
        if self._is_closed:
            return
        if isinstance(said, RankCrashed):
            said.error.add_note(f"rank {said.rank} stopped working")
            self._crash = said.error
            raise said.error
        if self._loss is not None:
            return  # what the others still had to say
        if isinstance(said, RankLost):
            self._lose(TransferError(said.reason))
            return
        try:
            self._ledger.take(said, self._clock())
        except TransferError as error:
            self._lose(error)

    def _lose(self, loss: TransferError) -> None:
        """End everything: a rank is lost, and no op can end well without it."""
        self._loss = loss
        for rank in self._ranks:
            rank.fence()
        self._ledger.give_up(str(loss), self._clock())

    # -- ops

    def _launch(self) -> None:
        """Send the next Forward, once the one before has come to rest."""
        queue = self._queue
        while queue:
            op = queue[0]
            if not isinstance(op.command, Forward) or op.is_on_ranks:
                return
            if self._ledger.open_ops.get(op.command.op_id) is not op:
                # It ended without having run; the next one's difference is one to it.
                self._planner.take_difference(op.command)
                queue.popleft()
                continue
            if _is_held(op):
                return
            order = self._planner.plan(
                op.command, after=self._still_open(op.command), faults=self._faults_of(op.command)
            )
            op.num_checked_blocks = order.num_checked_blocks * len(self._ranks)
            self._send(op, order)

    def _go_on(self, op: OpenOp) -> None:
        """Send a Transfer that was held back; a Forward is when its turn comes."""
        if isinstance(op.command, Transfer) and not op.is_on_ranks:
            self._send(op, self._transfer_order(op.command))

    def _rest(self, op: OpenOp) -> None:
        """Go on after an op that has come to rest; what it read counts if its result does."""
        is_forward = isinstance(op.command, Forward)
        if op.is_on_ranks:
            self._tell_all(Forget(op.command.op_id))
            if is_forward:
                self._queue.popleft()
        if op.outcome is not Outcome.DONE or op.is_timed_out:
            return
        if is_forward:
            self._planner.advance(op.steps_done or 0)
            self._num_checked_blocks += op.num_checked_blocks
            self._num_wrong_bytes += op.num_wrong_bytes
            self._first_wrong = self._first_wrong or op.first_wrong
        elif isinstance(op.command, Transfer):
            self._num_swapped_blocks += len(op.command.source_ids)
            self._copy_ns[op.command.op_id] = op.copy_ns

    def _transfer_order(self, transfer: Transfer) -> TransferOrder:
        return TransferOrder(
            op_id=transfer.op_id,
            after=self._still_open(transfer),
            gate=transfer.gate,
            deadline_at=transfer.deadline_at,
            source=transfer.source,
            target=transfer.target,
            source_ids=np.array(transfer.source_ids, np.int64),
            target_ids=np.array(transfer.target_ids, np.int64),
            faults=self._faults_of(transfer),
        )

    def _faults_of(self, command: Forward | Transfer) -> tuple[Fault | None, ...]:
        return () if self._faults is None else self._faults.rank_faults(command)

    def _still_open(self, command: Forward | Transfer) -> tuple[OpId, ...]:
        """Return the ops that a rank has to wait for; those that have ended, it has forgotten."""
        return tuple(filter(self._ledger.is_open, command.after))
