"""Orders and acknowledgements come out of the wire as they went in."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from kvsim.backends.control import ChannelError, Codec
from kvsim.backends.control.codec import joined
from kvsim.backends.faults import Fault
from kvsim.backends.paddle.allotment import PoolPlan, RankPlan, WorkerId
from kvsim.backends.paddle.layout import Layout
from kvsim.backends.paddle.orders import (
    Attends,
    Blocks,
    Close,
    Forget,
    ForwardOrder,
    Order,
    RankDone,
    Slots,
    Stop,
    TransferOrder,
)
from kvsim.backends.paddle.wire import (
    BeginMessage,
    DoneMessage,
    ForwardMessage,
    FromWorker,
    PingMessage,
    PlanMessage,
    ToWorker,
    TransferMessage,
    done_message,
    done_of,
    order_message,
    order_of,
    plan_message,
    plan_of,
)
from kvsim.core.ops import Gate, Outcome
from tests.unit.backends.paddle.bits import SHAPE, blocks, forward_order, slots, transfer_order

DRAFT = replace(SHAPE, num_extra_layers=1, expand_ratio=1.5)
MOST, LEAST = (1 << 63) - 1, -(1 << 63)
FAULTS = (None, Fault(0, "rank 1 failed (injected fault)", None), Fault(7, "", 500))
ORDERS: list[Order] = [
    forward_order(0),
    forward_order(
        7,
        step_ends_ns=(10, 20, 1 << 60),
        writes=blocks((3, MOST), (0, LEAST)),
        slot_writes=slots((1, -1, 2, 0), (1, 5, 3, 2)),
        reads=blocks((9, 0)),
        slot_reads=slots((4, 4, 4, 0)),
        peeks=blocks(*((i, i) for i in range(300))),
        attends=Attends(*slots((5, MOST, 4, 0), (6, LEAST, 1, 2))),
        after=(1, 2, 3),
        gate=Gate.OP,
        deadline_at=1 << 61,
        faults=FAULTS,
    ),
    transfer_order(1, [5, 3], [0, 9], after=(0,), deadline_at=5, faults=FAULTS),
    transfer_order(2),
    Stop(3, at_once=True),
    Stop(3, at_once=False),
    Forget(1 << 40),
    Close(),
]


def through(*messages: object) -> list[ToWorker]:
    """Return messages as a worker reads them."""
    codec: Codec[ToWorker] = Codec(ToWorker)
    return codec.decode(joined([codec.encode(each) for each in messages]))


def plain(value: object) -> object:
    """Return a value that can be compared, arrays as lists."""
    if isinstance(value, np.ndarray):
        assert value.dtype == np.int64
        return value.tolist()
    if isinstance(value, ForwardOrder | TransferOrder):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Attends | Blocks | Slots):
        return [plain(column) for column in value]
    return value


def test_orders_come_out_as_they_went_in_and_in_their_order() -> None:
    out = []
    for message in through(*map(order_message, ORDERS)):
        assert not isinstance(message, PlanMessage | BeginMessage | PingMessage)
        out.append(order_of(message))
    assert [type(each) for each in out] == [type(each) for each in ORDERS]
    assert [plain(each) for each in out] == [plain(each) for each in ORDERS]


@pytest.mark.parametrize("device", ["cpu", "gpu:3"])
def test_plans_come_out_as_they_went_in(device: str) -> None:
    plan = RankPlan(
        worker=WorkerId(2, 5),
        shape=replace(
            SHAPE, num_extra_layers=1, expand_ratio=1.5, first_kv_head=2, total_kv_heads=9
        ),
        pools=(PoolPlan(0, 7, device), PoolPlan(1, 1 << 40, "cpu")),
        device=device,
        layout=Layout.LAYER_MAJOR,
        has_attention=True,
    )
    (message,) = through(plan_message(3, plan))
    assert isinstance(message, PlanMessage)
    assert message.index == 3
    assert plan_of(message) == plan
    assert str(plan.worker) == "rank 5 of instance 2"


def test_an_end_comes_out_as_it_went_in() -> None:
    done = RankDone(1, 9, Outcome.FAILED, 5, 1 << 60, 3, "why", 1 << 40, "where", (6, 7))
    codec: Codec[FromWorker] = Codec(FromWorker)
    (message,) = codec.decode(joined([codec.encode(done_message(done))]))
    assert isinstance(message, DoneMessage)
    assert done_of(message) == done


def test_columns_of_different_lengths_or_of_no_numbers_are_refused() -> None:
    message = order_message(transfer_order(1, [5, 3], [0, 9]))
    assert isinstance(message, TransferMessage)
    for ids in ((b"12345678", b""), (b"1234567", b"1234567"), (b"12345678",), (b"",) * 3, ()):
        (changed,) = through(
            TransferMessage(1, (), Gate.OP, None, message.source, message.target, ids, ())
        )
        assert isinstance(changed, TransferMessage)
        with pytest.raises(ChannelError, match="2 columns of 8-byte numbers must be of one length"):
            order_of(changed)


def test_a_worker_takes_no_message_of_another_kind_or_type() -> None:
    codec: Codec[ToWorker] = Codec(ToWorker)
    good = order_message(forward_order(7))
    assert isinstance(good, ForwardMessage)
    for bad in (
        DoneMessage(0, 1, Outcome.DONE, 0, 0, 1, "", 0, "", (), 0),
        ["stop", 3, "yes"],
        ["stop", 3],
        ["forward"],
        ["plan", 0, [0, 0], {"name": "tiny"}, [], "cpu"],
        {"type": "close"},
    ):
        with pytest.raises(ChannelError, match="a message that cannot be read"):
            codec.decode(joined([codec.encode(bad)]))
