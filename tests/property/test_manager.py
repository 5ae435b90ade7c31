"""The cache manager under random requests, completions and failures."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.manager_machine import ManagerMachine, Steps


def test_the_manager_keeps_its_invariants_in_any_order_of_events() -> None:
    run_state_machine_as_test(ManagerMachine, settings=settings(max_examples=150, stateful_step_count=40))
