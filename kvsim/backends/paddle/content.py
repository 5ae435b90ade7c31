"""What a block must hold: a known function of its key, the layer, K or V, the head and the token.

A word is the key's 64-bit digest, xored with a constant of its place in the model. So a block of
another key, another layer or head, or with tokens or K and V mixed up differs in nearly every byte.
The head is counted among all heads of the model, not among those of the rank: what one instance
keeps on two ranks is what another keeps on four. An MLA latent is one head, the same on every rank.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.backends.paddle.shape import WORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.backends.paddle.copier import Words
    from kvsim.backends.paddle.shape import KVShape
    from kvsim.types import BlockKey, Request, RequestId

_MIX: Final = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 14."""

_LAYER_SHIFT: Final = 48
_PART_SHIFT: Final = 47
_HEAD_SHIFT: Final = 31
"""A place in 64 bits: the layer (counted from 1), K or V, the head, and the word in its plane."""

_NOTHING: Final = np.empty(0, np.int64)


class ContentSeeds:
    """Names the content of every block of the requests by a number of 64 bits.

    A block whose key is known has its key's number. A block of output tokens, or a last block of
    the prompt that is not full, is nobody else's: its number is of the request and its position.

    Parameters
    ----------
    requests
        By request id.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._of_key: dict[BlockKey, int] = {}
        self._of_request: dict[RequestId, Words] = {}

    def of_blocks(self, request_id: RequestId, num_blocks: int) -> Words:
        """Return the numbers of the first blocks of a request's table."""
        known = self._of_request.get(request_id, _NOTHING)
        if len(known) < num_blocks:
            more = [self._seed(request_id, index) for index in range(len(known), num_blocks)]
            known = np.concatenate([known, np.array(more, np.int64)])
            self._of_request[request_id] = known
        return known[:num_blocks]

    def _seed(self, request_id: RequestId, index: int) -> int:
        keys = self._requests[request_id].block_keys
        key: BlockKey = keys[index] if index < len(keys) else ("output", request_id, index)
        seed = self._of_key.get(key)
        if seed is None:
            # By its text, which is the same in every process; `hash` is not.
            digest = blake2b(repr(key).encode(), digest_size=WORD_BYTES).digest()
            seed = self._of_key[key] = int.from_bytes(digest, "little", signed=True)
        return seed


def layer_patterns(shape: KVShape) -> list[Words]:
    """Return for each layer the constants of its words, `(planes, block_size, words)`.

    They depend on no rank and no layout, only on where a word is in the model.
    """
    num_words = shape.row_bytes // WORD_BYTES
    words = np.arange(shape.block_size * num_words, dtype=np.uint64)
    planes = [
        (part << _PART_SHIFT) + (head << _HEAD_SHIFT)
        for part in range(shape.num_parts)
        for head in shape.heads
    ]
    one_layer = np.array(planes, np.uint64)[:, None] + words
    return [
        _mixed(one_layer + np.uint64((layer + 1) << _LAYER_SHIFT)).reshape(
            shape.num_planes, shape.block_size, num_words
        )
        for layer in range(shape.num_all_layers)
    ]


def _mixed(places: NDArray[np.uint64]) -> Words:
    """Return a word for each place; different places have different words."""
    golden, first, second = map(np.uint64, _MIX)
    mixed = places * golden
    mixed = (mixed ^ (mixed >> np.uint64(30))) * first
    mixed = (mixed ^ (mixed >> np.uint64(27))) * second
    mixed ^= mixed >> np.uint64(31)
    return mixed.view(np.int64)


def count_wrong_bytes(difference: Words) -> int:
    """Return how many bytes of a difference (xor) are not zero."""
    return int(np.count_nonzero(difference.view(np.uint8)))
