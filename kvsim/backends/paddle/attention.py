"""A real attention step: what a request's block table holds is gathered, and attended to.

What blocks hold are bit patterns, not the output of a model, so each value is taken as an integer
and scaled to between -1 and 1, as an 8-bit cache is. The last token attends to all before it and to
itself: softmax(q K^T / sqrt(d)) V for every head kept on the rank. An MLA latent is K and V at
once. The result is compared with that of the same arithmetic on what the blocks must hold, made
from their keys, without the cache: bit for bit, since it is the same arithmetic.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvsim.backends.paddle.content import layer_patterns
from kvsim.backends.paddle.runtime import load_paddle
from kvsim.backends.paddle.shape import ITEM_BYTES, WORD_BYTES

if TYPE_CHECKING:
    from kvsim.backends.paddle.copier import Rows, Words
    from kvsim.backends.paddle.layout import PoolLayout
    from kvsim.backends.paddle.orders import Attends
    from kvsim.backends.paddle.pool import KVPool

_SCALES: Final = {1: ("uint8", 127.5, 127.5), 2: ("int16", 32768.0, 0.0)}
"""Bytes of a value -> the type of its integers, what they are divided by, and their middle."""

_MASKED: Final = -1e30
"""The score of a slot that holds no token: its weight is exactly 0 in single precision."""


class Attention:
    """Attends to blocks of the nearest tier of one rank, with Paddle, where the pool is.

    Parameters
    ----------
    pool
        The nearest tier.
    """

    def __init__(self, pool: KVPool) -> None:
        self._paddle = load_paddle()
        self._layout: PoolLayout = pool.layout
        self._shape = pool.layout.shape
        self._place = pool.words().place
        # A slice of the arena as words. Paddle gives a slice that is viewed as another type the
        # wrong address, so it is viewed first and cut afterwards.
        words = pool.words()
        self._areas = [
            [
                words[
                    each.offset_bytes // WORD_BYTES : (each.offset_bytes + each.area_bytes)
                    // WORD_BYTES
                ].reshape([-1, each.row_bytes // WORD_BYTES])
                for each in self._layout.of_layer(layer)
            ]
            for layer in range(self._shape.num_all_layers)
        ]
        self._patterns = layer_patterns(self._shape)

    def count_wrong(self, attends: Attends, layer: int) -> int:
        """Attend to a layer of each table; return how many bytes of the results are wrong."""
        num_wrong = 0
        for first, end in zip(attends.starts[:-1], attends.starts[1:], strict=True):
            part = slice(int(first), int(end))
            ids, seeds = attends.block_ids[part], attends.seeds[part]
            filled = attends.filled[part]
            found = self.attend(self._gathered(ids, layer), seeds, filled, layer)
            expected = self.attend(self._made(seeds, layer), seeds, filled, layer)
            num_wrong += int(np.count_nonzero(found.view(np.uint8) != expected.view(np.uint8)))
        return num_wrong

    def attend(self, words: Any, seeds: Words, filled: Rows, layer: int) -> np.ndarray:  # noqa: ANN401
        """Return the result of the last token, `(heads, head_dim)` in single precision.

        Parameters
        ----------
        words
            The blocks' K and V in this layer, `(blocks, words)` as the block-major memory has them.
        seeds, filled
            The content of each block, and how many of its first slots hold a token.
        """
        paddle, shape = self._paddle, self._shape
        values = self._values(words).reshape(
            [len(seeds), shape.num_parts, shape.num_kv_heads, shape.block_size, shape.head_dim]
        )
        # (parts, heads, blocks * slots, head_dim)
        values = values.transpose([1, 2, 0, 3, 4]).reshape(
            [shape.num_parts, shape.num_kv_heads, -1, shape.head_dim]
        )
        keys, latest = values[0], values[-1]
        query = self._query(int(seeds[-1]), int(filled[-1]) - 1, layer)
        scores = paddle.matmul(query, keys, transpose_y=True) / sqrt(shape.head_dim)
        holds = np.arange(shape.block_size) < filled[:, None]
        mask = np.where(holds.reshape(-1), 0, _MASKED).astype(np.float32)
        weights = paddle.nn.functional.softmax(
            scores + paddle.to_tensor(mask, place=self._place), axis=-1
        )
        out: np.ndarray = paddle.matmul(weights, latest)[:, 0, :].numpy()
        return out

    def _query(self, seed: int, slot: int, layer: int) -> Any:  # noqa: ANN401
        """Return the query of a token, `(heads, 1, head_dim)`: what its K must be, not what is."""
        heads = self._shape.num_kv_heads
        words = np.ascontiguousarray(self._patterns[layer][:heads, slot]) ^ np.int64(seed)
        return self._values(self._paddle.to_tensor(words, place=self._place)).reshape(
            [heads, 1, self._shape.head_dim]
        )

    def _gathered(self, block_ids: Rows, layer: int) -> Any:  # noqa: ANN401
        """Return what the cache holds of a layer of blocks, `(blocks, words)`."""
        parts = [
            self._paddle.index_select(
                area, self._paddle.to_tensor(pieces.rows(block_ids), place=self._place), 0
            )
            for area, pieces in zip(self._areas[layer], self._layout.of_layer(layer), strict=True)
        ]
        return parts[0] if len(parts) == 1 else self._paddle.concat(parts, axis=1)

    def _made(self, seeds: Words, layer: int) -> Any:  # noqa: ANN401
        """Return what a layer of blocks must hold, `(blocks, words)`."""
        words = self._patterns[layer].reshape(-1) ^ seeds[:, None]
        return self._paddle.to_tensor(words, place=self._place)

    def _values(self, words: Any) -> Any:  # noqa: ANN401
        """Return words as values between -1 and 1, in single precision."""
        dtype, scale, middle = _SCALES[ITEM_BYTES[self._shape.dtype]]
        return (words.view(dtype).astype("float32") - middle) / scale
