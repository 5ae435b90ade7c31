"""What a rank does to the bytes of its pools: copies, writes of known content, and checks of it."""

from __future__ import annotations

from time import monotonic_ns, thread_time_ns
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from kvsim.backends.paddle.content import count_wrong_bytes, layer_patterns
from kvsim.backends.paddle.copier import DONE, Copies
from kvsim.backends.paddle.layout import Layout, PlacedPool, fitted
from kvsim.backends.paddle.shape import WORD_BYTES
from kvsim.backends.region import MemoryKind, Region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kvsim.backends.paddle.attention import Attention
    from kvsim.backends.paddle.copier import Copier, Copy, Rows, Words
    from kvsim.backends.paddle.layout import Piece
    from kvsim.backends.paddle.orders import Blocks, ForwardOrder, Slots, TransferOrder
    from kvsim.backends.paddle.shape import KVShape
    from kvsim.core.ops import Place

_SCRATCH_BYTES: Final = 1 << 20  # fits the second-level cache of a core

_WHOLE_BYTES: Final = 64 << 20
"""The most that a rank copies in one go: some 10 ms of a core."""


class Memory(Protocol):
    """Somebody who owns a piece of memory; a `KVPool` does."""

    @property
    def region(self) -> Region:
        """The memory; it lives as long as its owner."""


class Tally:
    """What an op has read and copied.

    Attributes
    ----------
    num_wrong_bytes, first_wrong
        How many bytes that were read were wrong, and where the first of them was.
    copy_ns
        How long its copies took, without what came between them.
    """

    __slots__ = ("copy_ns", "first_wrong", "num_wrong_bytes")

    def __init__(self) -> None:
        self.num_wrong_bytes = 0
        self.first_wrong = ""
        self.copy_ns = 0


class TimedCopy:
    """A `Copy` that is on its way, and tells a tally how long until it was seen to be done."""

    def __init__(self, inner: Copy, tally: Tally) -> None:
        self._inner = inner
        self._tally = tally
        self._began_ns = monotonic_ns()

    def is_done(self) -> bool:
        """Whether all bytes are there."""
        if not self._inner.is_done():
            return False
        self._tally.copy_ns += monotonic_ns() - self._began_ns
        return True


class Scratch:
    """Memory of the host that contents pass through."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._words: Words = np.zeros(num_bytes // WORD_BYTES, np.int64)
        self.region = Region(self._words.ctypes.data, num_bytes, MemoryKind.HOST)

    def words(self, num_rows: int, row_bytes: int) -> Words:
        """Return the beginning of it as so many rows."""
        num_words = row_bytes // WORD_BYTES
        return self._words[: num_rows * num_words].reshape(num_rows, num_words)


class RankMemory:
    """The pools of one rank, and a scratch buffer on the host that contents pass through.

    Parameters
    ----------
    rank
        Number of the rank, for what is said of wrong bytes.
    shape
        Of a block on this rank: its heads decide the content.
    gpu
        Where Forwards read and write.
    pools
        The memory of each tier; kept alive.
    copier
        Moves the bytes. Not shared with another rank; closed with the memory.
    layout
        The order of the memory, in all tiers.
    attention
        Attends to what Forwards name; None: orders name nothing.
    """

    def __init__(
        self,
        *,
        rank: int,
        shape: KVShape,
        gpu: Place,
        pools: Mapping[Place, Memory],
        copier: Copier,
        layout: Layout = Layout.BLOCK_MAJOR,
        attention: Attention | None = None,
    ) -> None:
        self._attention = attention
        self._rank = rank
        self._shape = shape
        self._owners = pools  # they keep the memory alive
        self._pools = {
            place: PlacedPool(pool.region, fitted(shape, pool.region.num_bytes, layout))
            for place, pool in pools.items()
        }
        self._gpu = self._pools[gpu]
        self._copier = copier
        is_on_host = all(pool.region.kind is MemoryKind.HOST for pool in pools.values())
        self._copy_clock = thread_time_ns if is_on_host else monotonic_ns
        patterns = layer_patterns(shape)
        # By layer and piece: the constants of a piece, which is contiguous, as it lies in memory.
        self._piece_patterns = [
            [each[piece.pieces.planes].reshape(-1) for piece in pieces]
            for each, pieces in zip(patterns, self._gpu.layers, strict=True)
        ]
        # The same by slot: (block_size, words of a slot).
        self._slot_patterns = [
            np.ascontiguousarray(each.swapaxes(0, 1)).reshape(shape.block_size, -1)
            for each in patterns
        ]
        self._scratch = Scratch(max(_SCRATCH_BYTES, shape.layer_bytes))
        self._part = Scratch(max(_SCRATCH_BYTES, shape.layer_bytes))  # of each slot, one piece's

    @property
    def num_layers(self) -> int:
        """Layers of a block, the extra ones among them."""
        return self._shape.num_all_layers

    @property
    def num_blocks(self) -> dict[Place, int]:
        """How many blocks each of its pools has."""
        return {place: pool.num_blocks for place, pool in self._pools.items()}

    def copy_layer(self, order: TransferOrder, layer: int) -> Copy:
        """Begin to copy one layer of the blocks of a transfer."""
        source, target = self._pools[order.source], self._pools[order.target]
        return self._copy(order, source.layers[layer], target.layers[layer])

    def copy_blocks(self, order: TransferOrder) -> Copy:
        """Begin to copy the blocks of a transfer as a whole, in as few pieces as can be."""
        source, target = self._pools[order.source], self._pools[order.target]
        return self._copy(order, source.blocks, target.blocks)

    def timed(self, begin: Callable[[int], Copy], tally: Tally, layer: int) -> Copy:
        """Begin a copy, and add to `tally.copy_ns` how long it takes, in nanoseconds.

        Where the processor copies it is the processor's time in this thread: whoever else wants the
        core meanwhile does not make the copy longer. A device copies by itself, on the wall clock.
        """
        began = self._copy_clock()
        copy = begin(layer)
        tally.copy_ns += self._copy_clock() - began
        return copy if copy is DONE else TimedCopy(copy, tally)

    def goes_whole(self, order: TransferOrder) -> bool:
        """Whether a transfer had better be one piece of work: nobody can wait for its layers.

        So it is on its way down, unless that would keep the rank from everything else for long.
        """
        num_bytes = len(order.source_ids) * self._shape.block_bytes
        return order.target.tier > order.source.tier and num_bytes <= _WHOLE_BYTES

    def drain(self) -> None:
        """Wait until no copy is on its way any more, whatever has become of it."""
        self._copier.drain()

    def close(self) -> None:
        """Wait until no copy is on its way: the pools are about to go."""
        self._copier.close()

    def _copy(self, order: TransferOrder, source: Sequence[Piece], target: Sequence[Piece]) -> Copy:
        parts = [
            self._copier.start(
                here.region,
                here.pieces.rows(order.source_ids),
                there.region,
                there.pieces.rows(order.target_ids),
                num_rows=len(order.source_ids),
                row_bytes=here.pieces.row_bytes,
            )
            for here, there in zip(source, target, strict=True)
        ]
        return parts[0] if len(parts) == 1 else Copies(parts)

    def compute_layer(self, order: ForwardOrder, tally: Tally, layer: int) -> Copy:
        """Write what a Forward computes in a layer, then read what it attends to.

        In this order, as attention does: a slice may read what another of the same Forward writes.
        """
        if len(order.writes.block_ids):
            self._write_blocks(order.writes, layer)
        if len(order.slot_writes.slots):
            self.write_slots(order.slot_writes, layer)
        self.check_layer(order, tally, layer)
        return DONE

    def check_layer(self, order: ForwardOrder, tally: Tally, layer: int) -> None:
        """Compare what a Forward attends to in a layer with what must be there."""
        if len(order.reads.block_ids):
            self._check_blocks(order, tally, layer)
        if len(order.slot_reads.slots):
            self._check_slots(order, tally, layer)
        if len(order.peeks.block_ids) and layer == order.op_id % self._shape.num_layers:
            self._check_peeks(order, tally, layer)
        if order.attends is not None and self._attention is not None:
            num_wrong = self._attention.count_wrong(order.attends, layer)
            if num_wrong and not tally.num_wrong_bytes:
                tally.first_wrong = (
                    f"op {order.op_id} attended to wrong bytes on rank {self._rank}, in layer"
                    f" {layer}: {num_wrong} bytes of the result differ"
                )
            tally.num_wrong_bytes += num_wrong

    def write_slots(self, slots: Slots, layer: int) -> None:
        """Write single tokens."""
        for part, words in self._parts(len(slots.slots), self._slot_bytes):
            self._slot_patterns[layer].take(slots.slots[part], 0, words, "clip")
            words ^= slots.seeds[part, None]
            self._store_slots(slots.block_ids[part], slots.slots[part], words, layer)

    def _write_blocks(self, blocks: Blocks, layer: int) -> None:
        for pattern, piece in self._pieces(layer):
            rows = piece.pieces.rows(blocks.block_ids)
            for part, words in self._parts(len(rows), piece.pieces.row_bytes):
                np.bitwise_xor(blocks.seeds[part, None], pattern, out=words)
                self._store(piece.region, rows[part], self._scratch, piece.pieces.row_bytes)

    def _check_blocks(self, order: ForwardOrder, tally: Tally, layer: int) -> None:
        reads = order.reads
        for pattern, piece in self._pieces(layer):
            rows = piece.pieces.rows(reads.block_ids)
            for part, words in self._parts(len(rows), piece.pieces.row_bytes):
                self._fetch(piece.region, rows[part], self._scratch, piece.pieces.row_bytes)
                words ^= pattern
                words ^= reads.seeds[part, None]
                self._judge(words, order, reads.block_ids[part], tally, layer)

    def _check_slots(self, order: ForwardOrder, tally: Tally, layer: int) -> None:
        slots = order.slot_reads
        for part, words in self._parts(len(slots.slots), self._slot_bytes):
            self._fetch_slots(slots.block_ids[part], slots.slots[part], words, layer)
            words ^= self._slot_patterns[layer][slots.slots[part]]
            words ^= slots.seeds[part, None]
            self._judge(words, order, slots.block_ids[part], tally, layer)

    def _check_peeks(self, order: ForwardOrder, tally: Tally, layer: int) -> None:
        peeks, pattern = order.peeks, self._slot_patterns[layer][0]
        for part, words in self._parts(len(peeks.block_ids), self._slot_bytes):
            self._fetch_slots(peeks.block_ids[part], None, words, layer)
            words ^= pattern
            words ^= peeks.seeds[part, None]
            self._judge(words, order, peeks.block_ids[part], tally, layer)

    @property
    def _slot_bytes(self) -> int:
        """Bytes of a slot in one layer: K and V of every head."""
        return self._shape.row_bytes * self._shape.num_planes

    def _pieces(self, layer: int) -> Iterator[tuple[Words, Piece]]:
        return zip(self._piece_patterns[layer], self._gpu.layers[layer], strict=True)

    def _parts(self, num_rows: int, row_bytes: int) -> Iterator[tuple[slice, Words]]:
        """Yield pieces of `num_rows` rows that fit the scratch buffer, each with room for it."""
        num_fitting = self._scratch.num_bytes // row_bytes
        for start in range(0, num_rows, num_fitting):
            num_here = min(num_fitting, num_rows - start)
            yield slice(start, start + num_here), self._scratch.words(num_here, row_bytes)

    def _slot_rows(
        self, block_ids: Rows, slots: Rows | None, layer: int
    ) -> Iterator[tuple[Region, Rows, slice]]:
        """Yield the rows of slots in each piece of a layer, and which words of a slot these are.

        A row is one slot in one plane. None: slot 0 of each block.
        """
        shape = self._shape
        num_words = shape.row_bytes // WORD_BYTES
        for region, pieces in self._gpu.layers[layer]:
            rows = pieces.rows(block_ids) * (pieces.num_planes * shape.block_size)
            if slots is not None:
                rows = rows + slots
            planes = np.arange(pieces.num_planes) * shape.block_size
            every: Rows = (rows[:, None] + planes).reshape(-1)
            first = pieces.first_plane * num_words
            yield region, every, slice(first, first + pieces.num_planes * num_words)

    def _fetch_slots(self, block_ids: Rows, slots: Rows | None, words: Words, layer: int) -> None:
        """Copy slots of the GPU tier to `words`, the beginning of the scratch buffer."""
        row_bytes = self._shape.row_bytes
        for region, rows, columns in self._slot_rows(block_ids, slots, layer):
            if columns == slice(0, words.shape[1]):
                self._fetch(region, rows, self._scratch, row_bytes)
                continue
            self._fetch(region, rows, self._part, row_bytes)
            words[:, columns] = self._part.words(len(rows), row_bytes).reshape(len(words), -1)

    def _store_slots(self, block_ids: Rows, slots: Rows | None, words: Words, layer: int) -> None:
        """Copy `words`, the beginning of the scratch buffer, to slots of the GPU tier."""
        row_bytes = self._shape.row_bytes
        for region, rows, columns in self._slot_rows(block_ids, slots, layer):
            if columns == slice(0, words.shape[1]):
                self._store(region, rows, self._scratch, row_bytes)
                continue
            part = self._part.words(len(rows), row_bytes).reshape(len(words), -1)
            part[:] = words[:, columns]
            self._store(region, rows, self._part, row_bytes)

    def _fetch(self, region: Region, rows: Rows, scratch: Scratch, row_bytes: int) -> None:
        """Copy rows of the GPU tier to the beginning of a scratch buffer."""
        self._copier.copy(
            region, rows, scratch.region, None, num_rows=len(rows), row_bytes=row_bytes
        )

    def _store(self, region: Region, rows: Rows, scratch: Scratch, row_bytes: int) -> None:
        """Copy the beginning of a scratch buffer to rows of the GPU tier."""
        self._copier.copy(
            scratch.region, None, region, rows, num_rows=len(rows), row_bytes=row_bytes
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
