"""What a rank does to the bytes of its pools: copies, writes of known content, and checks of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from kvsim.backends.paddle.content import count_wrong_bytes, layer_patterns
from kvsim.backends.paddle.shape import WORD_BYTES
from kvsim.backends.region import MemoryKind, Region

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvsim.backends.paddle.copier import Copier, Rows, Words
    from kvsim.backends.paddle.orders import Blocks, ForwardOrder, Slots, TransferOrder
    from kvsim.backends.paddle.shape import KVShape
    from kvsim.core.ops import Place

_SCRATCH_BYTES: Final = 1 << 20  # fits the second-level cache of a core


class Memory(Protocol):
    """Somebody who owns a piece of memory; a `KVPool` does."""

    @property
    def region(self) -> Region:
        """The memory; it lives as long as its owner."""


class Tally:
    """What an op has read: how many bytes were wrong, and where the first of them was."""

    __slots__ = ("first_wrong", "num_wrong_bytes")

    def __init__(self) -> None:
        self.num_wrong_bytes = 0
        self.first_wrong = ""


class RankMemory:
    """The pools of one rank, and a scratch buffer on the host that contents pass through.

    Parameters
    ----------
    rank
        Number of the rank; part of the content of its blocks.
    shape
        Of a block on this rank.
    gpu
        Where Forwards read and write.
    pools
        The memory of each tier; kept alive.
    copier
        Moves the bytes. Not shared with another rank.
    """

    def __init__(
        self,
        *,
        rank: int,
        shape: KVShape,
        gpu: Place,
        pools: Mapping[Place, Memory],
        copier: Copier,
    ) -> None:
        self._rank = rank
        self._shape = shape
        self._owners = pools  # they keep the memory alive
        self._regions = {place: pool.region for place, pool in pools.items()}
        self._gpu = self._regions[gpu]
        self._copier = copier
        patterns = layer_patterns(shape, rank)
        self._block_patterns = [each.reshape(-1) for each in patterns]
        # The same by slot: (block_size, words of a slot).
        self._slot_patterns = [
            np.ascontiguousarray(each.swapaxes(0, 1)).reshape(shape.block_size, -1)
            for each in patterns
        ]
        # Of the first slot of the planes of block 0 and a layer, in rows of one slot and plane.
        self._plane_rows = [
            (np.arange(shape.num_planes) + layer * shape.num_planes) * shape.block_size
            for layer in range(shape.num_layers)
        ]
        num_bytes = max(_SCRATCH_BYTES, shape.layer_bytes)
        self._scratch = np.zeros(num_bytes // WORD_BYTES, np.int64)
        self._scratch_region = Region(self._scratch.ctypes.data, num_bytes, MemoryKind.HOST)

    @property
    def num_layers(self) -> int:
        """Layers of a block."""
        return self._shape.num_layers

    @property
    def num_blocks(self) -> dict[Place, int]:
        """How many blocks each of its pools has."""
        size = self._shape.block_bytes
        return {place: region.num_bytes // size for place, region in self._regions.items()}

    def copy_layer(self, order: TransferOrder, layer: int) -> None:
        """Copy one layer of the blocks of a transfer."""
        num_layers = self._shape.num_layers
        self._copier.copy(
            self._regions[order.source],
            order.source_ids * num_layers + layer,
            self._regions[order.target],
            order.target_ids * num_layers + layer,
            num_rows=len(order.source_ids),
            row_bytes=self._shape.layer_bytes,
        )

    def compute_layer(self, order: ForwardOrder, tally: Tally, layer: int) -> None:
        """Write what a Forward computes in a layer, then read what it attends to.

        In this order, as attention does: a slice may read what another of the same Forward writes.
        """
        if len(order.writes.block_ids):
            self._write_blocks(order.writes, layer)
        if len(order.slot_writes.slots):
            self.write_slots(order.slot_writes, layer)
        self.check_layer(order, tally, layer)

    def check_layer(self, order: ForwardOrder, tally: Tally, layer: int) -> None:
        """Compare what a Forward attends to in a layer with what must be there."""
        if len(order.reads.block_ids):
            self._check_blocks(order, tally, layer)
        if len(order.slot_reads.slots):
            self._check_slots(order, tally, layer)
        if len(order.peeks.block_ids) and layer == order.op_id % self._shape.num_layers:
            self._check_peeks(order, tally, layer)

    def write_slots(self, slots: Slots, layer: int) -> None:
        """Write single tokens."""
        for part, words in self._parts(len(slots.slots), self._slot_bytes):
            self._slot_patterns[layer].take(slots.slots[part], 0, words, "clip")
            words ^= slots.seeds[part, None]
            rows = self._slot_rows(slots.block_ids[part], slots.slots[part], layer)
            self._store(rows, words.reshape(len(rows), -1))

    def _write_blocks(self, blocks: Blocks, layer: int) -> None:
        pattern = self._block_patterns[layer]
        rows = blocks.block_ids * self._shape.num_layers + layer
        for part, words in self._parts(len(rows), self._shape.layer_bytes):
            np.bitwise_xor(blocks.seeds[part, None], pattern, out=words)
            self._store(rows[part], words)

    def _check_blocks(self, order: ForwardOrder, tally: Tally, layer: int) -> None:
        reads, pattern = order.reads, self._block_patterns[layer]
        rows = reads.block_ids * self._shape.num_layers + layer
        for part, words in self._parts(len(rows), self._shape.layer_bytes):
            self._fetch(rows[part], words)
            words ^= pattern
            words ^= reads.seeds[part, None]
            self._judge(words, order, reads.block_ids[part], tally, layer)

    def _check_slots(self, order: ForwardOrder, tally: Tally, layer: int) -> None:
        slots = order.slot_reads
        for part, words in self._parts(len(slots.slots), self._slot_bytes):
            rows = self._slot_rows(slots.block_ids[part], slots.slots[part], layer)
            self._fetch(rows, words.reshape(len(rows), -1))
            words ^= self._slot_patterns[layer][slots.slots[part]]
            words ^= slots.seeds[part, None]
            self._judge(words, order, slots.block_ids[part], tally, layer)

    def _check_peeks(self, order: ForwardOrder, tally: Tally, layer: int) -> None:
        peeks, pattern = order.peeks, self._slot_patterns[layer][0]
        for part, words in self._parts(len(peeks.block_ids), self._slot_bytes):
            rows = self._slot_rows(peeks.block_ids[part], None, layer)
            self._fetch(rows, words.reshape(len(rows), -1))
            words ^= pattern
            words ^= peeks.seeds[part, None]
            self._judge(words, order, peeks.block_ids[part], tally, layer)

    @property
    def _slot_bytes(self) -> int:
        """Bytes of a slot in one layer: K and V of every head."""
        return self._shape.row_bytes * self._shape.num_planes

    def _parts(self, num_rows: int, row_bytes: int) -> Iterator[tuple[slice, Words]]:
        """Yield pieces of `num_rows` rows that fit the scratch buffer, each with room for it."""
        num_words = row_bytes // WORD_BYTES
        num_fitting = len(self._scratch) // num_words
        for start in range(0, num_rows, num_fitting):
            num_here = min(num_fitting, num_rows - start)
            words = self._scratch[: num_here * num_words].reshape(num_here, num_words)
            yield slice(start, start + num_here), words

    def _slot_rows(self, block_ids: Rows, slots: Rows | None, layer: int) -> Rows:
        """Return the rows of slots in the pool, one for each plane; None: slot 0 of each block."""
        shape = self._shape
        rows = block_ids * (shape.num_layers * shape.num_planes * shape.block_size)
        if slots is not None:
            rows += slots
        every: Rows = (rows[:, None] + self._plane_rows[layer]).reshape(-1)
        return every

    def _fetch(self, rows: Rows, words: Words) -> None:
        """Copy rows of the GPU tier to `words`, which is the beginning of the scratch buffer."""
        self._copier.copy(
            self._gpu,
            rows,
            self._scratch_region,
            None,
            num_rows=len(rows),
            row_bytes=words.shape[1] * WORD_BYTES,
        )

    def _store(self, rows: Rows, words: Words) -> None:
        """Copy `words`, the beginning of the scratch buffer, to rows of the GPU tier."""
        self._copier.copy(
            self._scratch_region,
            None,
            self._gpu,
            rows,
            num_rows=len(rows),
            row_bytes=words.shape[1] * WORD_BYTES,
        )

    def _judge(
        self, difference: Words, order: ForwardOrder, block_ids: Rows, tally: Tally, layer: int
    ) -> None:
        if not np.count_nonzero(difference):  # faster than `any` where there is little to read
            return
        if not tally.num_wrong_bytes:
            row = int(difference.any(axis=1).argmax())
            num_bytes = count_wrong_bytes(difference[row])
            tally.first_wrong = (
                f"op {order.op_id} read {num_bytes} wrong bytes on rank {self._rank}, in layer"
                f" {layer} of block {block_ids[row]} on the GPU"
            )
        tally.num_wrong_bytes += count_wrong_bytes(difference)
