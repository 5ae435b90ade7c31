"""Shapes: sizes by hand, the share of a rank, the cache of a model, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.paddle.shape import (
    DTYPES,
    ITEM_BYTES,
    SHAPES,
    find_shape,
    heads_of_rank,
    shape_of_model,
)
from kvsim.core.sharding import KVLayout
from kvsim.cost import KvKind
from kvsim.errors import ConfigError, UnknownNameError
from kvsim.presets import MODELS
from kvsim.replay_config import KV_BITS

TINY = find_shape("tiny")
LATENT = find_shape("tiny-mla")


def test_the_sizes_of_the_tiny_shape_are_those_worked_out_by_hand() -> None:
    # 16 values of 2 bytes; K and V of 2 heads; 16 tokens; 4 layers.
    assert TINY.row_bytes == 16 * 2 == 32
    assert TINY.num_planes == 2 * 2 == 4
    assert TINY.layer_bytes == 4 * 16 * 32 == 2048
    assert TINY.block_bytes == 4 * 2048 == 8192
    assert TINY.pool_bytes(3) == 3 * 8192


@pytest.mark.parametrize(("dtype", "num_bytes"), [("bfloat16", 8192), ("float16", 8192)])
def test_every_type_of_two_bytes_takes_the_same(dtype: str, num_bytes: int) -> None:
    assert replace(TINY, dtype=dtype).block_bytes == num_bytes


def test_a_value_of_one_byte_takes_half_of_the_memory() -> None:
    assert replace(TINY, dtype="uint8").block_bytes == 4096


def test_every_type_that_kv_may_have_is_kept_in_its_bytes_but_those_of_four_bits() -> None:
    for name, bits in KV_BITS.items():
        if bits == 4:
            assert name not in DTYPES
        else:
            assert ITEM_BYTES[DTYPES[name]] * 8 == bits
            assert ITEM_BYTES[DTYPES[str(bits)]] * 8 == bits


def test_a_latent_counts_once_and_is_whole_on_every_rank() -> None:
    # 48 values of 2 bytes, 16 tokens, 4 layers; neither K and V nor heads.
    assert LATENT.block_bytes == 48 * 2 * 16 * 4 == 6144
    for rank in range(3):
        share = LATENT.of_rank(rank, 3)
        assert (share.block_bytes, list(share.heads)) == (6144, [0])


def test_ranks_split_the_heads() -> None:
    assert TINY.of_rank(0, 1) == replace(TINY, total_kv_heads=2)
    one, other = (TINY.of_rank(rank, 2) for rank in range(2))
    assert (list(one.heads), list(other.heads)) == ([0], [1])
    assert one.block_bytes == other.block_bytes == 4096
    assert one.num_all_heads == other.num_all_heads == 2
    # 5 heads on 2 ranks: 3 on each, one of them on both.
    five = replace(TINY, num_kv_heads=5)
    assert [list(five.of_rank(rank, 2).heads) for rank in range(2)] == [[0, 1, 2], [2, 3, 4]]


def test_with_more_ranks_than_heads_each_head_is_on_several() -> None:
    # 8 ranks, 2 heads: the first four have head 0.
    assert [list(TINY.of_rank(rank, 8).heads) for rank in range(8)] == [[0]] * 4 + [[1]] * 4


@given(st.integers(1, 40), st.integers(1, 40))
def test_every_head_is_somewhere_and_every_rank_has_as_many(num_heads: int, num_ranks: int) -> None:
    shares = [heads_of_rank(num_heads, rank, num_ranks) for rank in range(num_ranks)]
    assert {head for share in shares for head in share} == set(range(num_heads))
    assert {len(share) for share in shares} == {-(-num_heads // num_ranks)}


@pytest.mark.parametrize(("num_heads", "num_ranks"), [(8, 1), (8, 4), (8, 8), (2, 8), (1, 3)])
def test_ranks_have_the_heads_that_sends_between_instances_take_from_them(
    num_heads: int, num_ranks: int
) -> None:
    split = KVLayout(num_ranks=num_ranks, num_kv_heads=num_heads, num_layers=1)
    for rank in range(num_ranks):
        heads = heads_of_rank(num_heads, rank, num_ranks)
        assert (heads[0], len(heads)) == (split.first_head(rank), split.heads_per_rank)


def test_a_share_of_a_share_counts_its_heads_among_all() -> None:
    wide = replace(TINY, num_kv_heads=8)
    assert list(wide.of_rank(1, 2).of_rank(1, 2).heads) == [6, 7]
    assert wide.of_rank(1, 2).of_rank(1, 2).num_all_heads == 8


def test_layers_of_a_draft_are_part_of_a_block_and_may_have_more_blocks() -> None:
    draft = replace(TINY, num_extra_layers=1, expand_ratio=1.5)
    # 5 layers of 2048 bytes move with a block. Of 7 blocks, 1.5 * 7 = 10.5 means 10 extra ones.
    assert draft.num_all_layers == 5
    assert draft.block_bytes == 5 * 2048
    assert draft.num_extra_blocks(7) == 10
    assert draft.pool_bytes(7) == 7 * 4 * 2048 + 10 * 2048
    # The size of a pool is not blocks times the bytes of a block, nor of an extra layer.
    assert draft.pool_bytes(7) > 7 * draft.block_bytes


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_shape_of_a_model_has_the_bytes_that_its_cost_counts(name: str) -> None:
    model = MODELS[name]
    shape = shape_of_model(model, block_size=64)
    for num_ranks in (1, 2, 8):
        share = shape.of_rank(0, num_ranks)
        assert share.block_bytes == 64 * model.kv_bytes_per_rank(16, num_ranks=num_ranks)
        one_byte = replace(share, dtype="uint8")
        assert one_byte.block_bytes == 64 * model.kv_bytes_per_rank(8, num_ranks=num_ranks)


@pytest.mark.parametrize("name", ["num_layers", "num_kv_heads", "block_size", "head_dim"])
def test_a_size_below_one_is_refused(name: str) -> None:
    sizes = {"num_layers": 1, "num_kv_heads": 1, "block_size": 1, "head_dim": 4, name: 0}
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, not 0"):
        replace(TINY, **sizes)  # type: ignore[arg-type]  # not of the field `name`


def test_values_of_a_head_that_are_no_whole_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="head_dim 6 of bfloat16 is 12 bytes"):
        replace(TINY, head_dim=6)
    assert replace(TINY, head_dim=4).row_bytes == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_kind": KvKind.MLA}, "an MLA latent is one head, not 2"),
        ({"num_extra_layers": -1}, "extra_layers must be at least 0, not -1"),
        ({"expand_ratio": 0.5}, "expand_ratio must be from 1 .* to 64, not 0.5"),
        ({"expand_ratio": float("nan")}, "expand_ratio must be from 1 .* to 64, not nan"),
        ({"first_kv_head": 1}, "heads 1 to 2 are not among 2"),
        ({"first_kv_head": -1, "total_kv_heads": 9}, "heads -1 to 0 are not among 9"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(TINY, **settings)  # type: ignore[arg-type]  # of several fields


def test_an_unknown_dtype_or_shape_is_refused_with_the_names_known() -> None:
    with pytest.raises(UnknownNameError, match="bfloat16, float16, uint8"):
        replace(TINY, dtype="float64")
    with pytest.raises(UnknownNameError, match="model, small, tiny, tiny-mla"):
        find_shape("huge")


def test_the_table_names_each_shape_by_its_own_name() -> None:
    assert all(shape.name == name for name, shape in SHAPES.items())
