"""Transports: how one rank puts bytes into the memory of another, in another process.

The table names them; none is imported before it is asked for. A third party adds one without
touching this file, through the entry point group `kvsim.transports`: the name maps to a
`TransportEntry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from kvsim.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsim.backends.transports.ports import EndpointConfig, Transport

__all__ = ["TRANSPORTS", "TransportEntry", "find_transport", "open_transport", "transport_names"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportEntry:
    """A line of the table.

    Parameters
    ----------
    opener
        Makes an endpoint from its configuration: a function, or "module:function", which is
        imported when it is asked for.
    needs
        Modules that are not part of every installation: one of each inner tuple is needed.
    remedy
        How to get them: a command.
    """

    opener: str | Callable[[EndpointConfig], Transport]
    needs: tuple[tuple[str, ...], ...] = ()
    remedy: str = ""

    def find_missing(self) -> str | None:
        """Return what is missing here, and how to get it; None if nothing is."""
        for names in self.needs:
            if not any(_is_installed(name) for name in names):
                return f"it needs {' or '.join(names)}, which is not installed: {self.remedy}"
        return None


TRANSPORTS: Final[Mapping[str, TransportEntry]] = MappingProxyType(
    {
        "ipc": TransportEntry(
            opener="kvsim.backends.transports.ipc:open_endpoint",
            needs=(("msgspec",),),
            remedy="pip install 'kvsim[workers]'",
        ),
        "tcp": TransportEntry(
            opener="kvsim.backends.transports.tcp:open_endpoint",
            needs=(("msgspec",), ("zmq",)),
            remedy="pip install 'kvsim[workers]'",
        ),
        "rdma": TransportEntry(
            opener="kvsim.backends.transports.rdma:open_endpoint",
            needs=(("msgspec",), ("nixl_cu12", "nixl_cu13")),
            remedy="pip install 'kvsim[workers]' and pip install --no-deps nixl-cu12==1.5.1",
        ),
    }
)
"""Name -> how to open an endpoint."""

_ENTRY_POINT_GROUP: Final = "kvsim.transports"


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False


@cache
def _installed() -> dict[str, TransportEntry]:
    """Transports of installed packages, read once."""
    found = entry_points(group=_ENTRY_POINT_GROUP)
    return {point.name: cast("TransportEntry", point.load()) for point in found}


def transport_names() -> tuple[str, ...]:
    """Return the names of all transports, kvsim's own first."""
    return tuple(dict.fromkeys([*TRANSPORTS, *sorted(_installed())]))


def find_transport(name: str) -> TransportEntry:
    """Return the line of the table with this name.

    Raises
    ------
    UnknownNameError
        If there is none; the message lists the names.
    """
    entry = TRANSPORTS.get(name) or _installed().get(name)
    if entry is None:
        raise UnknownNameError("transport", name, transport_names())
    return entry


def open_transport(name: str, config: EndpointConfig) -> Transport:
    """Return an endpoint, which has nothing registered yet; whoever asked for it closes it.

    Parameters
    ----------
    name
        Of the table; or "module:function" of what opens it, of a transport that has no name yet.
    config
        Whose it is, and how.

    Raises
    ------
    UserError
        If there is no transport of this name, or something it needs is not installed.
    """
    entry = TransportEntry(opener=name) if ":" in name else find_transport(name)
    missing = entry.find_missing()
    if missing is not None:
        raise ConfigError(f"transport {name!r} cannot be used: {missing}")
    opener = entry.opener
    if isinstance(opener, str):
        module, _, attribute = opener.partition(":")
        try:
            found = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"transport {name!r} cannot be imported: {error}") from error
        opener = cast("Callable[[EndpointConfig], Transport]", found)
    return opener(config)
