"""Ranks as processes: whatever happens to one, the run ends in one line or goes on, and none stays.

The workers have numpy's memory, so that they are there in half a second; all else is what it is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvsim.backends.paddle import open_backend
from kvsim.backends.paddle.copier import HostCopier
from kvsim.backends.paddle.crew import WorkerCrew, WorkerProcess
from kvsim.backends.setup import BackendSetup, OpenBackend, Workers
from kvsim.config import FaultConfig
from kvsim.core.ops import Completion, Member, Outcome, Settled
from kvsim.core.sequence import Status
from kvsim.errors import ConfigError, KvsimError, TransferError
from kvsim.testing.backends.belongings import belongings
from tests.unit.backends.paddle.small_runs import (
    Core,
    Saboteur,
    send_signal,
    serve,
    setup,
    transfer,
)
from tests.unit.backends.paddle.stage import forward

if TYPE_CHECKING:
    from collections.abc import Iterator

BARE = ("-m", "tests.unit.backends.paddle.bare_rank")
LONG_NS = 10**15  # a step that does not end in this test


class Crew(WorkerCrew):
    """A crew that remembers whom it has hired last."""

    hired: list[WorkerProcess]

    def hire(self, num: int) -> list[WorkerProcess]:
        """Return so many workers."""
        self.hired = super().hire(num)
        return self.hired

    def pid(self, rank: int) -> int:
        """Return the process id of a rank."""
        return self.hired[rank].child.pid


def processes(
    *,
    num_ranks: int = 2,
    step_ns: int = 0,
    tier_blocks: tuple[int, ...] = (6, 12),
    worker_timeout_ns: int = 60 * 10**9,
    faults: FaultConfig | None = None,
) -> BackendSetup:
    """Return what a small backend on processes is made from."""
    return setup(
        num_ranks=num_ranks,
        step_ns=step_ns,
        tier_blocks=tier_blocks,
        workers=Workers.PROCESSES,
        worker_timeout_ns=worker_timeout_ns,
        faults=faults,
    )


@contextmanager
def opened(what: BackendSetup, *mode: str) -> Iterator[tuple[OpenBackend, Crew]]:
    """Open a backend whose workers behave in some mode, and see that close leaves nothing."""
    before = belongings()
    crew = Crew(arguments=(*BARE, *mode))
    made = open_backend(what, crew=crew)
    try:
        yield made, crew
    finally:
        made.backend.close()
        made.backend.close()
        assert belongings() - before == set()


def expect_well(what: BackendSetup, made: OpenBackend, core: Core) -> None:
    """Assert that all requests have come to their end and every byte was right."""
    assert made.tensors is not None
    assert made.tensors()["wrong_bytes"] == 0
    assert made.tensors()["blocks_checked"] > 0
    assert made.tensors()["blocks_swapped"] > 0
    assert [each.status for each in core.scheduler.ended] == [Status.FINISHED] * len(what.requests)
    assert core.num_quarantined() == 0


def test_a_run_on_processes_has_no_wrong_byte_and_leaves_nothing() -> None:
    what = processes()
    with opened(what) as (made, crew):
        assert len({crew.pid(0), crew.pid(1), os.getpid()}) == 3
        core = Core(what)
        core.run(made.backend)
    expect_well(what, made, core)
    assert list(made.notes()) == []


def test_workers_that_are_kept_serve_one_backend_after_another_with_new_pools() -> None:
    before = belongings()
    with Crew(arguments=BARE, keeps=True) as crew:
        pids = set()
        for num_blocks in (6, 7):
            what = processes(tier_blocks=(num_blocks, 12))
            made = open_backend(what, crew=crew)
            serve(what, made)
            assert made.tensors is not None
            assert made.tensors()["wrong_bytes"] == 0
            made.backend.submit(forward(9999, joined=(Member(0, 0, 4, (1, 2)),)))  # under way
            made.backend.close()
            pids.add((crew.pid(0), crew.pid(1)))
        assert len({frozenset(pair) for pair in pids}) == 1
    assert belongings() - before == set()


def test_a_worker_that_is_killed_ends_the_run_and_nothing_stays_in_quarantine() -> None:
    what, rank = processes(), 1
    with opened(what) as (made, crew):
        core = Core(what)
        saboteur = Saboteur(
            made.backend, at_submit=25, act=send_signal(crew.pid(rank), signal.SIGKILL)
        )
        with pytest.raises(TransferError) as caught:
            core.run(saboteur)
        assert str(caught.value) == (
            f"rank {rank} of instance 0 (process {crew.pid(rank)}) was killed by SIGKILL"
        )
        assert core.num_quarantined() == 0
        assert saboteur.outcomes[-1] is Outcome.FAILED


def test_a_frozen_worker_is_killed_when_it_has_not_answered_and_its_ops_settle() -> None:
    what = processes(worker_timeout_ns=100_000_000)
    with opened(what) as (made, crew):
        core = Core(what, timeout_ns=20_000_000)
        frozen = send_signal(crew.pid(1), signal.SIGSTOP)
        with pytest.raises(TransferError, match=r"rank 1 .* has not answered for 0.1 s: it is fr"):
            core.run(Saboteur(made.backend, at_submit=25, act=frozen))
        assert crew.hired[1].child.has_ended
        assert core.num_quarantined() == 0


def test_what_a_frozen_worker_holds_is_timed_out_at_its_deadline_and_settled_by_the_fence() -> None:
    with opened(processes(step_ns=LONG_NS, worker_timeout_ns=50_000_000)) as (made, crew):
        os.kill(crew.pid(0), signal.SIGSTOP)
        backend = made.backend
        deadline_at = backend.now() + 1_000_000
        backend.submit(forward(0, joined=(Member(0, 0, 4, (1, 2)),), deadline_at=deadline_at))
        backend.submit(transfer(1, (0,), (0,)))
        (timed_out,) = backend.wait(None)
        assert isinstance(timed_out, Completion)
        assert (timed_out.op_id, timed_out.outcome) == (0, Outcome.TIMED_OUT)
        settled, failed = backend.wait(None)
        assert isinstance(settled, Settled)
        assert isinstance(failed, Completion)
        assert (settled.op_id, failed.op_id, failed.outcome) == (0, 1, Outcome.FAILED)
        assert "has not answered for 0.05 s" in failed.reason
        with pytest.raises(TransferError, match=r"has not answered for 0\.05 s"):
            backend.wait(None)


def test_a_worker_that_was_frozen_for_a_while_costs_the_requests_a_recomputation() -> None:
    what = processes()
    with opened(what) as (made, crew):
        core = Core(what, timeout_ns=50_000_000, max_attempts=1000)
        saboteur = Saboteur(
            made.backend,
            at_submit=25,
            act=send_signal(crew.pid(1), signal.SIGSTOP),
            at_timeout=send_signal(crew.pid(1), signal.SIGCONT),
        )
        core.run(saboteur)
        assert Outcome.TIMED_OUT in saboteur.outcomes
    expect_well(what, made, core)


@pytest.mark.parametrize("mode", [("fails",), ("slow", "1"), ("claims",)])
def test_copies_that_fail_or_are_late_and_pools_that_are_too_small_cost_recomputations(
    mode: tuple[str, ...],
) -> None:
    what = processes(tier_blocks=(8, 16))
    timeout_ns = 20_000_000 if mode[0] == "slow" else None
    with opened(what, *mode) as (made, _):
        core = Core(what, timeout_ns=timeout_ns, max_attempts=1000 if mode != ("claims",) else 3)
        saboteur = Saboteur(made.backend)
        core.run(saboteur)
        if mode == ("claims",):
            # Rows beyond a pool are refused by the copier; it is a quarter of what was asked for.
            assert Outcome.FAILED in saboteur.outcomes
            assert {each.status for each in core.scheduler.ended} >= {Status.FAILED}
            assert core.num_quarantined() == 0
            return
        bad = Outcome.FAILED if mode == ("fails",) else Outcome.TIMED_OUT
        assert bad in saboteur.outcomes
    expect_well(what, made, core)


NOT_READY: list[tuple[str, type[KvsimError], str]] = [
    ("dies", TransferError, r"worker process \d ended with exit code 1; its last words: no such l"),
    (
        "wrong-key",
        TransferError,
        r"AuthenticationError: the listener does not take our key",
    ),
    ("other-clock", TransferError, r"has another clock: it says that it is \d+ ns, and here it is"),
    ("silent", TransferError, r"1 of 1 worker processes have not said that they are there in time"),
    ("small", TransferError, r"has made pools of \{0: 2, 1: 4\} blocks by tier, not of \{0: 8"),
    ("no-memory", ConfigError, r"rank 0 of instance 0: the host does not give the memory"),
]


@pytest.mark.parametrize(("mode", "error", "message"), NOT_READY, ids=[n[0] for n in NOT_READY])
def test_a_worker_that_does_not_become_ready_is_one_line_and_leaves_nothing(
    mode: str, error: type[KvsimError], message: str
) -> None:
    before = belongings()
    crew = WorkerCrew(arguments=(*BARE, mode), start_s=0.5 if mode == "silent" else 60.0)
    with pytest.raises(error, match=message) as caught:
        open_backend(processes(num_ranks=1, tier_blocks=(8, 16)), crew=crew)
    assert "\n" not in str(caught.value)
    assert belongings() - before == set()


LOST: list[tuple[str, str]] = [
    ("bug", "ended with exit code 1; its last words: ZeroDivisionError: a bug"),
    ("stuck", "has not answered for 0.2 s: it is frozen, or a copy takes longer than that"),
    ("corrupted", "cannot be understood: frame 5 has a wrong seal: it was changed, or sent twice"),
    ("frame-twice", "cannot be understood: frame 6 has a wrong seal"),
    ("garbage", "cannot be understood: a message that cannot be read"),
    ("twice", r"rank 0 says that op \d+ has ended, which it was not asked for, or has said alr"),
    ("unasked", r"rank 0 says that op 10\d\d has ended, which it was not asked for"),
    ("other-rank", "cannot be understood: it speaks for rank 1"),
]


@pytest.mark.parametrize(("mode", "message"), LOST, ids=[lost[0] for lost in LOST])
def test_a_worker_that_cannot_be_trusted_any_more_ends_the_run(mode: str, message: str) -> None:
    what = processes(num_ranks=1, worker_timeout_ns=200_000_000 if mode == "stuck" else 60 * 10**9)
    with opened(what, mode) as (made, crew):
        core = Core(what)
        with pytest.raises(TransferError, match=message) as caught:
            core.run(made.backend)
        assert "\n" not in str(caught.value)
        assert crew.hired[0].child.has_ended
        assert core.num_quarantined() == 0


def test_a_worker_may_be_lost_while_nothing_is_under_way() -> None:
    with opened(processes(num_ranks=1)) as (made, crew):
        os.kill(crew.pid(0), signal.SIGKILL)
        with pytest.raises(TransferError, match="was killed by SIGKILL"):
            made.backend.wait(made.backend.now() + 60 * 10**9)


def test_an_idle_worker_is_asked_whether_it_is_there_and_that_is_all() -> None:
    with opened(processes(num_ranks=1, worker_timeout_ns=10_000_000)) as (made, _):
        assert made.backend.wait(made.backend.now() + 200_000_000) == ()
        made.backend.submit(transfer(0, (0,), (0,)))
        (answer,) = made.backend.wait(None)
        assert isinstance(answer, Completion)
        assert answer.outcome is Outcome.DONE


def test_stamps_of_workers_are_on_the_controllers_clock() -> None:
    with opened(processes()) as (made, _):
        before = made.backend.now()
        made.backend.submit(transfer(0, (0, 1), (0, 1)))
        (answer,) = made.backend.wait(None)
        assert isinstance(answer, Completion)
        assert before <= answer.started_at <= answer.finished_at <= made.backend.now()


def test_injected_faults_are_the_same_as_on_threads() -> None:
    what = processes(faults=FaultConfig(fail_rate=0.05, delay_rate=0.05, delay_ns=1_000_000))
    with opened(what) as (made, _):
        core = Core(what, max_attempts=1000)
        saboteur = Saboteur(made.backend)
        core.run(saboteur)
        assert Outcome.FAILED in saboteur.outcomes
    expect_well(what, made, core)


def test_an_interrupt_while_the_engine_waits_leaves_nothing() -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with opened(processes(step_ns=LONG_NS)) as (made, _):
            made.backend.submit(forward(0, joined=(Member(0, 0, 4, (1, 2)),)))
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                made.backend.wait(None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


CONTROLLER = """
import sys
from tests.unit.backends.paddle.test_processes import *
crew = Crew(arguments=BARE)
made = open_backend(processes(step_ns=LONG_NS), crew=crew)
made.backend.submit(forward(0, joined=(Member(0, 0, 4, (1, 2)),)))
print(crew.pid(0), crew.pid(1), flush=True)
made.backend.wait(None)
"""


@pytest.mark.parametrize("is_frozen", [False, True], ids=["awake", "frozen"])
def test_workers_end_when_the_controller_is_killed(*, is_frozen: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as controller:
        assert controller.stdout is not None
        pids = [int(each) for each in controller.stdout.readline().split()]
        assert len(pids) == 2
        watched = [os.pidfd_open(pid) for pid in pids]
        if is_frozen:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
        controller.kill()
    # A pidfd is readable when its process has ended, whoever reaps it.
    for pidfd in watched:
        wait_for(pidfd)
        os.close(pidfd)


def wait_for(pidfd: int) -> None:
    """Wait until a process has ended; fail if it does not."""
    import select

    assert select.select([pidfd], [], [], 60)[0], "a worker has outlived its controller"


def test_what_needs_threads_is_refused_and_starts_nothing() -> None:
    before = belongings()
    with pytest.raises(ConfigError, match="a copier of your own cannot go to another process"):
        open_backend(processes(), new_copier=lambda _: HostCopier())
    with pytest.raises(ConfigError, match="GiB of host memory"):
        open_backend(replace(processes(), tier_blocks=(2**40, 8)))
    assert belongings() - before == set()


def test_without_msgspec_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("kvsim.backends.")]:
        if name.split(".")[2] == "control" or name.endswith(("crew", "processes", "wire")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(ConfigError, match=r"needs msgspec.*pip install 'kvsim\[workers\]'"):
        open_backend(processes())


def test_a_kept_worker_that_has_ended_meanwhile_is_replaced() -> None:
    with Crew(arguments=BARE, keeps=True) as crew:
        crew.give_back(crew.hire(1)[0])
        gone = crew.pid(0)
        crew.hired[0].child.kill()
        (worker,) = crew.hire(1)
        assert worker.child.pid != gone
        crew.give_back(worker)


def test_a_worker_that_is_started_by_hand_says_so_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvsim.backends.paddle.rank_main"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "kvsim worker: this program is started by kvsim, not by hand\n"
