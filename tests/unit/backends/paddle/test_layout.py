"""Where pieces lie: never two in one place, all of the pool, and no block too many reaches any."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.paddle.content import layer_patterns
from kvsim.backends.paddle.copier import CopyError
from kvsim.backends.paddle.layout import Layout, PoolLayout, fitted
from kvsim.backends.paddle.memory import Tally
from kvsim.backends.paddle.shape import KVShape, find_shape
from kvsim.cost import KvKind
from kvsim.errors import MisuseError
from tests.unit.backends.paddle.bits import (
    GPU,
    HOST,
    SHAPE,
    Arena,
    blocks,
    forward_order,
    rows_of,
    slots,
    small_memory,
    transfer_order,
)

if TYPE_CHECKING:
    from kvsim.backends.paddle.layout import Pieces

LATENT = find_shape("tiny-mla")
DRAFT = replace(SHAPE, num_extra_layers=1, expand_ratio=1.5)
VARIANTS = [SHAPE, replace(SHAPE, dtype="uint8", head_dim=8), LATENT, DRAFT]

shapes = st.builds(
    replace,
    st.just(SHAPE),
    num_layers=st.integers(1, 3),
    num_extra_layers=st.integers(0, 2),
    expand_ratio=st.sampled_from([1, 1.5, 2]),
    block_size=st.integers(1, 3),
    num_kv_heads=st.integers(1, 2),
)


def bytes_of(pieces: Pieces, block_id: int) -> set[int]:
    """Return the places of a piece's words in the arena, in bytes."""
    row = int(pieces.rows(rows_of([block_id]))[0])
    assert (row + 1) * pieces.row_bytes <= pieces.area_bytes
    first = pieces.offset_bytes + row * pieces.row_bytes
    return set(range(first, first + pieces.row_bytes, 8))


@given(shapes, st.integers(1, 5), st.sampled_from(Layout))
def test_pieces_share_no_byte_and_whole_blocks_are_their_layers(
    shape: KVShape, num_blocks: int, layout: Layout
) -> None:
    pool = PoolLayout(shape, num_blocks, layout)
    taken: set[int] = set()
    for block_id in range(num_blocks):
        by_layer: set[int] = set()
        for layer in range(shape.num_all_layers):
            for pieces in pool.of_layer(layer):
                places = bytes_of(pieces, block_id)
                assert not places & by_layer
                by_layer |= places
        whole = set().union(*(bytes_of(pieces, block_id) for pieces in pool.of_blocks()))
        assert whole == by_layer
        assert len(whole) * 8 == shape.block_bytes
        assert not whole & taken
        taken |= whole
    assert max(taken) < pool.num_bytes == shape.pool_bytes(num_blocks)
    if shape.expand_ratio == 1 or not shape.num_extra_layers:
        assert len(taken) * 8 == pool.num_bytes


@given(shapes, st.integers(0, 9), st.integers(0, 20))
def test_a_pool_has_as_many_blocks_as_fit(shape: KVShape, num_blocks: int, spare: int) -> None:
    num_bytes = shape.pool_bytes(num_blocks) + spare
    found = fitted(shape, num_bytes).num_blocks
    assert shape.pool_bytes(found) <= num_bytes < shape.pool_bytes(found + 1)


def test_block_major_is_one_piece_and_layer_major_two_a_layer() -> None:
    one, other = (PoolLayout(SHAPE, 4, layout) for layout in Layout)
    # A layer has 128 bytes, a block 2 layers. Layer 1 of block 3 is row 3 * 2 + 1.
    (piece,) = one.of_layer(1)
    assert (piece.row_bytes, piece.rows(rows_of([3])).tolist()) == (128, [7])
    assert [pieces.row_bytes for pieces in one.of_blocks()] == [256]
    # K of layer 1 begins after K and V of layer 0, 4 blocks of 64 bytes each; V after that.
    assert [
        (p.offset_bytes, p.row_bytes, p.rows(rows_of([3])).tolist()) for p in other.of_layer(1)
    ] == [(512, 64, [3]), (768, 64, [3])]
    assert len(other.of_blocks()) == 2 * 2
    with pytest.raises(MisuseError, match="there is no layer 2 among 2"):
        one.of_layer(2)


def test_the_dimensions_are_those_of_the_layout() -> None:
    one, other = (PoolLayout(DRAFT, 4, layout) for layout in Layout)
    # 2 layers of 4 blocks, and an extra one of 6; K and V of 2 heads, 4 tokens of 4 values.
    assert [one.dimensions(each) for each in one.sections] == [
        (4, 2, 2, 2, 4, 4),
        (6, 1, 2, 2, 4, 4),
    ]
    assert [other.dimensions(each) for each in other.sections] == [
        (2, 2, 4, 2, 4, 4),
        (1, 2, 6, 2, 4, 4),
    ]
    latent = PoolLayout(LATENT, 4)
    assert latent.dimensions(latent.sections[0]) == (4, 4, 1, 1, 16, 48)


def words_of(arena: Arena, shape: KVShape, layout: Layout, block_id: int) -> list[list[int]]:
    """Return the words of a block, layer by layer, wherever they lie."""
    words = arena.bytes.view(np.int64)
    pool = fitted(shape, len(arena.bytes), layout)
    return [
        [
            int(words[at // 8])
            for pieces in pool.of_layer(layer)
            for at in sorted(bytes_of(pieces, block_id))
        ]
        for layer in range(shape.num_all_layers)
    ]


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", VARIANTS, ids=["bf16", "uint8", "mla", "draft"])
def test_what_is_written_copied_and_read_is_the_same_in_every_layout(
    shape: KVShape, layout: Layout
) -> None:
    memory, gpu, host = small_memory(shape=shape, layout=layout)
    patterns = [layer.reshape(-1) for layer in layer_patterns(shape)]
    seeds = {0: 11, 3: 12, 6: 13}
    layers = range(shape.num_all_layers)
    writes = forward_order(0, writes=blocks(*seeds.items()), slot_writes=slots((5, 14, 2, 0)))
    tally = Tally()
    for layer in layers:
        assert memory.compute_layer(writes, tally, layer).is_done()
    for block_id, seed in seeds.items():
        expected = [(pattern ^ seed).tolist() for pattern in patterns]
        assert words_of(gpu, shape, layout, block_id) == expected
    down = transfer_order(1, [0, 3, 6], [1, 2, 7], source=GPU, target=HOST)
    assert memory.copy_blocks(down).is_done()
    gpu.bytes[:] = 0
    for layer in layers:
        assert memory.copy_layer(transfer_order(2, [1, 7, 2], [4, 5, 6]), layer).is_done()
    for block_id, seed in ((4, 11), (5, 13), (6, 12)):
        expected = [(pattern ^ seed).tolist() for pattern in patterns]
        assert words_of(gpu, shape, layout, block_id) == expected
    reads = forward_order(3, reads=blocks((4, 11), (5, 13)), slot_reads=slots((6, 12, 1, 0)))
    for layer in layers:
        memory.check_layer(reads, tally, layer)
    assert tally.num_wrong_bytes == 0
    host_words = [words_of(host, shape, layout, block_id) for block_id in (0, 3, 4, 5, 6)]
    assert not np.array(host_words).any()


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_wrong_byte_is_found_in_whatever_layout(layout: Layout, place: int) -> None:
    memory, gpu, _ = small_memory(shape=LATENT if place == 3 else SHAPE, layout=layout)
    shape = LATENT if place == 3 else SHAPE
    writes = forward_order(0, writes=blocks((2, 7)))
    for layer in range(shape.num_layers):
        memory.compute_layer(writes, Tally(), layer)
    pieces = fitted(shape, len(gpu.bytes), layout).of_layer(1)
    at = sorted(set().union(*(bytes_of(each, 2) for each in pieces)))[place]
    gpu.bytes[at] ^= 1
    for reads in (
        {"reads": blocks((2, 7))},
        {"slot_reads": slots(*((2, 7, s, 0) for s in range(4)))},
    ):
        tally = Tally()
        for layer in range(shape.num_layers):
            memory.check_layer(forward_order(1, **reads), tally, layer)
        assert tally.num_wrong_bytes == 1


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", [SHAPE, DRAFT], ids=["plain", "draft"])
def test_a_block_too_many_is_refused_and_reaches_no_other_layer(
    shape: KVShape, layout: Layout
) -> None:
    """In layer-major memory it would be block 0 of the next; with a draft, one of its blocks."""
    memory, gpu, host = small_memory(8, 8, shape=shape, layout=layout)
    host.bytes[:] = 1
    for layer in range(shape.num_all_layers):
        with pytest.raises(CopyError, match=r"row \d+ lies beyond the \d+ rows"):
            memory.copy_layer(transfer_order(0, [0], [8]), layer)
    with pytest.raises(CopyError, match=r"row 8 lies beyond the 8 rows"):
        memory.copy_blocks(transfer_order(0, [0], [8]))
    assert not gpu.bytes.any()


def test_a_latent_has_no_v() -> None:
    assert LATENT.kv_kind is KvKind.MLA
    assert [len(PoolLayout(LATENT, 3, layout).of_layer(0)) for layout in Layout] == [1, 1]


def test_a_small_transfer_down_goes_whole_and_one_up_by_layer() -> None:
    memory, _, _ = small_memory()
    assert not memory.goes_whole(transfer_order(0, [1], [1]))
    assert memory.goes_whole(transfer_order(0, [1], [1], source=GPU, target=HOST))
