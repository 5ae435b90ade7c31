"""Short ways to make shapes, memory and orders, for the tests of the tensor backend."""

from __future__ import annotations

from dataclasses import replace
from queue import Empty
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from kvsim.backends.paddle.copier import HostCopier
from kvsim.backends.paddle.layout import Layout
from kvsim.backends.paddle.memory import RankMemory
from kvsim.backends.paddle.orders import Attends, Blocks, ForwardOrder, Slots, TransferOrder
from kvsim.backends.paddle.shape import KVShape
from kvsim.backends.region import MemoryKind, Region
from kvsim.core.ops import Gate, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvsim.backends.faults import Fault
    from kvsim.backends.paddle.copier import Rows

GPU = Place(instance=0, tier=0)
HOST = Place(instance=0, tier=1)

# Two layers, K and V of two heads, 4 tokens of 8 bytes: a token's K in a head is one word, a layer
# of a block is 16 words and a block is 32.
SHAPE = KVShape(
    name="small", num_layers=2, num_kv_heads=2, block_size=4, head_dim=4, dtype="bfloat16"
)
PLANES, SLOTS = 4, 4

_Item = TypeVar("_Item")


class Arena:
    """Memory of numpy's, with the region that names it."""

    def __init__(self, num_bytes: int) -> None:
        self.bytes = np.zeros(num_bytes, np.uint8)
        self.region = Region(self.bytes.ctypes.data, num_bytes, MemoryKind.HOST)


class Timeline(Generic[_Item]):
    """A clock that only waiting moves, and an inbox with what comes at given times.

    Once nothing more is to come, waiting without an end calls `at_end`, or ends the test.
    """

    def __init__(
        self, story: Iterable[tuple[int, _Item]] = (), at_end: Callable[[], _Item] | None = None
    ) -> None:
        self.now = 0
        self._story = sorted(story, key=lambda each: each[0])
        self._at_end = at_end

    def __call__(self) -> int:
        """Return the time."""
        return self.now

    def add(self, at: int, item: _Item) -> None:
        """Let one more item come at `at`, after those of the same time."""
        self._story.append((at, item))
        self._story.sort(key=lambda each: each[0])

    def get(self, block: bool = True, timeout: float | None = None) -> _Item:
        """Return what has come by now, or comes within `timeout` seconds."""
        until = self.now + (round((timeout or 0) * 10**9) if block else 0)
        if self._story and self._story[0][0] <= until:
            at, item = self._story.pop(0)
            self.now = max(self.now, at)
            return item
        if not self._story and until - self.now > 10**9:  # nobody wants to be asked again
            if self._at_end is None:
                raise AssertionError(f"a wait without an end at {self.now}")
            return self._at_end()
        self.now = until
        raise Empty


def blocks(*pairs: tuple[int, int]) -> Blocks:
    """Return blocks, from (block id, seed) each."""
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return Blocks(*(np.ascontiguousarray(column) for column in table.T))


def slots(*rows: tuple[int, int, int, int]) -> Slots:
    """Return slots, from (block id, seed, slot, step) each."""
    table = np.array(rows, np.int64).reshape(-1, 4)
    return Slots(*(np.ascontiguousarray(column) for column in table.T))


def forward_order(
    op_id: int,
    *,
    step_ends_ns: tuple[int, ...] = (0,),
    writes: Blocks | None = None,
    slot_writes: Slots | None = None,
    reads: Blocks | None = None,
    slot_reads: Slots | None = None,
    peeks: Blocks | None = None,
    attends: Attends | None = None,
    after: tuple[int, ...] = (),
    gate: Gate = Gate.LAYER,
    deadline_at: int | None = None,
    faults: tuple[Fault | None, ...] = (),
) -> ForwardOrder:
    """Return an order that does nothing but what is named."""
    return ForwardOrder(
        op_id=op_id,
        after=after,
        gate=gate,
        deadline_at=deadline_at,
        step_ends_ns=step_ends_ns,
        writes=blocks() if writes is None else writes,
        slot_writes=slots() if slot_writes is None else slot_writes,
        reads=blocks() if reads is None else reads,
        slot_reads=slots() if slot_reads is None else slot_reads,
        peeks=blocks() if peeks is None else peeks,
        num_checked_blocks=0,
        attends=attends,
        faults=faults,
    )


def transfer_order(
    op_id: int,
    source_ids: Sequence[int] = (),
    target_ids: Sequence[int] = (),
    *,
    source: Place = HOST,
    target: Place = GPU,
    after: tuple[int, ...] = (),
    gate: Gate = Gate.OP,
    deadline_at: int | None = None,
    faults: tuple[Fault | None, ...] = (),
) -> TransferOrder:
    """Return an order to copy blocks up, unless told otherwise."""
    return TransferOrder(
        op_id=op_id,
        after=after,
        gate=gate,
        deadline_at=deadline_at,
        source=source,
        target=target,
        source_ids=rows_of(source_ids),
        target_ids=rows_of(target_ids),
        faults=faults,
    )


def rows_of(ids: Sequence[int]) -> Rows:
    """Return ids as an array."""
    return np.array(ids, np.int64)


def shape_of(rank: int, shape: KVShape = SHAPE) -> KVShape:
    """Return a shape with the heads of a rank: rank 1 has those after the ones of rank 0."""
    first = rank * shape.num_kv_heads
    return replace(shape, first_kv_head=first, total_kv_heads=first + shape.num_kv_heads)


def small_memory(
    num_gpu_blocks: int = 8,
    num_host_blocks: int = 8,
    *,
    shape: KVShape = SHAPE,
    rank: int = 0,
    layout: Layout = Layout.BLOCK_MAJOR,
) -> tuple[RankMemory, Arena, Arena]:
    """Return the memory of a rank, and its two arenas. Ranks have different heads."""
    gpu = Arena(shape.pool_bytes(num_gpu_blocks))
    host = Arena(shape.pool_bytes(num_host_blocks))
    memory = RankMemory(
        rank=rank,
        shape=shape_of(rank, shape),
        gpu=GPU,
        pools={GPU: gpu, HOST: host},
        copier=HostCopier(),
        layout=layout,
    )
    return memory, gpu, host
