"""What a rank does to the bytes of its pools: copies, writes of known content, and checks of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from kvsim.backends.paddle.content import count_wrong_bytes, layer_patterns
from kvsim.backends.paddle.orders import Slots
from kvsim.backends.paddle.region import MemoryKind, Region
from kvsim.backends.paddle.shape import WORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvsim.backends.paddle.copier import Copier, Rows, Words
    from kvsim.backends.paddle.orders import Blocks, ForwardOrder, TransferOrder
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
        self._patterns = layer_patterns(shape, rank)
        num_bytes = max(_SCRATCH_BYTES, shape.layer_bytes)
        self._scratch = np.zeros(num_bytes // WORD_BYTES, np.int64)
        self._scratch_region = Region(self._scratch.ctypes.data, num_bytes, MemoryKind.HOST)

    @property
    def num_layers(self) -> int:
        """Layers of a block."""
        return self._shape.num_layers

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
        self._write_blocks(order.writes, layer)
        self.write_slots(order.slot_writes, layer)
        self.check_layer(order, tally, layer)

    def check_layer(self, order: ForwardOrder, tally: Tally, layer: int) -> None:
        """Compare what a Forward attends to in a layer with what must be there."""
        pattern = self._patterns[layer].reshape(-1)
        rows = order.reads.block_ids * self._shape.num_layers + layer
        for part, words in self._parts(rows, self._shape.layer_bytes):
            self._fetch(rows[part], words)
            words ^= pattern
            words ^= order.reads.seeds[part, None]
            self._judge(words, order, order.reads.block_ids[part], tally, layer)
        self._check_slots(order, order.slot_reads, tally, layer)
        if layer == order.op_id % self._shape.num_layers and len(order.peeks.block_ids):
            zeros = np.zeros_like(order.peeks.block_ids)
            self._check_slots(order, Slots(*order.peeks, zeros, zeros), tally, layer)

    def _check_slots(self, order: ForwardOrder, slots: Slots, tally: Tally, layer: int) -> None:
        slot_rows = self._slot_rows(slots, layer)
        for part, words in self._parts(slot_rows, self._shape.row_bytes * self._shape.num_planes):
            rows = slot_rows[part].reshape(-1)
            self._fetch(rows, words.reshape(len(rows), -1))
            words ^= self._slot_words(slots, part, layer).reshape(words.shape)
            self._judge(words, order, slots.block_ids[part], tally, layer)

    def write_slots(self, slots: Slots, layer: int) -> None:
        """Write single tokens."""
        all_rows = self._slot_rows(slots, layer)
        for part, words in self._parts(all_rows, self._shape.row_bytes * self._shape.num_planes):
            words[:] = self._slot_words(slots, part, layer).reshape(words.shape)
            rows = all_rows[part].reshape(-1)
            self._store(rows, words.reshape(len(rows), -1))

    def _write_blocks(self, blocks: Blocks, layer: int) -> None:
        pattern = self._patterns[layer].reshape(-1)
        rows = blocks.block_ids * self._shape.num_layers + layer
        for part, words in self._parts(rows, self._shape.layer_bytes):
            np.bitwise_xor(blocks.seeds[part, None], pattern, out=words)
            self._store(rows[part], words)

    def _parts(self, rows: Rows, part_bytes: int) -> Iterator[tuple[slice, Words]]:
        """Yield pieces of `rows` whose bytes fit the scratch buffer, each with room for them."""
        num_words = part_bytes // WORD_BYTES
        num_fitting = len(self._scratch) // num_words
        for start in range(0, len(rows), num_fitting):
            num_rows = min(num_fitting, len(rows) - start)
            words = self._scratch[: num_rows * num_words].reshape(num_rows, num_words)
            yield slice(start, start + num_rows), words

    def _slot_rows(self, slots: Slots, layer: int) -> Rows:
        """Return the rows of each slot in the pool, one for each plane: (slots, planes)."""
        shape = self._shape
        first_planes = (slots.block_ids * shape.num_layers + layer) * shape.num_planes
        planes = first_planes[:, None] + np.arange(shape.num_planes)
        return planes * shape.block_size + slots.slots[:, None]

    def _slot_words(self, slots: Slots, part: slice, layer: int) -> Words:
        """Return the content of each slot: (slots, planes, words)."""
        content = self._patterns[layer][:, slots.slots[part]].transpose(1, 0, 2)
        return content ^ slots.seeds[part, None, None]

    def _fetch(self, rows: Rows, words: Words) -> None:
        self._copier.copy(
            self._gpu,
            rows,
            self._scratch_region,
            None,
            num_rows=len(rows),
            row_bytes=words.shape[1] * WORD_BYTES,
        )

    def _store(self, rows: Rows, words: Words) -> None:
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
        if not difference.any():
            return
        if not tally.num_wrong_bytes:
            row = int(difference.any(axis=1).argmax())
            num_bytes = count_wrong_bytes(difference[row])
            tally.first_wrong = (
                f"op {order.op_id} read {num_bytes} wrong bytes on rank {self._rank}, in layer"
                f" {layer} of block {block_ids[row]} on the GPU"
            )
        tally.num_wrong_bytes += count_wrong_bytes(difference)
