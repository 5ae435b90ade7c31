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
from kvsim.backends.paddle.cudart import Cuda
from kvsim.backends.paddle.memories import make_memory, plan_memory
from kvsim.backends.paddle.plans import ForwardPlanner, step_ends
from kvsim.backends.paddle.runtime import device_index
from kvsim.backends.paddle.threads import RankThread
from kvsim.backends.setup import ForwardTime, OpenBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.paddle.copier import Copier
    from kvsim.backends.paddle.orders import Acknowledgement
    from kvsim.backends.setup import BackendSetup
    from kvsim.core.ops import Forward

__all__ = ["TensorBackend", "find_copier", "open_backend"]


def find_copier(device: str) -> Copier:
    """Return a copier for pools on "cpu" or "gpu:N", for one rank."""
    if device == "cpu":
        return HostCopier()
    return CudaCopier(Cuda(device_index(device)))


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
        If Paddle or the device is not there, or the memory does not suffice.
    UnknownNameError
        If the shape or the layout is unknown.
    """
    plan = plan_memory(setup)
    memories = [make_memory(plan, rank, new_copier(setup.device)) for rank in range(plan.num_ranks)]
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
            slots_per_block=plan.shape.block_size,
            step_ends=_step_ends(setup),
            has_attention=plan.has_attention,
        ),
        places=frozenset(plan.sizes),
        faults=plan_faults(setup.faults, seed=setup.seed, num_ranks=setup.num_ranks),
        record_layers=setup.record_layers,
    )
    return OpenBackend(
        backend=backend,
        rank_block_bytes=plan.rank_block_bytes,
        tensors=backend.figures,
        notes=backend.notes,
    )


def _step_ends(setup: BackendSetup) -> Callable[[Forward], tuple[int, ...]]:
    if setup.forward is not ForwardTime.COST:
        return lambda forward: (0,) * forward.num_steps
    return partial(step_ends, cost=setup.cost, time_scale=setup.time_scale)
