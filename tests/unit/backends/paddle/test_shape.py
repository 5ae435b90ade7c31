"""Shapes: sizes by hand, the share of a rank, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsim.backends.paddle.shape import SHAPES, find_shape
from kvsim.errors import ConfigError, UnknownNameError

TINY = find_shape("tiny")


def test_the_sizes_of_the_tiny_shape_are_those_worked_out_by_hand() -> None:
    # 16 values of 2 bytes; K and V of 2 heads; 16 tokens; 4 layers.
    assert TINY.row_bytes == 16 * 2 == 32
    assert TINY.num_planes == 2 * 2 == 4
    assert TINY.layer_bytes == 4 * 16 * 32 == 2048
    assert TINY.block_bytes == 4 * 2048 == 8192
    assert TINY.dimensions(3) == (3, 4, 2, 2, 16, 16)


def test_a_value_of_one_byte_takes_half_of_the_memory() -> None:
    assert replace(TINY, dtype="uint8").block_bytes == 4096


def test_ranks_split_the_heads() -> None:
    assert TINY.of_rank(1) == TINY
    assert TINY.of_rank(2).num_kv_heads == 1
    assert TINY.of_rank(2).block_bytes == 4096
    # 5 heads on 2 ranks: 3 on one of them, so room for 3 on each.
    assert replace(TINY, num_kv_heads=5).of_rank(2).num_kv_heads == 3


def test_with_more_ranks_than_heads_each_rank_has_one() -> None:
    assert TINY.of_rank(8).num_kv_heads == 1


@pytest.mark.parametrize("name", ["num_layers", "num_kv_heads", "block_size", "head_dim"])
def test_a_size_below_one_is_refused(name: str) -> None:
    sizes = {"num_layers": 1, "num_kv_heads": 1, "block_size": 1, "head_dim": 4, name: 0}
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, not 0"):
        replace(TINY, **sizes)  # type: ignore[arg-type]  # not of the field `name`


def test_values_of_a_head_that_are_no_whole_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="head_dim 6 of bfloat16 is 12 bytes"):
        replace(TINY, head_dim=6)
    assert replace(TINY, head_dim=4).row_bytes == 8


def test_an_unknown_dtype_or_shape_is_refused_with_the_names_known() -> None:
    with pytest.raises(UnknownNameError, match="bfloat16, float16, uint8"):
        replace(TINY, dtype="float64")
    with pytest.raises(UnknownNameError, match="tiny"):
        find_shape("huge")


def test_the_table_names_each_shape_by_its_own_name() -> None:
    assert all(shape.name == name for name, shape in SHAPES.items())
