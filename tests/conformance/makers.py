"""Makes backends as the conformance suite wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.backends.sim import SimBackend
from kvsim.config import LinkConfig
from kvsim.cost import LinearCost

if TYPE_CHECKING:
    from kvsim.testing import BackendSpec


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
