"""Seeded faults: what goes wrong with an op depends on the seed, its id and the rank alone.

So every backend that injects faults injects the same ones, in whatever order it runs its ops.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from kvsim.core.ops import Forward

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.config import FaultConfig
    from kvsim.core.ops import Transfer


class Fault(NamedTuple):
    """What goes wrong with one op: it fails, is late, or never answers, on one rank or several.

    `reason` is empty unless the op fails. `settle_ns` is None unless it hangs; then it comes to
    rest that long after its deadline.
    """

    delay_ns: int
    reason: str
    settle_ns: int | None


class FaultPlan:
    """Decides the fault of each op, in whatever order it is asked."""

    __slots__ = ("_config", "_num_ranks", "_seed")

    def __init__(self, config: FaultConfig, *, seed: int, num_ranks: int) -> None:
        self._config = config
        self._seed = seed
        self._num_ranks = num_ranks

    def fault(self, command: Forward | Transfer) -> Fault | None:
        """Return what goes wrong with an op on all ranks together, if anything.

        A rank that hangs makes the whole op hang. Otherwise a rank that fails makes it fail, and
        one that is late makes it late.
        """
        return self._fault(command, range(self._num_ranks))

    def rank_faults(self, command: Forward | Transfer) -> tuple[Fault | None, ...]:
        """Return what goes wrong with an op on each rank; empty if nothing does."""
        faults = tuple(self._fault(command, (rank,)) for rank in range(self._num_ranks))
        return faults if any(faults) else ()

    def _fault(self, command: Forward | Transfer, ranks: Iterable[int]) -> Fault | None:
        """Draw once for each rank. What hangs without a deadline fails: nothing would end it."""
        config = self._config
        if ("forward" if isinstance(command, Forward) else "transfer") not in config.kinds:
            return None
        delay_ns, reason, hung_rank = 0, "", None
        for rank in ranks:
            # A text seeds by SHA-512, so it gives the same whatever the hash seed.
            draw = Random(f"{self._seed}:{command.op_id}:{rank}").random()
            if draw < config.fail_rate:
                reason = reason or f"rank {rank} failed (injected fault)"
            elif draw < config.fail_rate + config.hang_rate:
                hung_rank = rank if hung_rank is None else hung_rank
            elif draw < config.fail_rate + config.hang_rate + config.delay_rate:
                delay_ns = config.delay_ns
        if hung_rank is not None and command.deadline_at is None:
            reason = reason or f"rank {hung_rank} hung and the op has no deadline (injected fault)"
            hung_rank = None
        if hung_rank is None and not reason and not delay_ns:
            return None
        return Fault(delay_ns, reason, None if hung_rank is None else config.settle_ns)


def plan_faults(config: FaultConfig | None, *, seed: int, num_ranks: int) -> FaultPlan | None:
    """Return the plan, or None if nothing can go wrong: such a run pays nothing for faults."""
    if config is None or not (config.fail_rate or config.delay_rate or config.hang_rate):
        return None
    return FaultPlan(config, seed=seed, num_ranks=num_ranks)
