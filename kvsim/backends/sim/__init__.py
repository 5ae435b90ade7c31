"""The timing simulator: a heap of virtual instants, fairly shared links, seeded faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.backends.setup import OpenBackend, WireFigures
from kvsim.backends.sim.backend import SimBackend
from kvsim.backends.sim.fabric import FabricSetup

if TYPE_CHECKING:
    from kvsim.backends.setup import BackendSetup, ClusterSetup
    from kvsim.backends.sim.transfers import Links

__all__ = ["SimBackend", "open_backend", "open_cluster"]


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


def open_cluster(setup: ClusterSetup) -> OpenBackend:
    """Return a simulator of several instances and what lies between them."""
    instances = setup.instances
    backend = SimBackend(
        [each.cost for each in instances],
        # Only swaps use these: what goes between instances is the fabric's.
        links=instances[0].host_link,
        fabric=FabricSetup(
            network=setup.network,
            layouts={i: each.layout for i, each in enumerate(instances)},
            host_links={i: each.host_link for i, each in enumerate(instances)},
        ),
        num_ranks=max(each.layout.num_ranks for each in instances),
        faults=setup.faults,
        seed=setup.seed,
        record_layers=setup.record_layers,
    )

    def wires() -> list[WireFigures]:
        return [
            WireFigures(hop.name, hop.passed_bytes, hop.bytes_per_second) for hop in backend.wires
        ]

    return OpenBackend(
        backend=backend,
        rank_block_bytes=instances[0].cost.transfer_bytes(1),
        wires=wires,
    )
