"""Makes backends as the conformance suite wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.backends import open_backend, paddle
from kvsim.backends.setup import BackendSetup, Workers
from kvsim.backends.sim import SimBackend
from kvsim.config import FaultConfig, LinkConfig
from kvsim.cost import LinearCost

if TYPE_CHECKING:
    from kvsim.backends.paddle.crew import WorkerCrew
    from kvsim.core.ports import Backend
    from kvsim.testing import BackendSpec


def make_tensors(spec: BackendSpec) -> Backend:
    """Return workers on real tensors: a step takes `step_ns`, a copy what it takes."""
    return open_backend("paddle", tensor_setup(spec, Workers.THREADS)).backend


def make_on_processes(spec: BackendSpec, crew: WorkerCrew) -> Backend:
    """Return the same with workers of a crew."""
    return paddle.open_backend(tensor_setup(spec, Workers.PROCESSES), crew=crew).backend


def tensor_setup(spec: BackendSpec, workers: Workers) -> BackendSetup:
    """Return what real tensors are made from."""
    return BackendSetup(
        requests=spec.requests,
        block_size=spec.block_size,
        tier_blocks=(spec.num_gpu_blocks, spec.num_cpu_blocks),
        cost=LinearCost(step_ns=spec.step_ns, block_size=spec.block_size),
        host_link=LinkConfig(bytes_per_second=10**9, latency_ns=0, overhead_ns=0),
        num_ranks=spec.num_ranks,
        faults=spec.faults or FaultConfig(),
        seed=spec.seed,
        record_layers=True,
        workers=workers,
    )


def make_simulator(spec: BackendSpec) -> SimBackend:
    """Return a simulator: a step takes `step_ns`, a copy `copy_ns` and a little."""
    return SimBackend(
        LinearCost(step_ns=spec.step_ns, block_size=spec.block_size, num_layers=spec.num_layers),
        links=LinkConfig(bytes_per_second=10**9, latency_ns=spec.copy_ns, overhead_ns=0),
        num_ranks=spec.num_ranks,
        faults=spec.faults,
        seed=spec.seed,
        record_layers=True,
    )
