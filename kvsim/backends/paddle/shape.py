"""The shape of a block in memory: block-major, so that a layer's piece of it is contiguous."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kvsim.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

ITEM_BYTES: Final[Mapping[str, int]] = MappingProxyType({"bfloat16": 2, "float16": 2, "uint8": 1})
"""Paddle's name of the type of a KV value -> its bytes."""

WORD_BYTES: Final = 8
"""Copies move whole words: several times as fast as bytes, and no kernel of a type is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """What one rank keeps of a block: `(layers, 2, kv_heads, block_size, head_dim)`, K before V.

    Parameters
    ----------
    block_size
        Tokens of storage in a block. A block is a unit of the cache: whatever number of tokens it
        stands for in a trace, it has this much memory.
    dtype
        A name of `ITEM_BYTES`.

    Raises
    ------
    ConfigError
        If a size is not positive, or the values of a head are no whole number of words.
    UnknownNameError
        If there is no such dtype.
    """

    name: str
    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "block_size", "head_dim"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.dtype not in ITEM_BYTES:
            raise UnknownNameError("dtype", self.dtype, ITEM_BYTES)
        if self.row_bytes % WORD_BYTES:
            raise ConfigError(
                f"head_dim {self.head_dim} of {self.dtype} is {self.row_bytes} bytes;"
                f" it must be a multiple of {WORD_BYTES}"
            )

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's K or V in one head: the smallest piece that is ever written."""
        return self.head_dim * ITEM_BYTES[self.dtype]

    @property
    def num_planes(self) -> int:
        """K and V of every head, in one layer."""
        return 2 * self.num_kv_heads

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer of a block."""
        return self.num_planes * self.block_size * self.row_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.num_layers * self.layer_bytes

    def of_rank(self, num_ranks: int) -> KVShape:
        """Return the share of one rank of `num_ranks`, that split the heads among them.

        With more ranks than heads each head is on several ranks.
        """
        return replace(self, num_kv_heads=-(-self.num_kv_heads // num_ranks))

    def dimensions(self, num_blocks: int) -> tuple[int, ...]:
        """Return the dimensions of a pool: (blocks, layers, 2, kv_heads, block_size, head_dim)."""
        return (
            num_blocks,
            self.num_layers,
            2,
            self.num_kv_heads,
            self.block_size,
            self.head_dim,
        )


SHAPES: Final[Mapping[str, KVShape]] = MappingProxyType(
    {
        shape.name: shape
        # 8 KiB a block: small enough for the cache of any trace in the memory of a laptop, large
        # enough to have layers, heads and tokens that could be mixed up.
        for shape in (
            KVShape(name="tiny", num_layers=4, num_kv_heads=2, block_size=16, head_dim=16),
        )
    }
)


def find_shape(name: str) -> KVShape:
    """Return the shape with this name.

    Raises
    ------
    UnknownNameError
        If there is none; the message lists the names.
    """
    if name not in SHAPES:
        raise UnknownNameError("shape", name, SHAPES)
    return SHAPES[name]
