"""Copies that go on by themselves: a rank asks after them, and gives no block away too soon."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from kvsim.backends.faults import Fault
from kvsim.backends.paddle.copier import CopyError, HostCopier
from kvsim.backends.paddle.layout import Layout
from kvsim.backends.paddle.memory import RankMemory
from kvsim.backends.paddle.orders import Close, RankDone, Stop
from kvsim.backends.paddle.worker import RankWorker
from kvsim.core.ops import Gate
from tests.unit.backends.paddle.bits import (
    GPU,
    HOST,
    SHAPE,
    Arena,
    Timeline,
    forward_order,
    transfer_order,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.paddle.copier import Rows
    from kvsim.backends.paddle.orders import Acknowledgement, Order
    from kvsim.backends.region import Region

DEEP = replace(SHAPE, num_layers=4)
POLL = 20_000  # how often a rank asks, in ns


class LateCopy:
    """Done when it has been asked some times; then its bytes are there."""

    def __init__(self, copier: LateCopier, piece: Callable[[], None], num_asks: int) -> None:
        self._copier, self._piece, self._num_left = copier, piece, num_asks

    def is_done(self) -> bool:
        self._num_left -= 1
        if self._num_left > 0:
            return False
        self._copier.bring(self._piece)
        return True


class LateCopier:
    """Copies that take a while; keeps a list of those that are on their way."""

    def __init__(self, num_asks: int, *, fails_at: int = 1 << 60) -> None:
        self._host = HostCopier()
        self._num_asks = num_asks
        self._fails_at = fails_at
        self.num_started = 0
        self.under_way: list[Callable[[], None]] = []
        self.is_closed = False

    def start(
        self,
        source: Region,
        source_rows: Rows | None,
        target: Region,
        target_rows: Rows | None,
        *,
        num_rows: int,
        row_bytes: int,
    ) -> LateCopy:
        if self.num_started == self._fails_at:
            raise CopyError("it failed")
        self.num_started += 1
        piece = partial(
            self._host.copy,
            source,
            source_rows,
            target,
            target_rows,
            num_rows=num_rows,
            row_bytes=row_bytes,
        )
        self.under_way.append(piece)
        return LateCopy(self, piece, self._num_asks)

    def bring(self, piece: Callable[[], None]) -> None:
        if piece in self.under_way:
            self.under_way.remove(piece)
            piece()

    def copy(
        self,
        source: Region,
        source_rows: Rows | None,
        target: Region,
        target_rows: Rows | None,
        *,
        num_rows: int,
        row_bytes: int,
    ) -> None:
        self._host.copy(
            source, source_rows, target, target_rows, num_rows=num_rows, row_bytes=row_bytes
        )

    def drain(self) -> None:
        for piece in list(self.under_way):
            self.bring(piece)

    def close(self) -> None:
        self.drain()
        self.is_closed = True


class Rank:
    """A rank with a story behind it, and what it said."""

    def __init__(
        self,
        copier: LateCopier,
        *story: tuple[int, Order],
        layout: Layout = Layout.BLOCK_MAJOR,
    ) -> None:
        self.gpu, self.host = (Arena(8 * DEEP.block_bytes) for _ in range(2))
        self.host.bytes[:] = 7
        self.said: list[Acknowledgement] = []
        memory = RankMemory(
            rank=0,
            shape=DEEP,
            gpu=GPU,
            pools={GPU: self.gpu, HOST: self.host},
            copier=copier,
            layout=layout,
        )
        timeline: Timeline[Order] = Timeline(story, at_end=Close)
        RankWorker(
            rank=0, memory=memory, clock=timeline, inbox=timeline, tell=self.said.append
        ).run()

    @property
    def layers(self) -> list[tuple[int, int, int]]:
        return [
            (each.op_id, layer, at)
            for each in self.said
            if isinstance(each, RankDone)
            for layer, at in enumerate(each.layers_finished_at)
        ]

    @property
    def ends(self) -> list[tuple[int, str, int]]:
        return [
            (each.op_id, str(each.outcome), each.finished_at)
            for each in self.said
            if isinstance(each, RankDone)
        ]


def test_a_layer_is_finished_when_its_copy_is_done_and_the_next_begins_then() -> None:
    rank = Rank(LateCopier(3), (0, transfer_order(0, [1], [2])))
    # Asked at once, 20 us and 40 us later: done; so for each of four layers.
    assert rank.layers == [(0, layer, 2 * POLL * (layer + 1)) for layer in range(4)]
    assert rank.ends == [(0, "done", 8 * POLL)]
    assert rank.gpu.bytes.reshape(8, -1).any(axis=1).tolist() == [i == 2 for i in range(8)]


def test_a_step_computes_a_layer_while_the_next_is_still_on_its_way() -> None:
    step = forward_order(1, after=(0,), gate=Gate.LAYER)
    rank = Rank(LateCopier(3), (0, transfer_order(0, [1], [2])), (0, step))
    copied, computed = ([at for op, _, at in rank.layers if op == op_id] for op_id in (0, 1))
    # Layer l has come when layer l + 1 is just on its way: 40 us a layer.
    assert copied == [2 * POLL * (layer + 1) for layer in range(4)]
    assert all(copied[i] <= computed[i] < copied[i + 1] for i in range(3))


def test_a_copy_that_is_stopped_ends_when_its_bytes_have_come_to_rest() -> None:
    copier = LateCopier(4)
    rank = Rank(copier, (0, transfer_order(0, [1], [2])), (POLL // 2, Stop(0, at_once=True)))
    # The first layer is asked for at 0, when the stop comes, and twice more, 20 us apart.
    ((_, outcome, ended_at),) = rank.ends
    assert outcome == "cancelled"
    assert ended_at > POLL
    assert copier.num_started == 1
    assert not copier.under_way


@pytest.mark.parametrize("layout", Layout)
def test_a_transfer_down_is_one_piece_of_work_whose_layers_finish_together(layout: Layout) -> None:
    copier = LateCopier(2)
    down = transfer_order(0, [1], [2], source=GPU, target=HOST)
    rank = Rank(copier, (0, down), layout=layout)
    finished_at = {at for _, _, at in rank.layers}
    assert [layer for _, layer, _ in rank.layers] == [0, 1, 2, 3]
    assert len(finished_at) == 1
    # A whole block is one piece, or a piece for K and for V of each of 4 layers.
    assert copier.num_started == (1 if layout is Layout.BLOCK_MAJOR else 8)


def test_a_transfer_down_that_is_to_fail_comes_to_half_of_its_layers() -> None:
    copier = LateCopier(1)
    down = transfer_order(
        0, [1], [2], source=GPU, target=HOST, faults=(Fault(0, "injected", None),)
    )
    rank = Rank(copier, (0, down))
    assert [layer for _, layer, _ in rank.layers] == [0, 1]
    assert [outcome for _, outcome, _ in rank.ends] == ["failed"]


def test_a_piece_that_fails_takes_its_op_along_once_the_others_are_at_rest() -> None:
    copier = LateCopier(5, fails_at=1)
    rank = Rank(copier, (0, transfer_order(0, [1], [2])), layout=Layout.LAYER_MAJOR)
    # K of layer 0 was on its way when V was refused.
    assert [(outcome, at) for _, outcome, at in rank.ends] == [("failed", 0)]
    assert copier.num_started == 1
    assert not copier.under_way


def test_a_rank_that_is_closed_leaves_no_copy_on_its_way() -> None:
    copier = LateCopier(100)
    rank = Rank(copier, (0, transfer_order(0, [1], [2])), (1, Close()))
    assert rank.ends == []
    assert copier.is_closed
    assert not copier.under_way
