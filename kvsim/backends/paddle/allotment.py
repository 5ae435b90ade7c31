"""What each rank owns, as plain values: a worker in another process is told the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kvsim.backends.paddle.attention import Attention
from kvsim.backends.paddle.copier import HostCopier
from kvsim.backends.paddle.cuda import CudaCopier
from kvsim.backends.paddle.cudart import Cuda
from kvsim.backends.paddle.layout import Layout
from kvsim.backends.paddle.memory import RankMemory
from kvsim.backends.paddle.pool import KVPool, PinnedPool, check_memory
from kvsim.backends.paddle.runtime import device_index
from kvsim.backends.paddle.shape import DTYPES, OF_MODEL, KVShape, find_shape, shape_of_model
from kvsim.backends.setup import ForwardTime
from kvsim.core.ops import Place
from kvsim.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.paddle.copier import Copier
    from kvsim.backends.paddle.memory import Memory
    from kvsim.backends.setup import BackendSetup

CPU: Final = "cpu"
GPU: Final = Place(instance=0, tier=0)
HOST: Final = Place(instance=0, tier=1)


class WorkerId(NamedTuple):
    """Names a worker of a run: a rank of an instance."""

    instance: int
    rank: int

    def __str__(self) -> str:
        """Return the name for people."""
        return f"rank {self.rank} of instance {self.instance}"


class PoolPlan(NamedTuple):
    """A pool: the tier of the worker's instance that it is, its blocks, and where it is."""

    tier: int
    num_blocks: int
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """What one rank owns.

    Parameters
    ----------
    worker
        Its name.
    shape
        Of a block on this rank; its heads are part of the content of its blocks.
    pools
        Of its tiers; tier 0 is where Forwards read and write.
    device
        Of tier 0.
    layout
        The order of the memory, in all tiers.
    has_attention
        Whether Forwards attend to what they read.
    """

    worker: WorkerId
    shape: KVShape
    pools: tuple[PoolPlan, ...]
    device: str
    layout: Layout = Layout.BLOCK_MAJOR
    has_attention: bool = False

    @property
    def host_bytes(self) -> int:
        """Bytes of the host's memory."""
        sizes = [pool.num_blocks for pool in self.pools if pool.device == CPU]
        return sum(map(self.shape.pool_bytes, sizes))

    @property
    def sizes(self) -> dict[Place, int]:
        """The blocks of each place."""
        instance = self.worker.instance
        return {Place(instance=instance, tier=tier): num for tier, num, _ in self.pools}


def plan_ranks(setup: BackendSetup) -> list[RankPlan]:
    """Return what each rank of a backend owns, having looked whether the host has the memory.

    Raises
    ------
    ConfigError
        If the memory of the host does not suffice, there is no type for the KV, or the sizes do
        not fit.
    UnknownNameError
        If the shape or the layout is unknown.
    """
    whole, layout = shape_of_setup(setup), find_layout(setup.layout)
    pools = tuple(
        PoolPlan(tier, num_blocks, setup.device if tier == GPU.tier else CPU)
        for tier, num_blocks in enumerate(setup.tier_blocks)
        if num_blocks
    )
    plans = [
        RankPlan(
            worker=WorkerId(0, rank),
            shape=whole.of_rank(rank, setup.num_ranks),
            pools=pools,
            device=setup.device,
            layout=layout,
            has_attention=setup.forward is ForwardTime.ATTENTION,
        )
        for rank in range(setup.num_ranks)
    ]
    check_memory(sum(plan.host_bytes for plan in plans))
    return plans


def find_copier(device: str) -> Copier:
    """Return a copier for pools on "cpu" or "gpu:N", for one rank."""
    if device == CPU:
        return HostCopier()
    return CudaCopier(Cuda(device_index(device)))


def make_memory(plan: RankPlan, new_copier: Callable[[str], Copier] = find_copier) -> RankMemory:
    """Make the pools of a rank, in the process that will use them.

    Raises
    ------
    ConfigError
        If Paddle or the device is not there, or the host refuses to pin so much.
    MemoryError
        If the host does not give the memory.
    """
    nearest = Place(instance=plan.worker.instance, tier=GPU.tier)
    pool = KVPool(plan.shape, plan.sizes[nearest], device=plan.device, layout=plan.layout)
    pools: dict[Place, Memory] = {nearest: pool}
    for place, num_blocks in plan.sizes.items():
        if place != nearest:
            pools[place] = make_lower_pool(
                plan.shape, num_blocks, device=plan.device, layout=plan.layout
            )
    return RankMemory(
        rank=plan.worker.rank,
        shape=plan.shape,
        gpu=nearest,
        pools=pools,
        copier=new_copier(plan.device),
        layout=plan.layout,
        attention=Attention(pool) if plan.has_attention else None,
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
