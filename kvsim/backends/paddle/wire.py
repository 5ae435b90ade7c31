"""Orders and acknowledgements as they travel between processes.

Of plain values, so that they can be read without trust; columns of numbers as bytes. `Order`s and
`Acknowledgement`s themselves stay what they are: neither side of them knows how they came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import numpy as np

from kvsim.backends.control import ChannelError
from kvsim.backends.faults import Fault
from kvsim.backends.paddle.allotment import PoolPlan, RankPlan, WorkerId
from kvsim.backends.paddle.layout import Layout
from kvsim.backends.paddle.orders import (
    Attends,
    Blocks,
    Close,
    Forget,
    ForwardOrder,
    RankDone,
    Slots,
    Stop,
    TransferOrder,
)
from kvsim.backends.paddle.shape import KVShape
from kvsim.core.ops import Gate, Outcome, Place

if TYPE_CHECKING:
    from kvsim.backends.paddle.copier import Rows
    from kvsim.backends.paddle.orders import Order

_WORD: Final = np.dtype("<i8")

Faults: TypeAlias = tuple[Fault | None, ...]
Columns: TypeAlias = tuple[bytes, ...]


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """What travels."""


# -- to a worker


class PlanMessage(Message, frozen=True, tag="plan"):
    """Make your pools: you are `worker`, and number `index` of the ranks of your backend."""

    index: int
    worker: WorkerId
    shape: KVShape
    pools: tuple[PoolPlan, ...]
    device: str
    layout: Layout
    has_attention: bool


class BeginMessage(Message, frozen=True, tag="begin"):
    """Work. Times count from `start_ns` of CLOCK_MONOTONIC."""

    start_ns: int


class ForwardMessage(Message, frozen=True, tag="forward"):
    """A `ForwardOrder`."""

    op_id: int
    after: tuple[int, ...]
    gate: Gate
    deadline_at: int | None
    step_ends_ns: tuple[int, ...]
    writes: Columns
    slot_writes: Columns
    reads: Columns
    slot_reads: Columns
    peeks: Columns
    num_checked_blocks: int
    attends: tuple[Columns, Columns] | None
    faults: Faults


class TransferMessage(Message, frozen=True, tag="transfer"):
    """A `TransferOrder`."""

    op_id: int
    after: tuple[int, ...]
    gate: Gate
    deadline_at: int | None
    source: tuple[int, int]
    target: tuple[int, int]
    ids: Columns
    faults: Faults


class StopMessage(Message, frozen=True, tag="stop"):
    """A `Stop`."""

    op_id: int
    at_once: bool


class ForgetMessage(Message, frozen=True, tag="forget"):
    """A `Forget`."""

    op_id: int


class CloseMessage(Message, frozen=True, tag="close"):
    """Let your pools go, say `LeftMessage`, and wait for another plan."""


class PingMessage(Message, frozen=True, tag="ping"):
    """Say `PongMessage`."""


OrderMessage: TypeAlias = (
    ForwardMessage | TransferMessage | StopMessage | ForgetMessage | CloseMessage
)
ToWorker: TypeAlias = PlanMessage | BeginMessage | PingMessage | OrderMessage


# -- from a worker


class HelloMessage(Message, frozen=True, tag="hello"):
    """The first one: which child it is, and what CLOCK_MONOTONIC shows there."""

    index: int
    at_ns: int


class ReadyMessage(Message, frozen=True, tag="ready"):
    """The pools are made: the blocks of each tier."""

    num_blocks: tuple[tuple[int, int], ...]


class RefusedMessage(Message, frozen=True, tag="refused"):
    """The pools cannot be made."""

    reason: str


class DoneMessage(Message, frozen=True, tag="done"):
    """A `RankDone`."""

    rank: int
    op_id: int
    outcome: Outcome
    started_at: int
    finished_at: int
    steps_done: int
    reason: str
    num_wrong_bytes: int
    first_wrong: str
    layers_finished_at: tuple[int, ...]
    copy_ns: int


class PongMessage(Message, frozen=True, tag="pong"):
    """It can hear."""


class LeftMessage(Message, frozen=True, tag="left"):
    """It touches no block any more, and has no pools."""


FromWorker: TypeAlias = (
    HelloMessage | ReadyMessage | RefusedMessage | DoneMessage | PongMessage | LeftMessage
)


def plan_message(index: int, plan: RankPlan) -> PlanMessage:
    """Return a plan as it travels, for the rank with this number."""
    return PlanMessage(
        index,
        plan.worker,
        plan.shape,
        plan.pools,
        plan.device,
        plan.layout,
        plan.has_attention,
    )


def plan_of(message: PlanMessage) -> RankPlan:
    """Return a plan as it was."""
    return RankPlan(
        worker=message.worker,
        shape=message.shape,
        pools=message.pools,
        device=message.device,
        layout=message.layout,
        has_attention=message.has_attention,
    )


def order_message(order: Order) -> OrderMessage:
    """Return an order as it travels."""
    match order:
        case ForwardOrder():
            return ForwardMessage(
                order.op_id,
                order.after,
                order.gate,
                order.deadline_at,
                order.step_ends_ns,
                _packed(*order.writes),
                _packed(*order.slot_writes),
                _packed(*order.reads),
                _packed(*order.slot_reads),
                _packed(*order.peeks),
                order.num_checked_blocks,
                None if order.attends is None else _packed_tables(order.attends),
                order.faults,
            )
        case TransferOrder():
            return TransferMessage(
                order.op_id,
                order.after,
                order.gate,
                order.deadline_at,
                (order.source.instance, order.source.tier),
                (order.target.instance, order.target.tier),
                _packed(order.source_ids, order.target_ids),
                order.faults,
            )
        case Stop():
            return StopMessage(order.op_id, order.at_once)
        case Forget():
            return ForgetMessage(order.op_id)
        case Close():
            return CloseMessage()


def order_of(message: OrderMessage) -> Order:
    """Return an order as it was.

    Raises
    ------
    ChannelError
        If its columns are no numbers, or of different lengths.
    """
    match message:
        case ForwardMessage():
            return ForwardOrder(
                op_id=message.op_id,
                after=message.after,
                gate=message.gate,
                deadline_at=message.deadline_at,
                step_ends_ns=message.step_ends_ns,
                writes=Blocks(*_unpacked(message.writes, 2)),
                slot_writes=Slots(*_unpacked(message.slot_writes, 4)),
                reads=Blocks(*_unpacked(message.reads, 2)),
                slot_reads=Slots(*_unpacked(message.slot_reads, 4)),
                peeks=Blocks(*_unpacked(message.peeks, 2)),
                num_checked_blocks=message.num_checked_blocks,
                attends=None if message.attends is None else _tables_of(*message.attends),
                faults=message.faults,
            )
        case TransferMessage():
            source_ids, target_ids = _unpacked(message.ids, 2)
            return TransferOrder(
                op_id=message.op_id,
                after=message.after,
                gate=message.gate,
                deadline_at=message.deadline_at,
                source=Place(instance=message.source[0], tier=message.source[1]),
                target=Place(instance=message.target[0], tier=message.target[1]),
                source_ids=source_ids,
                target_ids=target_ids,
                faults=message.faults,
            )
        case StopMessage():
            return Stop(message.op_id, message.at_once)
        case ForgetMessage():
            return Forget(message.op_id)
        case CloseMessage():
            return Close()


def done_message(done: RankDone) -> DoneMessage:
    """Return the end of an op on a rank as it travels."""
    return DoneMessage(*done)


def done_of(message: DoneMessage) -> RankDone:
    """Return the end of an op on a rank as it was."""
    return RankDone(*msgspec.structs.astuple(message))


def _packed(*columns: Rows) -> Columns:
    return tuple(column.astype(_WORD, copy=False).tobytes() for column in columns)


def _packed_tables(attends: Attends) -> tuple[Columns, Columns]:
    *blocks, starts = attends
    return _packed(*blocks), _packed(starts)


def _tables_of(blocks: Columns, starts: Columns) -> Attends:
    return Attends(*_unpacked(blocks, 3), *_unpacked(starts, 1))


def _unpacked(columns: Columns, num: int) -> list[Rows]:
    """Return columns as arrays that cannot be written."""
    num_bytes = {len(column) for column in columns}
    if len(columns) != num or len(num_bytes) > 1 or max(num_bytes) % _WORD.itemsize:
        raise ChannelError(
            f"{num} columns of 8-byte numbers must be of one length, not"
            f" {[len(column) for column in columns]} bytes"
        )
    return [np.frombuffer(column, _WORD).astype(np.int64, copy=False) for column in columns]
