"""Real tensors: blocks in Paddle's memory, moved by one worker a rank, on the wall clock."""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from kvsim.backends.faults import plan_faults
from kvsim.backends.paddle.backend import TensorBackend, WallClock
from kvsim.backends.paddle.content import ContentSeeds
from kvsim.backends.paddle.copier import HostCopier
from kvsim.backends.paddle.cuda import CudaCopier
from kvsim.backends.paddle.memory import RankMemory
from kvsim.backends.paddle.plans import ForwardPlanner, step_ends
from kvsim.backends.paddle.pool import KVPool, check_memory
from kvsim.backends.paddle.shape import find_shape
from kvsim.backends.paddle.threads import RankThread
from kvsim.backends.setup import ForwardTime, OpenBackend
from kvsim.core.ops import Place
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.paddle.copier import Copier
    from kvsim.backends.paddle.orders import Acknowledgement
    from kvsim.backends.paddle.shape import KVShape
    from kvsim.backends.setup import BackendSetup
    from kvsim.core.ops import Forward

__all__ = ["TensorBackend", "find_copier", "open_backend"]

GPU = Place(instance=0, tier=0)
HOST = Place(instance=0, tier=1)
STORE = Place(instance=0, tier=2)
"""Beyond the host's memory. Its blocks are in host memory all the same, in a pool of their own."""

_TIERS = (GPU, HOST, STORE)


def find_copier(device: str) -> Copier:
    """Return a copier for pools on "cpu" or "gpu:N", for one rank."""
    if device == "cpu":
        return HostCopier()
    return CudaCopier(int(device.partition(":")[2]))


def open_backend(
    setup: BackendSetup, *, new_copier: Callable[[str], Copier] = find_copier
) -> OpenBackend:
    """Make the pools, start the ranks and return the backend.

    Parameters
    ----------
    setup
        What the run is about.
    new_copier
        Returns the copier of one rank for the device of the GPU tier.

    Raises
    ------
    ConfigError
        If Paddle or the device is not there, a tier is one too many, or memory does not suffice.
    UnknownNameError
        If the shape is unknown.
    """
    if len(setup.tier_blocks) > len(_TIERS):
        raise ConfigError(f"there are {len(_TIERS)} tiers of memory, not {len(setup.tier_blocks)}")
    shape = find_shape(setup.shape).of_rank(setup.num_ranks)
    memories = _memories(setup, shape, new_copier)
    clock = WallClock()  # it starts when all is ready
    acknowledgements: SimpleQueue[Acknowledgement] = SimpleQueue()
    backend = TensorBackend(
        [
            RankThread(rank, memory, clock=clock, acknowledgements=acknowledgements)
            for rank, memory in enumerate(memories)
        ],
        acknowledgements,
        clock=clock,
        planner=ForwardPlanner(
            setup.requests,
            ContentSeeds(setup.requests),
            block_size=setup.block_size,
            slots_per_block=shape.block_size,
            step_ends=_step_ends(setup),
        ),
        places=frozenset(_sizes(setup)),
        faults=plan_faults(setup.faults, seed=setup.seed, num_ranks=setup.num_ranks),
        record_layers=setup.record_layers,
    )
    return OpenBackend(
        backend=backend,
        rank_block_bytes=shape.block_bytes,
        tensors=backend.figures,
        notes=backend.notes,
    )


def _sizes(setup: BackendSetup) -> dict[Place, int]:
    """Return the blocks of each tier that has any."""
    sizes = zip(_TIERS, setup.tier_blocks, strict=False)
    return {place: num_blocks for place, num_blocks in sizes if num_blocks}


def _memories(
    setup: BackendSetup, shape: KVShape, new_copier: Callable[[str], Copier]
) -> list[RankMemory]:
    """Make the pools of every rank."""
    sizes, devices = _sizes(setup), {GPU: setup.device, HOST: "cpu", STORE: "cpu"}
    num_on_host = sum(num for place, num in sizes.items() if devices[place] == "cpu")
    check_memory(num_on_host * shape.block_bytes * setup.num_ranks)
    return [
        RankMemory(
            rank=rank,
            shape=shape,
            gpu=GPU,
            pools={
                place: KVPool(shape, num_blocks, device=devices[place])
                for place, num_blocks in sizes.items()
            },
            copier=new_copier(setup.device),
        )
        for rank in range(setup.num_ranks)
    ]


def _step_ends(setup: BackendSetup) -> Callable[[Forward], tuple[int, ...]]:
    if setup.forward is ForwardTime.NONE:
        return lambda forward: (0,) * forward.num_steps
    return partial(step_ends, cost=setup.cost, time_scale=setup.time_scale)
