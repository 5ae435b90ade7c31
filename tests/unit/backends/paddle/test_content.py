"""What blocks hold: never the same in two places, the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.paddle.content import ContentSeeds, count_wrong_bytes, layer_patterns
from kvsim.backends.paddle.shape import find_shape
from kvsim.testing import Prompt, make_request
from kvsim.types import PartialRule
from tests.unit.backends.paddle.bits import SHAPE

if TYPE_CHECKING:
    from kvsim.backends.paddle.shape import KVShape

GOLDEN = """
from kvsim.backends.paddle.content import ContentSeeds, layer_patterns
from kvsim.backends.paddle.shape import find_shape
from kvsim.types import Request
request = Request(
    request_id=0, arrived_at=0, block_keys=[("a", 1), 7, b"k"],
    num_input_tokens=48, num_output_tokens=20,
)
print(ContentSeeds([request]).of_blocks(0, 5).tolist())
print(layer_patterns(find_shape("tiny").of_rank(1, 2))[2][1, 15].tolist())
"""

shapes = st.builds(
    replace,
    st.just(SHAPE),
    num_layers=st.integers(1, 3),
    num_kv_heads=st.integers(1, 3),
    block_size=st.integers(1, 5),
    head_dim=st.sampled_from([4, 8]),
)


@given(shapes)
def test_every_word_of_every_layer_plane_slot_has_a_constant_of_its_own(shape: KVShape) -> None:
    layers = layer_patterns(shape)
    assert {layer.shape for layer in layers} == {
        (shape.num_planes, shape.block_size, shape.row_bytes // 8)
    }
    words = [word for layer in layers for word in layer.reshape(-1).tolist()]
    assert len(set(words)) == len(words) == shape.block_bytes // 8


@given(shapes, st.integers(1, 7))
def test_a_head_holds_the_same_whatever_rank_it_is_on(shape: KVShape, num_ranks: int) -> None:
    """So the blocks of one instance can be checked on another of a different number of ranks."""
    whole = layer_patterns(shape)
    seen = set()
    for rank in range(num_ranks):
        share = shape.of_rank(rank, num_ranks)
        planes = [part * shape.num_kv_heads + h for part in range(2) for h in share.heads]
        for here, all_heads in zip(layer_patterns(share), whole, strict=True):
            assert (here == all_heads[planes]).all()
        seen |= set(share.heads)
    assert seen == set(range(shape.num_kv_heads))


def test_a_latent_is_the_same_on_every_rank() -> None:
    latent = find_shape("tiny-mla")
    one, *others = (layer_patterns(latent.of_rank(rank, 3)) for rank in range(3))
    assert [layer.shape for layer in one] == [(1, 16, 12)] * 4
    assert all((a == b).all() for other in others for a, b in zip(one, other, strict=True))


def test_blocks_of_different_keys_differ_and_of_one_key_do_not() -> None:
    # Two requests of prompts a b c and a b d (4 tokens a block, the last one of 2), 9 tokens out.
    requests = [
        make_request(i, Prompt((0, 0, i), 2), block_size=4, num_output_tokens=9) for i in range(2)
    ]
    seeds = ContentSeeds(requests)
    first, second = (seeds.of_blocks(i, 5).tolist() for i in range(2))
    # Their keys: blocks 0 and 1. Block 2 is not full, so it is each one's own; so is what follows.
    assert first[:2] == second[:2]
    assert len({*first, *second}) == 2 + 3 + 3


def test_a_partial_block_that_counts_is_shared_and_the_output_is_not() -> None:
    requests = [
        make_request(
            i,
            Prompt((0, 0), 2),
            block_size=4,
            partial=PartialRule.COUNT,
            num_output_tokens=9,
        )
        for i in range(2)
    ]
    seeds = ContentSeeds(requests)
    first, second = (seeds.of_blocks(i, 4).tolist() for i in range(2))
    assert first[:2] == second[:2]
    assert len({*first, *second}) == 2 + 2 + 2


def test_a_table_that_grows_keeps_the_content_of_its_first_blocks() -> None:
    request = make_request(0, Prompt((0, 0, 1), 4), block_size=4, num_output_tokens=9)
    at_once, in_pieces = ContentSeeds([request]), ContentSeeds([request])
    for num_blocks in (0, 2, 1, 5, 3):
        assert len(in_pieces.of_blocks(0, num_blocks)) == num_blocks
    assert in_pieces.of_blocks(0, 5).tolist() == at_once.of_blocks(0, 5).tolist()


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5))
def test_wrong_bytes_are_those_that_are_not_zero(words: list[int]) -> None:
    expected = sum(byte != 0 for word in words for byte in word.to_bytes(8, "little"))
    difference = np.array(words, np.uint64).view(np.int64)
    assert count_wrong_bytes(difference) == expected


def test_the_content_is_the_same_in_every_process() -> None:
    """Whatever the hash seed; `hash` of a text or of None differs."""
    said = {
        subprocess.run(
            [sys.executable, "-c", GOLDEN],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    keys = [("a", 1), 7, b"k", ("output", 0, 3), ("output", 0, 4)]
    digests = [blake2b(repr(key).encode(), digest_size=8).digest() for key in keys]
    seeds = [int.from_bytes(digest, "little", signed=True) for digest in digests]
    # Layer 2 is the third. Rank 1 of 2 has head 1, whose V is its plane 1; slot 15 has words 60 on.
    words = [signed(mix((3 << 48) + (1 << 47) + (1 << 31) + 60 + i)) for i in range(4)]
    assert said == {f"{seeds}\n{words}\n"}


def mix(place: int) -> int:
    """Return the 64-bit finaliser of SplitMix64 of a place, in Python's integers."""
    bits = 2**64 - 1
    mixed = place * 0x9E3779B97F4A7C15 & bits
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & bits
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & bits
    return mixed ^ mixed >> 31


def signed(word: int) -> int:
    return word - 2**64 if word >> 63 else word
