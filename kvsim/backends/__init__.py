"""Backends execute ops and own time.

The table names them; none is imported before it is asked for. A third party adds one without
touching this file, through the entry point group `kvsim.backends`: the name maps to a
`kvsim.backends.setup.BackendEntry`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar, cast

from kvsim.backends.setup import BackendEntry, Clock
from kvsim.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsim.backends.setup import BackendSetup, ClusterSetup, OpenBackend

__all__ = ["BACKENDS", "find_backend", "open_backend", "open_cluster"]

_Setup = TypeVar("_Setup")

BACKENDS: Final[Mapping[str, BackendEntry]] = MappingProxyType(
    {
        "sim": BackendEntry(
            clock=Clock.VIRTUAL,
            opener="kvsim.backends.sim:open_backend",
            cluster_opener="kvsim.backends.sim:open_cluster",
        ),
        "paddle": BackendEntry(clock=Clock.WALL, opener="kvsim.backends.paddle:open_backend"),
    }
)
"""Name -> how to open it, and whose time it has."""

_ENTRY_POINT_GROUP: Final = "kvsim.backends"


@cache
def _installed() -> dict[str, BackendEntry]:
    """Backends of installed packages, read once."""
    found = entry_points(group=_ENTRY_POINT_GROUP)
    return {point.name: cast("BackendEntry", point.load()) for point in found}


def find_backend(name: str) -> BackendEntry:
    """Return the line of the table with this name.

    Raises
    ------
    UnknownNameError
        If there is none; the message lists the names.
    """
    entry = BACKENDS.get(name) or _installed().get(name)
    if entry is None:
        raise UnknownNameError("backend", name, {*BACKENDS, *_installed()})
    return entry


def open_backend(name: str, setup: BackendSetup) -> OpenBackend:
    """Make a backend ready to run; whoever asked for it closes it.

    Raises
    ------
    UserError
        If there is none of this name, something it needs is not installed, or the setup cannot be.
    """
    return _looked_up(find_backend(name).opener)(setup)


def open_cluster(name: str, setup: ClusterSetup) -> OpenBackend:
    """Make a backend ready for several instances; whoever asked for it closes it.

    Raises
    ------
    UserError
        As `open_backend`; or if the backend knows one instance only.
    """
    opener = find_backend(name).cluster_opener
    if opener is None:
        raise ConfigError(f"backend {name!r} knows one instance only: it cannot split a run")
    return _looked_up(opener)(setup)


def _looked_up(
    opener: str | Callable[[_Setup], OpenBackend],
) -> Callable[[_Setup], OpenBackend]:
    if not isinstance(opener, str):
        return opener
    module, _, attribute = opener.partition(":")
    return cast("Callable[[_Setup], OpenBackend]", getattr(import_module(module), attribute))
