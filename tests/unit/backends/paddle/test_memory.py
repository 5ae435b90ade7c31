"""What a rank writes is what it must, and whatever is wrong is found, counted and named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.paddle.content import layer_patterns
from kvsim.backends.paddle.memory import RankMemory, Tally
from kvsim.backends.paddle.shape import KVShape
from tests.unit.backends.paddle.bits import (
    PLANES,
    SLOTS,
    Arena,
    blocks,
    forward_order,
    shape_of,
    slots,
    small_memory,
    transfer_order,
)

# In rows: a block has 2 layers of 4 planes of 4 slots of one word.
WORDS = 2 * PLANES * SLOTS
A, B = 0x0123456789ABCDEF, 0x1123456789ABCD00  # they differ in their first and last byte


def words_of(arena: Arena) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return the memory as (blocks, layers, planes, slots)."""
    return arena.bytes.view(np.int64).reshape(-1, 2, PLANES, SLOTS)


def written(memory: RankMemory, *seeds: int) -> None:
    """Write whole blocks 0, 1, ... of these seeds, in both layers."""
    order = forward_order(0, writes=blocks(*enumerate(seeds)))
    for layer in range(2):
        memory.compute_layer(order, Tally(), layer)


def found(memory: RankMemory, *pairs: tuple[int, int], op_id: int = 9) -> tuple[int, str]:
    """Return (wrong bytes, the first) that reading whole blocks finds."""
    tally = Tally()
    for layer in range(2):
        memory.check_layer(forward_order(op_id, reads=blocks(*pairs)), tally, layer)
    return tally.num_wrong_bytes, tally.first_wrong


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), st.integers(0, 3))
def test_whole_blocks_and_single_slots_are_written_where_they_belong(
    seeds: list[int], rank: int
) -> None:
    memory, gpu, _ = small_memory(rank=rank)
    patterns = np.array(layer_patterns(shape_of(rank))).reshape(2, PLANES, SLOTS)
    expected = np.zeros((8, 2, PLANES, SLOTS), np.int64)
    pairs = [(7 - i, seed) for i, seed in enumerate(seeds)]
    single = (0, 5, 2, 0), (1, 6, 0, 0), (0, 5, 3, 0)
    for block_id, seed in pairs:
        expected[block_id] = patterns ^ seed
    for block_id, seed, slot, _ in single:
        expected[block_id, :, :, slot] = patterns[:, :, slot] ^ seed
    order = forward_order(0, writes=blocks(*pairs), slot_writes=slots(*single))
    for layer in range(2):
        memory.compute_layer(order, Tally(), layer)
    assert (words_of(gpu) == expected).all()
    assert found(memory, *pairs) == (0, "")


def test_a_layer_of_a_transfer_moves_that_layer_of_those_blocks() -> None:
    memory, gpu, host = small_memory()
    words_of(host)[:] = np.arange(8 * WORDS).reshape(8, 2, PLANES, SLOTS)
    memory.copy_layer(transfer_order(0, [5, 1], [0, 7]), 1)
    expected = np.zeros((8, 2, PLANES, SLOTS), np.int64)
    expected[0, 1], expected[7, 1] = words_of(host)[5, 1], words_of(host)[1, 1]
    assert (words_of(gpu) == expected).all()


def test_the_content_of_another_block_is_wrong_in_each_byte_that_differs() -> None:
    memory, _, _ = small_memory()
    written(memory, B, A)
    # Two bytes of each of the 16 words of a layer, in two layers.
    wrong = "op 9 read 32 wrong bytes on rank 0, in layer 0 of block 0 on the GPU"
    assert found(memory, (1, A), (0, A)) == (2 * 2 * 16, wrong)
    assert found(memory, (1, A), (0, B)) == (0, "")


def test_a_layer_that_was_not_copied_is_found() -> None:
    memory, gpu, host = small_memory()
    written(memory, B)
    words_of(host)[3] = words_of(gpu)[0] ^ B ^ A  # what A would be
    memory.copy_layer(transfer_order(0, [3], [0]), 0)
    # 2 bytes a word, 16 words: layer 1 is still the block that was there before.
    wrong = "op 9 read 32 wrong bytes on rank 0, in layer 1 of block 0 on the GPU"
    assert found(memory, (0, A)) == (32, wrong)


def test_a_block_that_was_never_written_is_wrong_in_all_bytes_of_its_content() -> None:
    memory, _, _ = small_memory(rank=1)
    content = np.array(layer_patterns(shape_of(1))).reshape(2, -1) ^ A
    expected = int(np.count_nonzero(content.view(np.uint8)))
    assert expected > WORDS * 8 * 9 // 10
    num_wrong, first = found(memory, (2, A))
    assert num_wrong == expected
    first_layer = int(np.count_nonzero(content[0].view(np.uint8)))
    assert (
        first == f"op 9 read {first_layer} wrong bytes on rank 1, in layer 0 of block 2 on the GPU"
    )


@pytest.mark.parametrize("bit", [0, 1, 63, 64 * 17 + 5, 64 * WORDS - 1])
def test_one_bit_is_found(bit: int) -> None:
    memory, gpu, _ = small_memory()
    written(memory, A, B)
    gpu.bytes[256 + bit // 8] ^= 1 << bit % 8  # in block 1, whose bytes begin at 256
    layer = bit // (64 * WORDS // 2)
    wrong = f"op 3 read 1 wrong bytes on rank 0, in layer {layer} of block 1 on the GPU"
    assert found(memory, (0, A), (1, B), op_id=3) == (1, wrong)


def test_what_another_rank_wrote_is_wrong() -> None:
    memory, gpu, _ = small_memory(rank=0)
    other, others, _ = small_memory(rank=1)
    written(other, A)
    gpu.bytes[:] = others.bytes
    patterns = [np.array(layer_patterns(shape_of(rank))) for rank in range(2)]
    expected = np.count_nonzero((patterns[0] ^ patterns[1]).view(np.uint8))
    assert found(memory, (0, A))[0] == expected > 0


@pytest.mark.parametrize(
    ("axis", "one", "other"),
    [(0, 0, 1), (1, 0, 2), (1, 0, 1), (2, 1, 2)],
    ids=["layers", "K and V", "heads", "tokens"],
)
def test_two_pieces_of_a_block_that_are_swapped_are_wrong(axis: int, one: int, other: int) -> None:
    memory, gpu, _ = small_memory()
    written(memory, A)
    block = words_of(gpu)[0]
    before = block.copy()
    order = list(range(block.shape[axis]))
    order[one], order[other] = order[other], order[one]
    block[:] = np.take(before, order, axis=axis)
    expected = np.count_nonzero((block ^ before).view(np.uint8))
    assert found(memory, (0, A))[0] == expected > 0


def test_a_wrong_byte_in_a_slot_that_is_read_is_found_and_one_beside_it_is_not() -> None:
    memory, gpu, _ = small_memory()
    written(memory, A)
    order = forward_order(9, slot_reads=slots((0, A, 2, 0)))
    for plane, slot, expected in ((3, 2, 1), (3, 1, 0), (0, 2, 1)):
        words_of(gpu)[0, 1, plane, slot] ^= 1
        tally = Tally()
        for layer in range(2):
            memory.check_layer(order, tally, layer)
        assert tally.num_wrong_bytes == expected
        words_of(gpu)[0, 1, plane, slot] ^= 1
    assert tally.first_wrong.endswith("1 wrong bytes on rank 0, in layer 1 of block 0 on the GPU")


@pytest.mark.parametrize("op_id", [4, 5])
def test_of_a_block_to_peek_at_the_first_slot_of_one_layer_is_read(op_id: int) -> None:
    memory, gpu, _ = small_memory()
    written(memory, A)
    order = forward_order(op_id, peeks=blocks((0, A)))
    for layer in range(2):
        for slot in range(SLOTS):
            words_of(gpu)[0, layer, 1, slot] ^= 255
            tally = Tally()
            for each in range(2):
                memory.check_layer(order, tally, each)
            assert tally.num_wrong_bytes == (slot == 0 and layer == op_id % 2)
            words_of(gpu)[0, layer, 1, slot] ^= 255


def test_a_forward_reads_what_it_writes_itself() -> None:
    memory, _, _ = small_memory()
    order = forward_order(
        0,
        writes=blocks((0, A)),
        slot_writes=slots((1, B, 3, 0)),
        reads=blocks((0, A)),
        slot_reads=slots((1, B, 3, 0)),
        peeks=blocks((0, A)),
    )
    tally = Tally()
    for layer in range(2):
        memory.compute_layer(order, tally, layer)
    assert tally.num_wrong_bytes == 0


# The scratch buffer has 2**20 bytes: 8192 layers of 128 bytes, or 32768 slots of 32.
@pytest.mark.parametrize("num_blocks", [8191, 8192, 8193, 20_000])
def test_more_blocks_than_fit_the_scratch_buffer_are_all_written_and_read(num_blocks: int) -> None:
    memory, gpu, _ = small_memory(num_blocks, 1)
    pairs = [(i, i * 7919) for i in range(num_blocks)]
    order = forward_order(0, writes=blocks(*pairs))
    for layer in range(2):
        memory.compute_layer(order, Tally(), layer)
    assert found(memory, *pairs) == (0, "")
    places = sorted({0, 8190, 8191, 8192, num_blocks - 1} & set(range(num_blocks)))
    for place in places:
        words_of(gpu)[place, 1, 0, 0] ^= 1
    wrong = f"op 9 read 1 wrong bytes on rank 0, in layer 1 of block {places[0]} on the GPU"
    assert found(memory, *pairs) == (len(places), wrong)


@pytest.mark.parametrize("num_slots", [32_767, 32_768, 32_769])
def test_more_slots_than_fit_the_scratch_buffer_are_all_written_and_read(num_slots: int) -> None:
    memory, gpu, _ = small_memory(num_slots // 4 + 1, 1)
    table = slots(*((i // 4, i // 4 * 7919, i % 4, 0) for i in range(num_slots)))
    memory.write_slots(table, 1)
    tally = Tally()
    memory.check_layer(forward_order(0, slot_reads=table), tally, 1)
    assert tally.num_wrong_bytes == 0
    assert not words_of(gpu)[:, 0].any()
    last = num_slots - 1
    words_of(gpu)[last // 4, 1, 2, last % 4] ^= 1
    memory.check_layer(forward_order(0, slot_reads=table), tally, 1)
    assert tally.num_wrong_bytes == 1


def test_a_layer_larger_than_the_scratch_buffer_has_a_larger_one() -> None:
    # 2 planes of 65,536 slots of 16 bytes: 2 MiB.
    shape = KVShape(name="wide", num_layers=1, num_kv_heads=1, block_size=65_536, head_dim=8)
    memory, gpu, _ = small_memory(2, 1, shape=shape)
    order = forward_order(0, writes=blocks((0, A), (1, B)), reads=blocks((0, A), (1, B)))
    tally = Tally()
    memory.compute_layer(order, tally, 0)
    assert tally.num_wrong_bytes == 0
    gpu.bytes[-1] ^= 1
    memory.check_layer(order, tally, 0)
    assert tally.first_wrong.endswith("in layer 0 of block 1 on the GPU")
