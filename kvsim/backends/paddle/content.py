"""What a block must hold: a known function of its key, the layer, the rank and the place in it.

A word is the key's 64-bit digest, xored with a constant of (rank, layer, place). So a block of
another key, another layer or rank, or with tokens or heads mixed up differs in nearly every byte.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.backends.paddle.shape import WORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.backends.paddle.copier import Words
    from kvsim.backends.paddle.shape import KVShape
    from kvsim.types import BlockKey, Request, RequestId

_MIX: Final = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 14."""

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


def layer_patterns(shape: KVShape, rank: int) -> list[Words]:
    """Return for each layer the constants of its words, `(2 * kv_heads, block_size, words)`."""
    num_words = shape.layer_bytes // WORD_BYTES
    places = np.arange(shape.num_layers * num_words, dtype=np.uint64)
    places += np.uint64((rank + 1) << 40)  # no pool has 2**40 words a block
    golden, first, second = map(np.uint64, _MIX)
    mixed = places * golden
    mixed = (mixed ^ (mixed >> np.uint64(30))) * first
    mixed = (mixed ^ (mixed >> np.uint64(27))) * second
    mixed ^= mixed >> np.uint64(31)
    words = mixed.view(np.int64).reshape(
        shape.num_layers, shape.num_planes, shape.block_size, shape.row_bytes // WORD_BYTES
    )
    return list(words)


def count_wrong_bytes(difference: Words) -> int:
    """Return how many bytes of a difference (xor) are not zero."""
    return int(np.count_nonzero(difference.view(np.uint8)))
