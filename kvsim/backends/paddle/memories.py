"""From the settings of a run to the memory of each rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kvsim.backends.paddle.attention import Attention
from kvsim.backends.paddle.layout import Layout
from kvsim.backends.paddle.memory import RankMemory
from kvsim.backends.paddle.pool import KVPool, PinnedPool, check_memory
from kvsim.backends.paddle.shape import DTYPES, OF_MODEL, find_shape, shape_of_model
from kvsim.backends.setup import ForwardTime
from kvsim.core.ops import Place
from kvsim.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.backends.paddle.copier import Copier
    from kvsim.backends.paddle.memory import Memory
    from kvsim.backends.paddle.shape import KVShape
    from kvsim.backends.setup import BackendSetup

CPU: Final = "cpu"
GPU: Final = Place(instance=0, tier=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What memory every rank has: plain values, so that a rank may be another process.

    Parameters
    ----------
    shape
        Of a block, all heads.
    tier_blocks
        Blocks of each tier, nearest first; a tier of 0 blocks has no memory.
    device
        Of the nearest tier; the others are memory of the host.
    has_attention
        Whether Forwards attend to what they read.
    """

    shape: KVShape
    layout: Layout
    num_ranks: int
    tier_blocks: tuple[int, ...]
    device: str = CPU
    has_attention: bool = False

    @property
    def rank_block_bytes(self) -> int:
        """Bytes of a block on each rank."""
        return self.shape.of_rank(0, self.num_ranks).block_bytes

    @property
    def sizes(self) -> Mapping[Place, int]:
        """Blocks of each place that has any."""
        return {
            Place(instance=0, tier=tier): num_blocks
            for tier, num_blocks in enumerate(self.tier_blocks)
            if num_blocks
        }

    def device_of(self, place: Place) -> str:
        """Return where the memory of a place is."""
        return self.device if place.tier == GPU.tier else CPU

    def host_bytes(self) -> int:
        """Return the bytes of host memory of all ranks together."""
        shape = self.shape.of_rank(0, self.num_ranks)
        pools = [
            shape.pool_bytes(num_blocks)
            for place, num_blocks in self.sizes.items()
            if self.device_of(place) == CPU
        ]
        return sum(pools) * self.num_ranks


def plan_memory(setup: BackendSetup) -> MemoryPlan:
    """Return the memory that a run needs, having looked whether the host has it.

    Raises
    ------
    ConfigError
        If the memory does not suffice, there is no type for the KV, or the sizes do not fit.
    UnknownNameError
        If the shape or the layout is unknown.
    """
    plan = MemoryPlan(
        shape=shape_of_setup(setup),
        layout=find_layout(setup.layout),
        num_ranks=setup.num_ranks,
        tier_blocks=setup.tier_blocks,
        device=setup.device,
        has_attention=setup.forward is ForwardTime.ATTENTION,
    )
    check_memory(plan.host_bytes())
    return plan


def make_memory(plan: MemoryPlan, rank: int, copier: Copier) -> RankMemory:
    """Make the pools of one rank.

    Raises
    ------
    ConfigError
        If Paddle or the device is not there.
    """
    shape = plan.shape.of_rank(rank, plan.num_ranks)
    nearest = KVPool(shape, plan.sizes[GPU], device=plan.device, layout=plan.layout)
    pools: dict[Place, Memory] = {GPU: nearest}
    for place, num_blocks in plan.sizes.items():
        if place != GPU:
            pools[place] = make_lower_pool(
                shape, num_blocks, device=plan.device, layout=plan.layout
            )
    return RankMemory(
        rank=rank,
        shape=shape,
        gpu=GPU,
        pools=pools,
        copier=copier,
        layout=plan.layout,
        attention=Attention(nearest) if plan.has_attention else None,
    )


def make_lower_pool(shape: KVShape, num_blocks: int, *, device: str, layout: Layout) -> Memory:
    """Make the pool of a lower tier of one rank, in memory of the host.

    If the nearest tier is on a GPU, `device`, it is pinned, so that copies need no detour.

    Raises
    ------
    ConfigError
        If Paddle is not there, or the host refuses to pin so much.
    """
    if device == CPU:
        return KVPool(shape, num_blocks, layout=layout)
    return PinnedPool(shape, num_blocks, device=device)


def find_layout(name: str) -> Layout:
    """Return the layout with this name.

    Raises
    ------
    UnknownNameError
        If there is none; the message lists the names.
    """
    try:
        return Layout(name)
    except ValueError as error:
        raise UnknownNameError("layout", name, [each.value for each in Layout]) from error


def shape_of_setup(setup: BackendSetup) -> KVShape:
    """Return the shape of a block, all heads, with the type and the extra layers of a run.

    Raises
    ------
    ConfigError
        If there is no type for the KV, the sizes do not fit, or a model is missing.
    UnknownNameError
        If the shape is unknown.
    """
    dtype = DTYPES.get(setup.kv_dtype)
    if dtype is None:
        raise ConfigError(
            f"tensors have no type for kv_dtype {setup.kv_dtype!r}: take one of"
            f" {', '.join(name for name in DTYPES if not name.isdigit())}"
        )
    if setup.shape != OF_MODEL:
        shape = find_shape(setup.shape)
    elif setup.model is None:
        raise ConfigError(f"shape {OF_MODEL!r} is that of a model, and none was given")
    else:
        shape = shape_of_model(setup.model, block_size=setup.block_size)
    return replace(
        shape,
        dtype=dtype,
        num_extra_layers=setup.extra_layers,
        expand_ratio=setup.expand_ratio,
    )
