"""The cache manager under random requests, answers in any order, and failures.

A sequence found here becomes a plain test in `test_found.py`.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.manager_machine import ManagerMachine, Steps
from tests.property.upkeep_rules import UpkeepMachine

THOROUGH_STEPS = 100_000
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def test_the_manager_keeps_its_promises_whatever_comes_in_whatever_order() -> None:
    run_state_machine_as_test(
        ManagerMachine,
        settings=settings(max_examples=40, stateful_step_count=50, suppress_health_check=SLOW),
    )


def test_it_keeps_them_with_an_operator_who_pins_evicts_flushes_and_resizes() -> None:
    run_state_machine_as_test(
        UpkeepMachine,
        settings=settings(max_examples=50, stateful_step_count=50, suppress_health_check=SLOW),
    )


@pytest.mark.thorough
def test_it_keeps_them_with_an_operator_in_a_hundred_thousand_steps() -> None:
    before = Steps.count
    run_state_machine_as_test(
        UpkeepMachine,
        settings=settings(max_examples=2200, stateful_step_count=100, suppress_health_check=SLOW),
    )
    executed = Steps.count - before
    print(f"{executed} steps executed")  # noqa: T201  (a long test says what it did)
    assert executed >= THOROUGH_STEPS


@pytest.mark.thorough
def test_the_manager_keeps_its_promises_in_a_hundred_thousand_steps() -> None:
    before = Steps.count
    run_state_machine_as_test(
        ManagerMachine,
        settings=settings(max_examples=1700, stateful_step_count=100, suppress_health_check=SLOW),
    )
    executed = Steps.count - before
    print(f"{executed} steps executed")  # noqa: T201  (a long test says what it did)
    assert executed >= THOROUGH_STEPS
