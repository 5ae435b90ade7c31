"""The conformance suite of transports: all checks, and a run of them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvsim.testing.transports import basics, trouble

if TYPE_CHECKING:
    from kvsim.testing.transports.stage import TransportCheck

TRANSPORT_CHECKS: Final[tuple[TransportCheck, ...]] = (*basics.CHECKS, *trouble.CHECKS)
"""Every check, the most basic first: what a later one shows is clear if the earlier ones pass."""


@dataclass(frozen=True, slots=True)
class TransportReport:
    """The checks that a transport has passed."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        """Return a line for each check, and the sum."""
        lines = [f"kept  {name}" for name in self.names]
        return "\n".join([*lines, f"{len(self.names)} checks made, all kept"])


def check_transport(transport: str, *, patience_s: float = 30.0) -> TransportReport:
    """Hold a transport to its contract, within a process and between two.

    Parameters
    ----------
    transport
        Its name; or "module:function" of what opens an endpoint, where another process can import
        it as well.
    patience_s
        How long what must come is waited for, in seconds. Checks that pass take far less.

    Raises
    ------
    UserError
        If there is no such transport, or something it needs is not installed.
    TransportContractError
        At the first sentence of `kvsim.backends.transports.ports` that is broken.
    """
    for each in TRANSPORT_CHECKS:
        each(transport, patience_s=patience_s)
    return TransportReport(tuple(each.name for each in TRANSPORT_CHECKS))
