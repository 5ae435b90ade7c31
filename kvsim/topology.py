"""What lies between instances: network cards, a switch, and the lanes they share with swaps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kvsim.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """The network between instances. Every wire has its whole bandwidth in each direction.

    Parameters
    ----------
    bytes_per_second
        Of one card (or of one GPU's share of NVLink).
    latency_ns, overhead_ns
        From the first byte sent to the first received; and the time to post a batch of writes.
        A Transfer pays both once.
    ranks_per_nic
        How many neighbouring ranks of an instance share one card.
    switch_bytes_per_second
        What all instances together can send at a time; None: the switch is no limit.
    shares_host_link
        Whether the bytes also cross the host links of the GPUs at both ends, where they compete
        with swaps: cards and GPUs behind one PCIe switch share its lanes only where the traffic
        goes through host memory.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    name: str
    bytes_per_second: int
    latency_ns: int
    overhead_ns: int
    ranks_per_nic: int = 1  # what servers for eight GPUs are sold with
    switch_bytes_per_second: int | None = None
    shares_host_link: bool = False

    def __post_init__(self) -> None:
        for name, least in (
            ("bytes_per_second", 1),
            ("latency_ns", 0),
            ("overhead_ns", 0),
            ("ranks_per_nic", 1),
            ("switch_bytes_per_second", 1),
        ):
            value = getattr(self, name)
            if value is None and name == "switch_bytes_per_second":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"{name} of network {self.name!r} must be an integer of at least {least},"
                    f" not {value!r}"
                )

    def at(self, bytes_per_second: int) -> NetworkConfig:
        """Return the same network with cards of another speed."""
        return replace(self, bytes_per_second=bytes_per_second)


# The rates are those of the wires' names: 400 Gbit/s and 100 Gbit/s a port (InfiniBand NDR,
# Ethernet), and 900 GB/s of NVLink 4, which counts both directions (NVIDIA H100 data sheet). The
# latencies are assumptions of the usual size: measure yours.
_NDR400: Final = NetworkConfig(
    name="ib-400g", bytes_per_second=50_000_000_000, latency_ns=3_000, overhead_ns=20_000
)
_NVLINK: Final = NetworkConfig(
    name="nvlink", bytes_per_second=450_000_000_000, latency_ns=1_000, overhead_ns=10_000
)

NETWORKS: Final[Mapping[str, NetworkConfig]] = MappingProxyType(
    {
        each.name: each
        for each in (
            _NDR400,
            replace(_NDR400, name="ib-400g-shared", ranks_per_nic=8),
            replace(_NDR400, name="eth-100g", bytes_per_second=12_500_000_000, ranks_per_nic=8),
            # Without direct access to GPU memory every byte goes through the hosts' memory.
            replace(
                _NDR400,
                name="tcp-100g",
                bytes_per_second=12_500_000_000,
                latency_ns=50_000,
                overhead_ns=100_000,
                ranks_per_nic=8,
                shares_host_link=True,
            ),
            _NVLINK,
        )
    }
)
"""Networks by name."""


def find_network(name: str) -> NetworkConfig:
    """Return the network of that name.

    Raises
    ------
    UnknownNameError
        If there is none; the message names those there are.
    """
    known = NETWORKS.get(name)
    if known is None:
        raise UnknownNameError("network", name, NETWORKS)
    return known
