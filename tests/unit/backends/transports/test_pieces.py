"""What goes where: ranges, merging, cutting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.transports.pieces import Pieces
from kvsim.backends.transports.ports import PieceError

TABLES = st.lists(
    st.tuples(st.integers(0, 90), st.integers(0, 90), st.integers(0, 10)), max_size=12
)


def copied(pieces: Pieces) -> dict[int, int]:
    """Return which source byte goes to which target byte."""
    return {
        target + step: source + step for source, target, length in pieces for step in range(length)
    }


def test_neighbours_on_both_sides_become_one() -> None:
    # 0+4 meets 4 and 10+4 meets 14; 8 meets on the source side alone, 30 on neither.
    pieces = Pieces.of([(0, 10, 4), (4, 14, 4), (8, 20, 2), (30, 40, 1)])
    assert list(pieces.merged()) == [(0, 10, 8), (8, 20, 2), (30, 40, 1)]


def test_empty_pieces_are_dropped() -> None:
    assert list(Pieces.of([(5, 5, 0), (0, 0, 0)]).merged()) == []


@given(TABLES)
def test_merging_changes_no_byte(table: list[tuple[int, int, int]]) -> None:
    pieces = Pieces.of(table)
    assert copied(pieces.merged()) == copied(pieces)
    assert pieces.merged().total_bytes == pieces.total_bytes


@given(TABLES, st.integers(1, 12))
def test_cutting_changes_no_byte(table: list[tuple[int, int, int]], max_bytes: int) -> None:
    pieces = Pieces.of(table)
    parts = list(pieces.split(max_bytes))
    assert [row for part in parts for row in part if row[2] == 0] == []
    assert {k: v for part in parts for k, v in copied(part).items()} == copied(pieces)
    assert [part.total_bytes for part in parts[:-1]] == [max_bytes] * (len(parts) - 1)


def test_heads_are_pieces_at_even_distances() -> None:
    # One head of 8 bytes in each of 3 blocks: 64 bytes apart here, 16 there.
    pieces = Pieces.strided(
        first_source=24,
        source_stride=64,
        first_target=0,
        target_stride=16,
        num_pieces=3,
        piece_bytes=8,
    )
    assert list(pieces) == [(24, 0, 8), (88, 16, 8), (152, 32, 8)]


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        ((90, 0, 11), "piece 1 of a write is 11 bytes from 90 on, and its source has 100 bytes"),
        ((0, 200, 1), "piece 1 of a write is 1 bytes from 200 on, and its target has 200 bytes"),
        ((2**62, 0, 2**62), "its source has 100 bytes"),
    ],
)
def test_a_piece_beyond_a_region_is_named(piece: tuple[int, int, int], message: str) -> None:
    with pytest.raises(PieceError, match=message):
        Pieces.of([(0, 0, 100), piece]).check_within(100, 200)


def test_what_fits_exactly_is_within() -> None:
    Pieces.of([(0, 100, 100), (100, 200, 0)]).check_within(100, 200)


@pytest.mark.parametrize("piece", [(-1, 0, 1), (0, -1, 1), (0, 0, -1)])
def test_nothing_is_negative(piece: tuple[int, int, int]) -> None:
    with pytest.raises(PieceError, match="are 0 or more, not -1"):
        Pieces.of([piece])


def test_the_columns_are_of_one_length() -> None:
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    with pytest.raises(PieceError, match="1 source offsets, 2 target offsets and 1 lengths"):
        Pieces(one, two, one)
