"""The suite in real time: no check depends on how fast a machine is."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from kvsim.errors import BackendContractError
from kvsim.testing import BACKEND_CHECKS, BackendCheck, BackendSpec, BackendTraits, check_backend
from tests.conformance.realtime import RealTimeBackend

if TYPE_CHECKING:
    from kvsim.core.ops import Answer

TRAITS = BackendTraits(can_fail=True, num_instances=2)


@pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.name)
def test_a_backend_in_real_time_keeps_the_contract(check: BackendCheck) -> None:
    result = check(RealTimeBackend, TRAITS)
    assert result.is_applicable == (check.name != "layers_are_recorded")
