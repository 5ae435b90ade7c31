"""The timing simulator: a heap of virtual instants, fairly shared links, seeded faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.backends.setup import OpenBackend
from kvsim.backends.sim.backend import SimBackend

if TYPE_CHECKING:
    from kvsim.backends.setup import BackendSetup
    from kvsim.backends.sim.transfers import Links

__all__ = ["SimBackend", "open_backend"]


def open_backend(setup: BackendSetup) -> OpenBackend:
    """Return a simulator of the machine that the setup describes."""
    links: Links = setup.host_link
    if len(setup.tier_blocks) > 2 and setup.disk_link is not None:
        links = {(0, 1): setup.host_link, (1, 2): setup.disk_link, (0, 2): setup.disk_link}
    backend = SimBackend(
        setup.cost,
        links=links,
        num_ranks=setup.num_ranks,
        faults=setup.faults,
        seed=setup.seed,
        record_layers=setup.record_layers,
    )
    return OpenBackend(backend=backend, rank_block_bytes=setup.cost.transfer_bytes(1))
