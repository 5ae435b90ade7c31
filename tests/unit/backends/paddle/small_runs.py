"""Small runs of the core on real tensors, and what there is to see of them."""

from __future__ import annotations

import os
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

from kvsim.backends.setup import BackendSetup, OpenBackend, Workers
from kvsim.config import CacheConfig, FaultConfig, LinkConfig, SchedulerConfig
from kvsim.core.engine import run
from kvsim.core.manager import CacheManager
from kvsim.core.ops import Completion, Outcome, Transfer
from kvsim.core.scheduler import Scheduler
from kvsim.cost import LinearCost
from kvsim.policies import policy_factory
from kvsim.testing import Prompt, make_request
from tests.unit.backends.paddle.bits import GPU, HOST

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Sequence

    from kvsim.core.ops import Answer, Command
    from kvsim.core.ports import Backend


def setup(
    *,
    tier_blocks: tuple[int, ...] = (8, 16),
    step_ns: int = 0,
    num_ranks: int = 2,
    num_requests: int = 40,
    faults: FaultConfig | None = None,
    seed: int = 0,
    workers: Workers = Workers.THREADS,
    worker_timeout_ns: int = 60 * 10**9,
) -> BackendSetup:
    """Return what a small backend is made from."""
    return BackendSetup(
        requests=[
            make_request(i, Prompt((i % 3, i % 2), 4), block_size=4, num_output_tokens=3)
            for i in range(num_requests)
        ],
        block_size=4,
        tier_blocks=tier_blocks,
        cost=LinearCost(step_ns=step_ns, block_bytes=1),
        host_link=LinkConfig(bytes_per_second=10**9, latency_ns=0, overhead_ns=0),
        num_ranks=num_ranks,
        faults=FaultConfig() if faults is None else faults,
        seed=seed,
        workers=workers,
        worker_timeout_ns=worker_timeout_ns,
    )


def transfer(op_id: int, source_ids: tuple[int, ...], target_ids: tuple[int, ...]) -> Transfer:
    """Return a transfer down."""
    return Transfer(op_id, GPU, HOST, source_ids, target_ids)


class Core:
    """A manager and a scheduler for the requests of a backend, as a replay has them."""

    def __init__(
        self, what: BackendSetup, *, timeout_ns: int | None = None, max_attempts: int = 16
    ) -> None:
        config = CacheConfig(block_size=what.block_size, tier_blocks=what.tier_blocks)
        self.manager = CacheManager(
            config, policy_factory("lru")[1], rng=Random(0), transfer_timeout_ns=timeout_ns
        )
        self.scheduler = Scheduler(
            self.manager,
            what.requests,
            SchedulerConfig(
                transfer_timeout_ns=timeout_ns,
                forward_timeout_ns=timeout_ns,
                max_attempts=max_attempts,
            ),
        )

    def run(self, backend: Backend) -> Scheduler:
        """Run all requests to their end."""
        run(self.scheduler, backend)
        self.manager.check()
        return self.scheduler

    def num_quarantined(self) -> int:
        """Check all counts; return how many blocks wait for an op that timed out."""
        self.manager.check()
        return sum(
            tier.pool.num_quarantined
            for tier in self.manager._cache.tiers  # noqa: SLF001  (nobody else needs it)
        )


def serve(what: BackendSetup, made: OpenBackend) -> Scheduler:
    """Run the core on a backend, as a replay does."""
    return Core(what).run(made.backend)


class Saboteur:
    """Passes everything on to a backend, and does something at a submission or a timeout.

    Attributes
    ----------
    outcomes
        Of all ops that were answered.
    """

    def __init__(
        self,
        inner: Backend,
        *,
        at_submit: int = -1,
        act: Callable[[], None] = lambda: None,
        at_timeout: Callable[[], None] = lambda: None,
    ) -> None:
        self._inner = inner
        self._num_left = at_submit
        self._act = act
        self._at_timeout = at_timeout
        self.outcomes: list[Outcome] = []

    def now(self) -> int:
        """Pass it on."""
        return self._inner.now()

    def submit(self, command: Command) -> None:
        """Act if it is time, before or after the command; pass it on."""
        self._inner.submit(command)
        if not self._num_left:
            self._act()
        self._num_left -= 1

    def wait(self, until: int | None) -> Sequence[Answer]:
        """Pass it on, and look at the answers."""
        answers = self._inner.wait(until)
        outcomes = [each.outcome for each in answers if isinstance(each, Completion)]
        self.outcomes += outcomes
        if Outcome.TIMED_OUT in outcomes:
            self._at_timeout()
        return answers

    def close(self) -> None:
        """Pass it on."""
        self._inner.close()


def send_signal(pid: int, number: signal.Signals) -> Callable[[], None]:
    """Return a function that sends a signal to a process, if it is still there."""

    def send() -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    return send
