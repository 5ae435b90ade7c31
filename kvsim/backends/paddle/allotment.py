"""What each rank owns, as plain values: a worker in another process is told the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kvsim.backends.paddle.copier import HostCopier
from kvsim.backends.paddle.cuda import CudaCopier
from kvsim.backends.paddle.memory import RankMemory
from kvsim.backends.paddle.pool import KVPool, check_memory
from kvsim.backends.paddle.shape import KVShape, find_shape
from kvsim.core.ops import Place
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.paddle.copier import Copier
    from kvsim.backends.setup import BackendSetup

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
        Its name. The rank is part of the content of its blocks.
    shape
        Of a block on this rank.
    pools
        Of its tiers; tier 0 is where Forwards read and write.
    device
        Of tier 0.
    """

    worker: WorkerId
    shape: KVShape
    pools: tuple[PoolPlan, ...]
    device: str

    @property
    def sizes(self) -> dict[Place, int]:
        """The blocks of each place."""
        instance = self.worker.instance
        return {Place(instance=instance, tier=tier): num for tier, num, _ in self.pools}


def plan_ranks(setup: BackendSetup) -> list[RankPlan]:
    """Return what each rank of a backend owns.

    Raises
    ------
    ConfigError
        If there is a third tier, or the memory of the host does not suffice.
    UnknownNameError
        If the shape is unknown.
    """
    if len(setup.tier_blocks) > len((GPU, HOST)):
        raise ConfigError(f"there are two tiers of memory, not {len(setup.tier_blocks)}")
    shape = find_shape(setup.shape).of_rank(setup.num_ranks)
    pools = tuple(
        PoolPlan(tier, num_blocks, setup.device if tier == GPU.tier else "cpu")
        for tier, num_blocks in enumerate(setup.tier_blocks)
        if num_blocks
    )
    num_on_host = sum(pool.num_blocks for pool in pools if pool.device == "cpu")
    check_memory(num_on_host * shape.block_bytes * setup.num_ranks)
    return [
        RankPlan(worker=WorkerId(0, rank), shape=shape, pools=pools, device=setup.device)
        for rank in range(setup.num_ranks)
    ]


def find_copier(device: str) -> Copier:
    """Return a copier for pools on "cpu" or "gpu:N", for one rank."""
    if device == "cpu":
        return HostCopier()
    return CudaCopier(int(device.partition(":")[2]))


def make_memory(plan: RankPlan, new_copier: Callable[[str], Copier] = find_copier) -> RankMemory:
    """Make the pools of a rank, in the process that will use them.

    Raises
    ------
    ConfigError
        If Paddle or the device is not there.
    MemoryError
        If the host does not give the memory.
    """
    places = zip(plan.sizes, plan.pools, strict=True)
    return RankMemory(
        rank=plan.worker.rank,
        shape=plan.shape,
        gpu=Place(instance=plan.worker.instance, tier=GPU.tier),
        pools={
            place: KVPool(plan.shape, pool.num_blocks, device=pool.device) for place, pool in places
        },
        copier=new_copier(plan.device),
    )
