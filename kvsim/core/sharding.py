"""Which rank sends which heads to which: one pure function for every backend.

A block of KV lies over the ranks of its instance by heads. Instances of different size hold the
same block cut differently, so a rank of one may owe parts of it to several ranks of the other.
The simulator adds up the bytes of the slices, a worker copies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvsim.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """How the KV of one model lies over the ranks of one instance.

    With as many ranks as heads or fewer, each rank has `num_kv_heads / num_ranks` heads in a row.
    With more, each head is on `num_ranks / num_kv_heads` ranks in a row (as engines replicate
    heads of grouped-query attention). A latent (MLA) has no heads and is whole on every rank.

    Parameters
    ----------
    num_ranks
        Tensor-parallel size of the instance.
    num_kv_heads
        Heads of the model, all ranks together.
    num_layers
        Layers of the model.
    num_extra_layers
        Layers behind those, of a head that drafts tokens for speculative decoding.
    is_latent
        Whether a token's KV is one latent; `num_kv_heads` must be 1 then.

    Raises
    ------
    ConfigError
        If the heads cannot be dealt out evenly.
    """

    num_ranks: int
    num_kv_heads: int
    num_layers: int
    num_extra_layers: int = 0
    is_latent: bool = False

    def __post_init__(self) -> None:
        for name, least in (
            ("num_ranks", 1),
            ("num_kv_heads", 1),
            ("num_layers", 1),
            ("num_extra_layers", 0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} must be an integer of at least {least}, not {value!r}")
        ranks, heads = self.num_ranks, self.num_kv_heads
        if self.is_latent:
            if heads != 1:
                raise ConfigError(f"num_kv_heads of a latent must be 1, not {heads}")
        elif heads % ranks and ranks % heads:
            raise ConfigError(
                f"{heads} KV heads cannot be dealt out to {ranks} ranks: one number must be a"
                " multiple of the other"
            )

    @property
    def heads_per_rank(self) -> int:
        """Heads that each rank holds; 1 where heads are replicated, and of a latent."""
        return max(1, self.num_kv_heads // self.num_ranks)

    @property
    def num_replicas(self) -> int:
        """How many ranks hold the same heads."""
        if self.is_latent:
            return self.num_ranks
        return max(1, self.num_ranks // self.num_kv_heads)

    @property
    def num_all_layers(self) -> int:
        """Layers of the model and of its draft head."""
        return self.num_layers + self.num_extra_layers

    def first_head(self, rank: int) -> int:
        """Return the number, in the model, of the first head that `rank` holds."""
        return rank // self.num_replicas * self.heads_per_rank


class ShardSlice(NamedTuple):
    """Heads that one rank sends to another, of every block and every layer.

    `source_head` and `target_head` count from the first head of their rank.
    """

    source_rank: int
    target_rank: int
    source_head: int
    target_head: int
    num_heads: int


def shard(source: KVLayout, target: KVLayout) -> tuple[ShardSlice, ...]:
    """Return what each source rank sends to each target rank, by (source rank, target rank).

    Each target rank gets each of its heads from exactly one source rank. Where several have it,
    neighbouring targets take neighbouring sources, so that the load is spread. A source rank may
    have nothing to send.

    Raises
    ------
    ConfigError
        If the two do not hold the KV of the same model, or the target has layers that the source
        does not compute.
    """
    num_shared_layers(source, target)
    slices: list[ShardSlice] = []
    for target_rank in range(target.num_ranks):
        first = target.first_head(target_rank)
        end = first + target.heads_per_rank
        # Which of several sources of the same heads: as far into its group as the target is.
        replica = target_rank % source.num_replicas
        head = first
        while head < end:
            group = head // source.heads_per_rank
            source_rank = group * source.num_replicas + replica
            group_end = min(end, (group + 1) * source.heads_per_rank)
            slices.append(
                ShardSlice(
                    source_rank,
                    target_rank,
                    head - group * source.heads_per_rank,
                    head - first,
                    group_end - head,
                )
            )
            head = group_end
    return tuple(sorted(slices))


def num_shared_layers(source: KVLayout, target: KVLayout) -> int:
    """Return how many layers are sent: those of the model, and what both have of a draft head.

    Raises
    ------
    ConfigError
        As `shard`.
    """
    ours = (source.num_kv_heads, source.num_layers, source.is_latent)
    theirs = (target.num_kv_heads, target.num_layers, target.is_latent)
    if ours != theirs:
        raise ConfigError(
            "prefill and decode must serve one model: (KV heads, layers, latent) are"
            f" {ours} and {theirs}"
        )
    if target.num_extra_layers > source.num_extra_layers:
        raise ConfigError(
            f"decode has {target.num_extra_layers} extra layers for speculative decoding, prefill"
            f" computes {source.num_extra_layers}: nobody would write the others"
        )
    return target.num_all_layers
