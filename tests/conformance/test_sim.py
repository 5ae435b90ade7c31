"""The simulator keeps the contract of backends, whatever its size and its clock's unit."""

from __future__ import annotations

import pytest

from kvsim.testing import BACKEND_CHECKS, BackendCheck, BackendTraits
from tests.conformance.makers import make_simulator

TRAITS = {
    "one rank": BackendTraits(can_fail=True, records_layers=True),
    "two ranks and instances, ticks of 1 ns": BackendTraits(
        tick_ns=1, can_fail=True, records_layers=True, num_instances=2, num_ranks=2, seed=1
    ),
    "one layer, small blocks, no faults": BackendTraits(
        tick_ns=7, records_layers=True, num_layers=1, block_size=1, seed=2
    ),
    "three instances, many layers": BackendTraits(
        tick_ns=1000, can_fail=True, records_layers=True, num_instances=3, num_layers=61, seed=3
    ),
}


@pytest.mark.parametrize("traits", TRAITS.values(), ids=TRAITS)
@pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.name)
def test_the_simulator_keeps_the_contract(check: BackendCheck, traits: BackendTraits) -> None:
    is_applicable = all(getattr(traits, need) for need in check.needs)
    assert check(make_simulator, traits).is_applicable == is_applicable
