"""Real tensors: blocks in Paddle's memory, moved by one worker a rank, on the wall clock."""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from kvsim.backends.faults import plan_faults
from kvsim.backends.paddle.allotment import find_copier, make_memory, plan_ranks
from kvsim.backends.paddle.backend import TensorBackend, WallClock
from kvsim.backends.paddle.content import ContentSeeds
from kvsim.backends.paddle.plans import ForwardPlanner, step_ends
from kvsim.backends.paddle.threads import RankThread
from kvsim.backends.setup import ForwardTime, OpenBackend, Workers
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.backends.paddle.allotment import RankPlan
    from kvsim.backends.paddle.backend import Rank
    from kvsim.backends.paddle.copier import Copier
    from kvsim.backends.paddle.crew import WorkerCrew
    from kvsim.backends.paddle.orders import Acknowledgement, Inbox
    from kvsim.backends.setup import BackendSetup
    from kvsim.core.ops import Forward

__all__ = ["TensorBackend", "find_copier", "open_backend"]


def open_backend(
    setup: BackendSetup,
    *,
    new_copier: Callable[[str], Copier] = find_copier,
    crew: WorkerCrew | None = None,
) -> OpenBackend:
    """Make the pools, start the ranks and return the backend.

    Parameters
    ----------
    setup
        What the run is about.
    new_copier
        Returns the copier of one rank for the device of the GPU tier, for threads.
    crew
        Where worker processes come from and go back to. Default: they are started, and end.

    Raises
    ------
    ConfigError
        If Paddle, msgspec or the device is not there, or the memory does not suffice.
    UnknownNameError
        If the shape or the layout is unknown.
    TransferError
        If a worker process does not start.
    """
    plans = plan_ranks(setup)
    if setup.workers is Workers.PROCESSES:
        if new_copier is not find_copier:
            raise ConfigError("a copier of your own cannot go to another process: use threads")
        return _on_processes(setup, plans, crew)
    memories = [make_memory(plan, new_copier) for plan in plans]
    clock = WallClock()  # it starts when all is ready
    acknowledgements: SimpleQueue[Acknowledgement] = SimpleQueue()
    ranks = [
        RankThread(rank, memory, clock=clock, acknowledgements=acknowledgements)
        for rank, memory in enumerate(memories)
    ]
    return _opened(setup, plans, ranks, acknowledgements, clock)


def _on_processes(
    setup: BackendSetup, plans: Sequence[RankPlan], crew: WorkerCrew | None
) -> OpenBackend:
    try:
        from kvsim.backends.paddle.crew import WorkerCrew
        from kvsim.backends.paddle.processes import OrderEncoder, RankHub, RankProcess, hire_ranks
    except ModuleNotFoundError as error:
        if error.name != "msgspec":
            raise
        raise ConfigError(
            "workers 'processes' needs msgspec, which is not installed:"
            " pip install 'kvsim[workers]'"
        ) from error
    crew = WorkerCrew() if crew is None else crew
    workers = hire_ranks(crew, plans)
    clock, encoder = WallClock(), OrderEncoder()
    ranks = [
        RankProcess(index, worker, crew, clock=clock, encoder=encoder)
        for index, worker in enumerate(workers)
    ]
    hub = RankHub(ranks, silence_s=setup.worker_timeout_ns / 10**9)
    return _opened(setup, plans, ranks, hub, clock)


def _opened(
    setup: BackendSetup,
    plans: Sequence[RankPlan],
    ranks: Sequence[Rank],
    acknowledgements: Inbox[Acknowledgement],
    clock: WallClock,
) -> OpenBackend:
    shape = plans[0].shape
    backend = TensorBackend(
        ranks,
        acknowledgements,
        clock=clock,
        planner=ForwardPlanner(
            setup.requests,
            ContentSeeds(setup.requests),
            block_size=setup.block_size,
            slots_per_block=shape.block_size,
            step_ends=_step_ends(setup),
            has_attention=plans[0].has_attention,
        ),
        places=frozenset(plans[0].sizes),
        faults=plan_faults(setup.faults, seed=setup.seed, num_ranks=setup.num_ranks),
        record_layers=setup.record_layers,
    )
    return OpenBackend(
        backend=backend,
        rank_block_bytes=shape.block_bytes,
        tensors=backend.figures,
        notes=backend.notes,
        copy_ns=backend.copy_ns,
    )


def _step_ends(setup: BackendSetup) -> Callable[[Forward], tuple[int, ...]]:
    if setup.forward is not ForwardTime.COST:
        return lambda forward: (0,) * forward.num_steps
    return partial(step_ends, cost=setup.cost, time_scale=setup.time_scale)
