"""Ranks as processes keep the contract of backends: the checks are those of all others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from kvsim.backends.paddle.crew import WorkerCrew
from kvsim.testing import BACKEND_CHECKS, BackendCheck, BackendTraits, check_backend
from tests.conformance.makers import make_on_processes

if TYPE_CHECKING:
    from collections.abc import Iterator

BARE = ("-m", "tests.unit.backends.paddle.bare_rank")  # memory of numpy's: there in no time
TWO_RANKS = BackendTraits(can_fail=True, records_layers=True, num_ranks=2)
ONE_RANK = BackendTraits(can_fail=True, records_layers=True, block_size=3, seed=1)


@pytest.fixture(scope="module")
def crew() -> Iterator[WorkerCrew]:
    """Return workers that go from one check to the next, since each takes long to start."""
    with WorkerCrew(arguments=BARE, keeps=True) as crew:
        yield crew


@pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.name)
def test_worker_processes_keep_the_contract(check: BackendCheck, crew: WorkerCrew) -> None:
    is_applicable = all(getattr(TWO_RANKS, need) for need in check.needs)
    assert check(partial(make_on_processes, crew=crew), TWO_RANKS).is_applicable == is_applicable


def test_a_close_ends_processes_that_nobody_keeps() -> None:
    (check,) = (each for each in BACKEND_CHECKS if each.name == "a_close_leaves_nothing_behind")
    check(lambda spec: make_on_processes(spec, WorkerCrew(arguments=BARE)), ONE_RANK)


@pytest.mark.thorough
@pytest.mark.parametrize("traits", [ONE_RANK, TWO_RANKS], ids=["one rank", "two ranks"])
def test_worker_processes_with_paddle_keep_the_contract(traits: BackendTraits) -> None:
    pytest.importorskip("paddle", reason="the tensor backend needs PaddlePaddle")
    with WorkerCrew(keeps=True) as crew:
        assert check_backend(partial(make_on_processes, crew=crew), traits).num_kept > 30
