"""The timing simulator: a heap of virtual instants, fairly shared links, seeded faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.backends.setup import OpenBackend
from kvsim.backends.sim.backend import SimBackend

if TYPE_CHECKING:
    from kvsim.backends.setup import BackendSetup

__all__ = ["SimBackend", "open_backend"]


def open_backend(setup: BackendSetup) -> OpenBackend:
    """Return a simulator of the machine that the setup describes."""
    backend = SimBackend(
        setup.cost,
        links=setup.host_link,
        num_ranks=setup.num_ranks,
        faults=setup.faults,
        seed=setup.seed,
        record_layers=setup.record_layers,
    )
    return OpenBackend(backend=backend, rank_block_bytes=setup.cost.transfer_bytes(1))
