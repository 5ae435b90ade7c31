"""A controller whose ranks are played by the test, at times that only waiting moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.backends.paddle.backend import TensorBackend
from kvsim.backends.paddle.content import ContentSeeds
from kvsim.backends.paddle.orders import (
    Acknowledgement,
    Close,
    ForwardOrder,
    Order,
    RankDone,
    TransferOrder,
)
from kvsim.backends.paddle.plans import ForwardPlanner
from kvsim.core.ops import Completion, Forward, Gate, Member, Outcome, Slice, Transfer
from kvsim.testing import Prompt, make_request
from tests.unit.backends.paddle.bits import GPU, HOST, Timeline

if TYPE_CHECKING:
    from kvsim.backends.faults import FaultPlan
    from kvsim.core.ops import Answer

Row = tuple[int, str, int]  # op id, outcome or "settled", when


class PlayedRank:
    """Takes orders and does nothing."""

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.is_started = self.is_joined = self.is_fenced = False

    def tell(self, order: Order) -> None:
        """Take an order."""
        assert self.is_started
        self.orders.append(order)

    def start(self) -> None:
        """Begin."""
        self.is_started = True

    def close(self) -> None:
        """Take note that it is to stop."""
        self.orders.append(Close())

    def join(self) -> None:
        """Be asked to stop before, or never end."""
        assert Close() in self.orders
        self.is_joined = True

    def fence(self) -> None:
        """Touch no block any more."""
        self.is_fenced = True


class Stage:
    """A backend on ranks that the test plays. Blocks have 4 tokens and 4 slots."""

    def __init__(
        self, num_ranks: int = 2, *, faults: FaultPlan | None = None, record_layers: bool = False
    ) -> None:
        requests = [
            make_request(i, Prompt((i,), 4), block_size=4, num_output_tokens=99) for i in range(9)
        ]
        self.ranks = [PlayedRank() for _ in range(num_ranks)]
        self.timeline: Timeline[Acknowledgement] = Timeline()
        self.backend = TensorBackend(
            self.ranks,
            self.timeline,
            clock=self.timeline,
            planner=ForwardPlanner(
                requests,
                ContentSeeds(requests),
                block_size=4,
                slots_per_block=4,
                step_ends=lambda op: (0,) * op.num_steps,
            ),
            places=frozenset((GPU, HOST)),
            faults=faults,
            record_layers=record_layers,
        )

    def says(
        self,
        op_id: int,
        *outcomes: Outcome,
        at: int = 0,
        steps: tuple[int, ...] = (),
        num_wrong_bytes: int = 0,
    ) -> None:
        """Let ranks end an op at a time, each in its way (DONE if none is given)."""
        for rank in range(len(self.ranks)):
            outcome = outcomes[rank] if outcomes else Outcome.DONE
            num_steps = steps[rank] if steps else 1
            self.timeline.add(
                at,
                rank_done(
                    op_id,
                    outcome,
                    at,
                    rank=rank,
                    steps_done=num_steps,
                    num_wrong_bytes=num_wrong_bytes,
                ),
            )

    def rows(self, until: int | None = None) -> list[Row]:
        """Return the next answers, as rows."""
        return [row(answer) for answer in self.backend.wait(until)]

    def orders(self, kind: type[Order]) -> list[Order]:
        """Return the orders of one kind that the ranks, all of them, were given."""
        given = [[o for o in rank.orders if isinstance(o, kind)] for rank in self.ranks]
        assert all(each == given[0] for each in given)
        return given[0]

    def sent(self) -> list[int]:
        """Return the ops that the ranks were sent, in order."""
        return [
            o.op_id for o in self.ranks[0].orders if isinstance(o, ForwardOrder | TransferOrder)
        ]


def rank_done(
    op_id: int,
    outcome: Outcome,
    at: int,
    *,
    rank: int = 0,
    started_at: int | None = None,
    steps_done: int = 1,
    num_wrong_bytes: int = 0,
    layers: tuple[int, ...] = (),
) -> RankDone:
    """Return the end of an op on a rank."""
    return RankDone(
        rank,
        op_id,
        outcome,
        at if started_at is None else started_at,
        at,
        steps_done,
        "" if outcome is Outcome.DONE else f"it {outcome}",
        num_wrong_bytes,
        f"op {op_id} read wrong bytes" if num_wrong_bytes else "",
        layers,
    )


def row(answer: Answer) -> Row:
    """Return an answer as (op id, outcome or "settled", when)."""
    outcome = str(answer.outcome) if isinstance(answer, Completion) else "settled"
    return (answer.op_id, outcome, answer.finished_at)


def forward(
    op_id: int,
    *,
    num_steps: int = 1,
    prefill: tuple[Slice, ...] = (),
    joined: tuple[Member, ...] = (),
    left: tuple[int, ...] = (),
    after: tuple[int, ...] = (),
    deadline_at: int | None = None,
    instance: int = 0,
) -> Forward:
    """Return a Forward."""
    return Forward(
        op_id,
        instance,
        num_steps,
        prefill,
        joined,
        left,
        (),
        len(joined),
        0,
        after,
        Gate.LAYER,
        deadline_at,
    )


def transfer(
    op_id: int,
    *,
    after: tuple[int, ...] = (),
    gate: Gate = Gate.LAYER,
    deadline_at: int | None = None,
) -> Transfer:
    """Return a Transfer of two blocks up."""
    return Transfer(
        op_id, HOST, GPU, (0, 1), (2, 3), after=after, gate=gate, deadline_at=deadline_at
    )
