"""Each transport of the table keeps the contract, within a process and between two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from kvsim.backends.transports import TRANSPORTS, find_transport
from kvsim.testing.transports import TRANSPORT_CHECKS

if TYPE_CHECKING:
    from kvsim.testing.transports import TransportCheck

# A process takes a second to begin, and NIXL half a second more in each: of those, what matters
# most runs every time, and the rest with `make thorough`.
SLOW: Final = {
    ("rdma", "bytes_cross_processes"),
    ("rdma", "a_killed_writer_is_missed"),
    ("rdma", "nothing_is_left_of_a_lost_process"),
    ("tcp", "nothing_is_left_of_a_lost_process"),
}


def cases() -> list[object]:
    found: list[object] = []
    for name in TRANSPORTS:
        missing = find_transport(name).find_missing()
        for check in TRANSPORT_CHECKS:
            marks = [pytest.mark.skipif(missing is not None, reason=f"{name}: {missing}")]
            if (name, check.name) in SLOW:
                marks.append(pytest.mark.thorough)
            found.append(pytest.param(name, check, marks=marks, id=f"{name}-{check.name}"))
    return found


@pytest.mark.parametrize(("name", "check"), cases())
def test_a_transport_keeps_its_contract(name: str, check: TransportCheck) -> None:
    check(name)
