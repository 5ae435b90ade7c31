"""Orders that an operator gives while a run goes on: each is done, waits, or is refused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kvsim.errors import ConfigError, PolicyError
from kvsim.events import InterventionTaken

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.core.manager import CacheManager
    from kvsim.core.ops import Answer, Command
    from kvsim.core.ports import EventSink
    from kvsim.core.scheduler import Scheduler
    from kvsim.types import BlockKey, TierIndex


class Action(StrEnum):
    """What can be ordered."""

    RESIZE = "resize"
    FLUSH = "flush"
    WEIGHTS = "weights"
    PIN = "pin"
    UNPIN = "unpin"
    EVICT = "evict"


class Status(StrEnum):
    """What came of an order."""

    DONE = "done"
    DEFERRED = "deferred"
    """It waits; another event says when it is done."""
    REFUSED = "refused"
    """Nothing has changed."""
    UNFINISHED = "unfinished"
    """The run has ended, and something that is pinned is still in the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervention:
    """One order.

    Parameters
    ----------
    at
        When it is given (ns).
    action
        What is to be done.
    keys
        Of the prefix, for what concerns one.
    tier, num_blocks
        Of a resize.
    waits
        Whether a flush holds requests back until nothing is running; else it is refused then.
    """

    at: int
    action: Action
    keys: tuple[BlockKey, ...] = ()
    tier: TierIndex = 0
    num_blocks: int = 0
    waits: bool = True


@dataclass(slots=True)
class InterventionRecord:
    """What came of an order: `done_at` is None if it was refused, or never came to its end."""

    intervention: Intervention
    status: Status = Status.DEFERRED
    detail: str = ""
    taken_at: int | None = None
    done_at: int | None = None


class Operator:
    """Stands before a scheduler and gives orders to it and its cache at their times.

    For the engine's loop it is what the scheduler is.

    Parameters
    ----------
    manager, scheduler
        Of the instance.
    interventions
        The orders; those of one time are given in this order.
    sink
        Where events go; None: nowhere.

    Attributes
    ----------
    records
        One an order, in the order of their times.
    """

    def __init__(
        self,
        manager: CacheManager,
        scheduler: Scheduler,
        interventions: Iterable[Intervention],
        *,
        sink: EventSink | None = None,
    ) -> None:
        self._manager = manager
        self._scheduler = scheduler
        self._limits = scheduler.limits
        self._sink = sink
        ordered = sorted(interventions, key=lambda each: each.at)
        self.records = [InterventionRecord(each) for each in ordered]
        self._num_given = 0
        self._open: list[int] = []  # given and not done
        self._now = 0

    # -- what the loop asks

    def has_work(self) -> bool:
        """Whether a request is left, an op has not settled or an order is to come."""
        return self._scheduler.has_work() or self._num_given < len(self.records) or bool(self._open)

    def next_wakeup_at(self) -> int | None:
        """Return when `step` must be called again even if nothing is answered."""
        if self._open and not self._scheduler.has_work():
            return self._now  # nothing else will ever wake it
        at = self._scheduler.next_wakeup_at()
        if self._num_given < len(self.records):
            order_at = self.records[self._num_given].intervention.at
            at = order_at if at is None else min(at, order_at)
        return at

    def step(self, now: int) -> Sequence[Command]:
        """Give the orders that are due, then let the scheduler decide."""
        self._now = now
        records = self.records
        commands: list[Command] = []
        if self._open:
            self._try_again(commands, now)
        while self._num_given < len(records) and records[self._num_given].intervention.at <= now:
            index = self._num_given
            self._num_given += 1
            records[index].taken_at = now
            self._open.append(index)
            self._take(index, commands, now)
        self._limits.open()
        if any(records[i].intervention.action is Action.FLUSH for i in self._open):
            self._limits.close()
        return [*commands, *self._scheduler.step(now)] if commands else self._scheduler.step(now)

    def settle(self, answer: Answer) -> None:
        """Take one answer."""
        self._scheduler.settle(answer)

    # -- the orders

    def _try_again(self, commands: list[Command], now: int) -> None:
        for index in list(self._open):
            record = self.records[index]
            if record.status is not Status.DEFERRED or not record.detail:
                continue
            self._take(index, commands, now)

    def _take(self, index: int, commands: list[Command], now: int) -> None:
        """Try an order; note what came of it if that is news."""
        record = self.records[index]
        order = record.intervention
        if order.action is Action.RESIZE:
            status, detail = self._resize(record, commands, now)
        elif order.action is Action.FLUSH:
            status, detail = self._flush(order)
        elif order.action is Action.WEIGHTS:
            version = self._manager.bump_weight_version()
            status, detail = Status.DONE, f"version {version}"
        else:
            status, detail = self._take_prefix(order)
        if (status, detail) == (record.status, record.detail):
            return
        record.status, record.detail = status, detail
        if status is not Status.DEFERRED:
            self._open.remove(index)
            record.done_at = now if status is Status.DONE else None
        if self._sink is not None:
            self._sink.emit(
                InterventionTaken(
                    at=now,
                    position=index,
                    action=str(order.action),
                    status=str(status),
                    detail=detail,
                )
            )

    def _flush(self, order: Intervention) -> tuple[Status, str]:
        if self._manager.flush():
            return Status.DONE, "every tier is empty"
        if not order.waits:
            return Status.REFUSED, "work is running"
        return Status.DEFERRED, "work is running: nobody is admitted until it has ended"

    def _take_prefix(self, order: Intervention) -> tuple[Status, str]:
        manager, limits, keys = self._manager, self._limits, order.keys
        if order.action is Action.EVICT:
            came = manager.evict(keys)
            return Status.DONE, f"{came.num_gone} blocks went, {came.num_kept} stay"
        if order.action is Action.UNPIN:
            if not manager.upkeep.is_pinned(keys):
                return Status.REFUSED, "the prefix is not pinned"
            manager.unpin_prefix(keys)
            limits.pinned_keys = manager.upkeep.pinned_keys
            return Status.DONE, f"{len(keys)} blocks"
        pinned = manager.upkeep.pinned_keys.union(keys)
        if problem := self._problem(limits.num_gpu_blocks, pinned):
            return Status.REFUSED, problem
        num_there = manager.pin_prefix(keys)
        limits.pinned_keys = pinned
        return Status.DONE, f"{len(keys)} blocks, {num_there} of them cached"

    def _problem(self, num_gpu_blocks: int, pinned: set[BlockKey]) -> str:
        """Return what cannot work with this capacity and these pins; empty: all can."""
        if len(pinned) >= num_gpu_blocks:
            return f"{len(pinned)} pinned blocks leave no room in {num_gpu_blocks}"
        misfit = self._limits.misfit(num_gpu_blocks, pinned)
        if misfit is None:
            return ""
        return (
            f"request {misfit.request.request_id} needs {misfit.num_most_blocks} blocks, more than"
            f" {num_gpu_blocks} with {len(pinned)} pinned would allow it"
        )

    def _resize(
        self, record: InterventionRecord, commands: list[Command], now: int
    ) -> tuple[Status, str]:
        manager, limits, order = self._manager, self._limits, record.intervention
        if manager.upkeep.num_blocks(order.tier) != order.num_blocks or not record.detail:
            pinned = set(limits.pinned_keys)
            if not order.tier:
                if len(pinned) >= order.num_blocks:
                    return Status.REFUSED, self._problem(order.num_blocks, pinned)
                # Whoever comes from now on must fit; those who are here may end first.
                limits.num_gpu_blocks = order.num_blocks
                if problem := self._problem(order.num_blocks, pinned):
                    return Status.DEFERRED, problem
            try:
                commands += manager.resize(order.tier, order.num_blocks, now).ops
            except PolicyError as error:
                limits.num_gpu_blocks = manager.upkeep.num_blocks()
                return Status.REFUSED, str(error)
        elif not self._scheduler.has_work():
            commands += manager.upkeep.retire(now)
        num_left = manager.upkeep.num_retiring_blocks(order.tier)
        if not num_left:
            return Status.DONE, f"{order.num_blocks} blocks"
        if self._scheduler.has_work() or commands:
            return Status.DEFERRED, "blocks beyond the size are in use"
        return Status.UNFINISHED, f"{num_left} blocks beyond the size are pinned"


def check_tiers(interventions: Iterable[Intervention], num_tiers: int) -> None:
    """Raise `ConfigError` if a tier is to be resized that is not there."""
    for each in interventions:
        if each.action is Action.RESIZE and each.tier >= num_tiers:
            raise ConfigError(
                f"interventions resize tier {each.tier}, and this run has {num_tiers}: give it a"
                " size to begin with"
            )
