"""How a worker's memory is copied: past the caches, where a copy is long enough.

A core that writes a line of memory reads it first, unless it is told that it will write all of it.
The C library does so for long copies only ("non-temporal"), and what it takes for long is a matter
of its version and of the machine: up to hundreds of megabytes. A block of a megabyte is never read
again soon after it was copied, so a third of the traffic is for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLE: Final = "GLIBC_TUNABLES"
_TUNABLE: Final = "glibc.cpu.x86_non_temporal_threshold"

THRESHOLD_BYTES: Final = 512 << 10
"""Pieces from here on bypass the caches. Half of the second-level cache of most servers: what is
longer has left it by the time that anybody reads it."""


def streaming_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a process whose long copies bypass the caches.

    It is read when a process begins, so it is for those that are started. A threshold that is set
    already stays. C libraries that do not know it ignore it.

    Source: GNU C Library manual, "Memory Related Tunables" and "Hardware Capability Tunables".
    """
    tunables = environment.get(_VARIABLE, "")
    if _TUNABLE in tunables:
        return dict(environment)
    ours = f"{_TUNABLE}={THRESHOLD_BYTES:#x}"
    return {**environment, _VARIABLE: f"{tunables}:{ours}" if tunables else ours}
