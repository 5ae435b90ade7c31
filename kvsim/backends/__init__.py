"""Backends execute ops and own time.

The table names them; none is imported before it is asked for.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

BACKENDS: Final[Mapping[str, str]] = MappingProxyType({"sim": "kvsim.backends.sim:SimBackend"})
"""Name on the command line -> "module:class" of a `kvsim.core.ports.Backend`."""
