"""The engine on worker processes: random stories, and random misfortunes of the workers."""

from __future__ import annotations

import signal
from random import Random
from typing import TYPE_CHECKING

import pytest

from kvsim.backends.paddle import open_backend
from kvsim.backends.paddle.crew import WorkerCrew, WorkerProcess
from kvsim.backends.setup import Workers
from kvsim.config import FaultConfig
from kvsim.core.ops import Outcome
from kvsim.core.sequence import Status
from kvsim.errors import KvsimError, TransferError
from kvsim.testing.backends.belongings import belongings
from tests.property.scheduler_machine import run_on_processes
from tests.property.test_scheduler import run_seed
from tests.unit.backends.paddle.small_runs import Core, Saboteur, send_signal, setup

if TYPE_CHECKING:
    from kvsim.core.ports import Backend
    from tests.property.witness import Witness

BARE = ("-m", "tests.unit.backends.paddle.bare_rank")
ENDS_THE_RUN = ("bug", "stuck", "corrupted", "frame-twice", "garbage", "twice", "unasked")
POOL_TOO_SMALL = "claims"  # nothing helps: requests are given up
NUM_SUBMITTED = 60  # ops of a schedule, about
MS = 1_000_000


@pytest.mark.thorough
def test_every_request_comes_to_its_end_on_processes_and_every_byte_is_right() -> None:
    pytest.importorskip("paddle", reason="the tensor backend needs PaddlePaddle")
    num_turns = num_stories = 0
    with WorkerCrew(keeps=True) as crew:

        def run_on_workers(rng: Random, *, max_requests: int) -> Witness:
            return run_on_processes(rng, crew=crew, max_requests=max_requests)

        while num_turns < 10_000:
            num_turns += run_seed(run_on_workers, 2_000_000 + num_stories, max_requests=12)
            num_stories += 1
    print(f"worker processes: {num_turns} turns in {num_stories} stories")  # noqa: T201


class Schedule:
    """What goes wrong in a run, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        self.num_ranks = rng.randint(1, 2)
        self.rank = rng.randrange(self.num_ranks)
        self.mode = rng.choice(["", "", "", "fails", "slow", POOL_TOO_SMALL, *ENDS_THE_RUN])
        self.misfortune = rng.choice(["none", "none", "killed", "frozen", "frozen for a while"])
        self.at_submit = rng.randrange(NUM_SUBMITTED)
        rate = rng.choice([0.0, 0.0, 0.02, 0.1])
        self.faults = FaultConfig(
            fail_rate=rate,
            delay_rate=rate,
            hang_rate=rate / 2,
            delay_ns=rng.choice([1, 30]) * MS,
            settle_ns=rng.choice([1, 30]) * MS,
        )
        self.timeout_ns = rng.choice([20 * MS, 100 * MS])
        self.seed = seed

    def pid(self, workers: list[WorkerProcess]) -> int:
        """Return the process that it befalls."""
        return workers[self.rank].child.pid

    def saboteur(self, backend: Backend, pid: int) -> Saboteur:
        """Return a backend that it befalls."""
        signals = {"killed": signal.SIGKILL, "none": None}
        number = signals.get(self.misfortune, signal.SIGSTOP)
        return Saboteur(
            backend,
            at_submit=self.at_submit,
            act=(lambda: None) if number is None else send_signal(pid, number),
            at_timeout=(
                send_signal(pid, signal.SIGCONT)
                if self.misfortune == "frozen for a while"
                else lambda: None
            ),
        )

    def run(self) -> str:
        """Run it; return the error that ended the run, or nothing. Assert that nothing is lost."""
        what = setup(
            num_ranks=self.num_ranks,
            tier_blocks=(8, 16),
            faults=self.faults,
            seed=self.seed,
            workers=Workers.PROCESSES,
            worker_timeout_ns=500 * MS,
        )
        before = belongings()
        crew = Crew(arguments=(*BARE, self.mode, str(self.rank)))
        made = open_backend(what, crew=crew)
        is_hopeless = self.mode == POOL_TOO_SMALL
        core = Core(what, timeout_ns=self.timeout_ns, max_attempts=3 if is_hopeless else 1000)
        saboteur = self.saboteur(made.backend, self.pid(crew.hired))
        problem = ""
        try:
            core.run(saboteur)
        except TransferError as error:
            problem = str(error)
        finally:
            made.backend.close()
        assert core.num_quarantined() == 0
        assert belongings() - before == set()
        assert made.tensors is not None
        assert made.tensors()["wrong_bytes"] == 0
        if not problem:
            ways_out = {Status.FINISHED, Status.FAILED} if is_hopeless else {Status.FINISHED}
            assert {each.status for each in core.scheduler.ended} <= ways_out
            assert len(core.scheduler.ended) == len(what.requests)
            assert is_hopeless or Outcome.DONE in saboteur.outcomes
        assert "\n" not in problem
        return problem


class Crew(WorkerCrew):
    """Remembers whom it has hired."""

    hired: list[WorkerProcess]

    def hire(self, num: int) -> list[WorkerProcess]:
        """Return so many workers."""
        self.hired = super().hire(num)
        return self.hired


def play(seeds: range) -> list[str]:
    """Run schedules; return how each ended, and name the seed of one that went wrong."""
    ends = []
    for seed in seeds:
        try:
            ends.append(Schedule(seed).run())
        except (AssertionError, KvsimError, OSError) as error:
            error.add_note(f"schedule {seed}: {vars(Schedule(seed))}")
            raise
    return ends


def test_whatever_befalls_the_workers_a_run_ends_well_or_in_one_line() -> None:
    ends = play(range(2))
    assert len(ends) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(1000, 1200, 20))
def test_the_same_of_two_hundred_schedules(first: int) -> None:
    ends = play(range(first, first + 20))
    num_lost = sum(map(bool, ends))
    print(f"worker processes: {len(ends)} schedules, {num_lost} of them lost a worker")  # noqa: T201
    assert 0 < num_lost < len(ends)  # neither way is rare
