"""Where the pieces of a block lie in the arena of a pool.

Block-major is `[block, layer, K/V, head, slot, value]`: a whole block is one piece, and so is one
layer of it. Layer-major is `[layer, K/V, block, head, slot, value]`: a tensor for each K and each
V, as most engines have it, and a block is in twice as many pieces as there are layers.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from kvsim.backends.region import Region
from kvsim.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.backends.paddle.copier import Rows
    from kvsim.backends.paddle.shape import KVShape


class Layout(StrEnum):
    """The order of a pool's memory."""

    BLOCK_MAJOR = "block-major"
    LAYER_MAJOR = "layer-major"


class Pieces(NamedTuple):
    """One piece of every block of a pool, equally long.

    In the `area_bytes` bytes from `offset_bytes` of the arena on, taken as rows of `row_bytes`, the
    piece of block b is row `first_row + b * rows_per_block`. An area ends with its last block, so
    that a block too many is a row beyond it, not another layer.

    `first_plane` and `num_planes` say which planes (K or V of a head) of a layer it has.
    """

    offset_bytes: int
    area_bytes: int
    row_bytes: int
    first_row: int
    rows_per_block: int
    first_plane: int
    num_planes: int

    @property
    def planes(self) -> slice:
        """Its planes among those of the layer."""
        return slice(self.first_plane, self.first_plane + self.num_planes)

    def rows(self, block_ids: Rows) -> Rows:
        """Return the rows of blocks."""
        if self.rows_per_block == 1 and not self.first_row:
            return block_ids
        return block_ids * self.rows_per_block + self.first_row


class Section(NamedTuple):
    """Layers that have the same number of blocks."""

    first_layer: int
    num_layers: int
    num_blocks: int
    offset_bytes: int


class PoolLayout:
    """The places of all pieces in a pool of `num_blocks` blocks.

    Extra layers with as many blocks as the others are layers like them. With more, they have a
    section of their own after the others; what is beyond `num_blocks` there is for the draft model
    alone, and is never copied.

    Parameters
    ----------
    shape
        Of a block on this rank.
    """

    def __init__(
        self, shape: KVShape, num_blocks: int, layout: Layout = Layout.BLOCK_MAJOR
    ) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.layout = layout
        self.num_bytes = shape.pool_bytes(num_blocks)
        self.sections = tuple(_sections(shape, num_blocks))

    def dimensions(self, section: Section) -> tuple[int, ...]:
        """Return the dimensions of a section; the last is that of the values.

        Block-major: (blocks, layers, parts, heads, block_size, head_dim); layer-major: (layers,
        parts, blocks, heads, block_size, head_dim). Parts are K and V, or the latent.
        """
        shape = self.shape
        outer: tuple[int, ...] = (section.num_layers, shape.num_parts)
        if self.layout is Layout.BLOCK_MAJOR:
            outer = (section.num_blocks, *outer)
        else:
            outer = (*outer, section.num_blocks)
        return (*outer, shape.num_kv_heads, shape.block_size, shape.head_dim)

    def of_layer(self, layer: int) -> tuple[Pieces, ...]:
        """Return the pieces of one layer, whose planes are in order."""
        for section in self.sections:
            index = layer - section.first_layer
            if 0 <= index < section.num_layers:
                return self._layer_pieces(section, index)
        raise MisuseError(f"there is no layer {layer} among {self.shape.num_all_layers}")

    def of_blocks(self) -> tuple[Pieces, ...]:
        """Return the fewest pieces that make up whole blocks."""
        if self.layout is Layout.LAYER_MAJOR:
            layers = range(self.shape.num_all_layers)
            return tuple(pieces for layer in layers for pieces in self.of_layer(layer))
        layer_bytes = self.shape.layer_bytes
        return tuple(
            Pieces(
                offset_bytes=section.offset_bytes,
                area_bytes=self.num_blocks * section.num_layers * layer_bytes,
                row_bytes=section.num_layers * layer_bytes,
                first_row=0,
                rows_per_block=1,
                first_plane=0,
                num_planes=self.shape.num_planes,
            )
            for section in self.sections
        )

    def _layer_pieces(self, section: Section, index: int) -> tuple[Pieces, ...]:
        shape = self.shape
        if self.layout is Layout.BLOCK_MAJOR:
            return (
                Pieces(
                    offset_bytes=section.offset_bytes,
                    area_bytes=self.num_blocks * section.num_layers * shape.layer_bytes,
                    row_bytes=shape.layer_bytes,
                    first_row=index,
                    rows_per_block=section.num_layers,
                    first_plane=0,
                    num_planes=shape.num_planes,
                ),
            )
        row_bytes = shape.layer_bytes // shape.num_parts
        return tuple(
            Pieces(
                offset_bytes=section.offset_bytes
                + (index * shape.num_parts + part) * section.num_blocks * row_bytes,
                area_bytes=self.num_blocks * row_bytes,
                row_bytes=row_bytes,
                first_row=0,
                rows_per_block=1,
                first_plane=part * shape.num_kv_heads,
                num_planes=shape.num_kv_heads,
            )
            for part in range(shape.num_parts)
        )


def _sections(shape: KVShape, num_blocks: int) -> Iterator[Section]:
    num_extra_blocks = shape.num_extra_blocks(num_blocks)
    if not shape.num_extra_layers or num_extra_blocks == num_blocks:
        yield Section(0, shape.num_all_layers, num_blocks, 0)
        return
    yield Section(0, shape.num_layers, num_blocks, 0)
    yield Section(
        shape.num_layers,
        shape.num_extra_layers,
        num_extra_blocks,
        shape.num_layers * num_blocks * shape.layer_bytes,
    )


def fitted(shape: KVShape, num_bytes: int, layout: Layout = Layout.BLOCK_MAJOR) -> PoolLayout:
    """Return the layout of as many blocks as fit in so many bytes."""
    per_block = shape.num_layers + shape.num_extra_layers * shape.expand_ratio
    num_blocks = int(num_bytes / (per_block * shape.layer_bytes))
    while shape.pool_bytes(num_blocks) > num_bytes:
        num_blocks -= 1
    while shape.pool_bytes(num_blocks + 1) <= num_bytes:
        num_blocks += 1
    return PoolLayout(shape, num_blocks, layout)


class Piece(NamedTuple):
    """Pieces in memory: rows of `pieces.row_bytes` in `region`."""

    region: Region
    pieces: Pieces


class PlacedPool:
    """A pool's layout in its memory.

    Attributes
    ----------
    num_blocks
        Blocks of the pool.
    layers
        The pieces of each layer.
    blocks
        The fewest pieces of whole blocks.
    """

    def __init__(self, region: Region, layout: PoolLayout) -> None:
        self.num_blocks = layout.num_blocks
        self.layers = [
            _placed(region, layout.of_layer(layer)) for layer in range(layout.shape.num_all_layers)
        ]
        self.blocks = _placed(region, layout.of_blocks())


def _placed(region: Region, pieces: tuple[Pieces, ...]) -> tuple[Piece, ...]:
    return tuple(
        Piece(Region(region.ptr + each.offset_bytes, each.area_bytes, region.kind), each)
        for each in pieces
    )
