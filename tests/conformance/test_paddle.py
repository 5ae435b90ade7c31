"""Real tensors keep the contract of backends: the same checks as the simulator's."""

from __future__ import annotations

import pytest

from kvsim.testing import BACKEND_CHECKS, BackendCheck, BackendTraits
from tests.conformance.makers import make_tensors

pytest.importorskip("paddle", reason="the tensor backend needs PaddlePaddle")

TRAITS = {
    "one rank": BackendTraits(can_fail=True, records_layers=True),
    "two ranks": BackendTraits(can_fail=True, records_layers=True, num_ranks=2, seed=1),
    "small blocks, no faults": BackendTraits(records_layers=True, block_size=3, seed=2),
}


@pytest.mark.parametrize("traits", TRAITS.values(), ids=TRAITS)
@pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.name)
def test_real_tensors_keep_the_contract(check: BackendCheck, traits: BackendTraits) -> None:
    is_applicable = all(getattr(traits, need) for need in check.needs)
    assert check(make_tensors, traits).is_applicable == is_applicable
