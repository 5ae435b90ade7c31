"""The sizes of what a block holds, in all, and on one rank of several."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kvsim.cost import KvKind
from kvsim.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.cost import ModelShape

ITEM_BYTES: Final[Mapping[str, int]] = MappingProxyType({"bfloat16": 2, "float16": 2, "uint8": 1})
"""Paddle's name of the type of a KV value -> its bytes. 8-bit floats are kept as uint8: copies ask
for no arithmetic, and not every build has kernels for them."""

DTYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bf16": "bfloat16",
        "16": "bfloat16",
        "fp16": "float16",
        "fp8": "uint8",
        "int8": "uint8",
        "8": "uint8",
    }
)
"""The setting `kv_dtype` -> the type that its values are kept in."""

WORD_BYTES: Final = 8
"""Copies move whole words: several times as fast as bytes, and no kernel of a type is missing."""

_MOST_EXPANDED: Final = 64
"""No draft model needs as much; a ratio above it is a number of blocks, given by mistake."""

OF_MODEL: Final = "model"
"""The name of the shape that is the KV cache of the model itself, byte for byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """What is kept of a block: in each layer K and V of each head, or a latent that is both.

    The heads may be a share of the model's, see `of_rank`. Layers beyond `num_layers` are those of
    a draft model for speculative decoding. They are as large as the others, and belong to the same
    blocks, but may have more blocks.

    Parameters
    ----------
    num_layers, num_extra_layers
        Layers of the model, and of its draft.
    num_kv_heads, first_kv_head, total_kv_heads
        Heads kept here, the number of the first of them among all, and all of them (None: those
        kept here are all). An MLA latent is one head.
    block_size
        Tokens of storage in a block. A block is a unit of the cache: whatever number of tokens it
        stands for in a trace, it has this much memory.
    head_dim
        Values of a token in a head; for MLA those of the latent and of the rotary key.
    dtype
        A name of `ITEM_BYTES`.
    expand_ratio
        Blocks of the extra layers for each block of the others, at least 1.

    Raises
    ------
    ConfigError
        If a size is out of range, the values of a head are no whole number of words, or an MLA
        latent has more than one head.
    UnknownNameError
        If there is no such dtype.
    """

    name: str
    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: str = "bfloat16"
    kv_kind: KvKind = KvKind.GQA
    num_extra_layers: int = 0
    expand_ratio: float = 1.0
    first_kv_head: int = 0
    total_kv_heads: int | None = None

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
        if self.kv_kind is KvKind.MLA and self.num_kv_heads != 1:
            raise ConfigError(f"an MLA latent is one head, not {self.num_kv_heads}")
        if self.num_extra_layers < 0:
            raise ConfigError(f"extra_layers must be at least 0, not {self.num_extra_layers}")
        if not 1 <= self.expand_ratio <= _MOST_EXPANDED:
            raise ConfigError(
                f"expand_ratio must be from 1 (every block needs its extra layers) to"
                f" {_MOST_EXPANDED}, not {self.expand_ratio!r}"
            )
        if not 0 <= self.first_kv_head <= self.num_all_heads - self.num_kv_heads:
            raise ConfigError(
                f"heads {self.first_kv_head} to {self.first_kv_head + self.num_kv_heads - 1} are"
                f" not among {self.num_all_heads}"
            )

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's K or V in one head: the smallest piece that is ever written."""
        return self.head_dim * ITEM_BYTES[self.dtype]

    @property
    def num_parts(self) -> int:
        """K and V; of an MLA latent, one."""
        return 1 if self.kv_kind is KvKind.MLA else 2

    @property
    def num_planes(self) -> int:
        """K and V of every head kept here, in one layer."""
        return self.num_parts * self.num_kv_heads

    @property
    def num_all_layers(self) -> int:
        """Layers of a block, the extra ones among them."""
        return self.num_layers + self.num_extra_layers

    @property
    def num_all_heads(self) -> int:
        """Heads of the model, here or elsewhere."""
        return self.num_kv_heads if self.total_kv_heads is None else self.total_kv_heads

    @property
    def heads(self) -> range:
        """The heads kept here, by their numbers among all."""
        return range(self.first_kv_head, self.first_kv_head + self.num_kv_heads)

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer of a block."""
        return self.num_planes * self.block_size * self.row_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, K and V of all its layers: what a copy of one block moves."""
        return self.num_all_layers * self.layer_bytes

    def num_extra_blocks(self, num_blocks: int) -> int:
        """Return the blocks of the extra layers beside `num_blocks` blocks of the others."""
        return int(num_blocks * self.expand_ratio)

    def pool_bytes(self, num_blocks: int) -> int:
        """Return the bytes of a pool. Only with an `expand_ratio` of 1 is it blocks times bytes."""
        extra = self.num_extra_layers * self.num_extra_blocks(num_blocks)
        return (self.num_layers * num_blocks + extra) * self.layer_bytes

    def of_rank(self, rank: int, num_ranks: int) -> KVShape:
        """Return the share of one rank of `num_ranks`, that split the heads among them.

        Every rank has as many heads. Where they do not come out even, neighbours have some in
        common; with more ranks than heads each head is on several ranks. An MLA latent is whole on
        every rank.
        """
        heads = heads_of_rank(self.num_kv_heads, rank, num_ranks)
        return replace(
            self,
            num_kv_heads=len(heads),
            first_kv_head=self.first_kv_head + heads[0],
            total_kv_heads=self.num_all_heads,
        )


def heads_of_rank(num_kv_heads: int, rank: int, num_ranks: int) -> range:
    """Return the heads that a rank keeps, by their numbers among all `num_kv_heads`.

    Every head is on some rank, and every rank has the same number of them.
    """
    first = rank * num_kv_heads // num_ranks
    return range(first, first + -(-num_kv_heads // num_ranks))


SHAPES: Final[Mapping[str, KVShape]] = MappingProxyType(
    {
        shape.name: shape
        # 8 KiB a block: small enough for the cache of any trace in the memory of a laptop, large
        # enough to have layers, heads and tokens that could be mixed up.
        for shape in (
            KVShape(name="tiny", num_layers=4, num_kv_heads=2, block_size=16, head_dim=16),
            # 6 KiB: 32 values of a latent and 16 of a rotary key.
            KVShape(
                name="tiny-mla",
                num_layers=4,
                num_kv_heads=1,
                block_size=16,
                head_dim=48,
                kv_kind=KvKind.MLA,
            ),
            # 1 MiB, of 128 KiB a layer: what copies are measured with.
            KVShape(name="small", num_layers=8, num_kv_heads=4, block_size=64, head_dim=128),
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
        raise UnknownNameError("shape", name, [*SHAPES, OF_MODEL])
    return SHAPES[name]


def shape_of_model(model: ModelShape, *, block_size: int) -> KVShape:
    """Return the KV cache of a model, whole, in blocks of so many tokens."""
    is_mla = model.kv_kind is KvKind.MLA
    return KVShape(
        name=model.name,
        num_layers=model.num_layers,
        num_kv_heads=1 if is_mla else model.num_kv_heads,
        block_size=block_size,
        head_dim=model.latent_dim + model.rope_dim if is_mla else model.head_dim,
        kv_kind=model.kv_kind,
    )
