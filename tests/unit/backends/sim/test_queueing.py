"""The fairly shared link against queueing theory."""

from __future__ import annotations

from random import Random

import pytest

from kvsim.core.ops import Completion
from tests.unit.backends.sim.commands import backend, transfer

MEAN_BYTES = 1000
NUM_TRANSFERS = 20_000


@pytest.mark.parametrize("is_exponential", [True, False])
def test_the_mean_time_on_a_link_is_that_of_processor_sharing(is_exponential: bool) -> None:
    """Poisson arrivals that fill half of the link: the mean is E[S] / (1 - rho) = 2 E[S].

    Of exponential sizes (M/M/1) and of equal ones alike. Source: Kleinrock 1967.
    """
    rng = Random(11)
    simulator = backend()
    total_ns, num_done, at = 0, 0, 0.0
    for op_id in range(NUM_TRANSFERS):
        at += rng.expovariate(1 / (2 * MEAN_BYTES))
        while simulator.now() < int(at):
            for answer in simulator.wait(int(at)):
                assert isinstance(answer, Completion)
                total_ns += answer.finished_at - answer.started_at
                num_done += 1
        size = round(rng.expovariate(1 / MEAN_BYTES)) if is_exponential else MEAN_BYTES
        simulator.submit(transfer(op_id, size))
    assert num_done > 0.99 * NUM_TRANSFERS
    # The standard error of the mean is about 2 % here (0.5 % if the times were independent).
    assert total_ns / num_done == pytest.approx(2 * MEAN_BYTES, rel=0.06)
