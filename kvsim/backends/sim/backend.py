"""The simulator's backend: virtual time that jumps from one planned instant to the next."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from kvsim.backends.faults import plan_faults
from kvsim.backends.sim.fabric import Fabric
from kvsim.backends.sim.forwards import ForwardOp, Instance
from kvsim.backends.sim.ledger import Clock, Ledger
from kvsim.backends.sim.transfers import LinkTable, TransferOp
from kvsim.core.ops import Forward, Transfer
from kvsim.errors import ConfigError, MisuseError

if TYPE_CHECKING:
    from kvsim.backends.sim.fabric import FabricSetup
    from kvsim.backends.sim.network import Hop
    from kvsim.backends.sim.transfers import Links
    from kvsim.config import FaultConfig
    from kvsim.core.ops import Answer, Command
    from kvsim.cost import CostModel

_BY_OP_ID: Final = attrgetter("op_id")


class SimBackend:
    """Simulates when ops end; a `kvsim.core.ports.Backend`. Time starts at 0.

    Parameters
    ----------
    cost
        How long steps take and how many bytes copies move; of several instances, one for each.
    links
        Between the tiers of an instance and of two: one configuration for all pairs of tiers, or
        one for each (source tier, target tier); a pair named one way only serves both ways.
    num_ranks
        Ranks of each instance. They work in step, so they matter to faults only.
    faults, seed
        What goes wrong, and the seed that decides where; None: nothing.
    fabric
        What lies between the instances, if their ranks share cards; without it each ordered pair
        of instances has a link of its own.
    record_layers
        Whether completions that are DONE carry `layers_finished_at` (of a run of several steps,
        its last). Changes nothing else.

    Raises
    ------
    ConfigError
        If `num_ranks` is not positive, or the links contradict themselves.

    Notes
    -----
    An op that ends in the instant of its deadline has not missed it. One that had not started by
    its deadline never does, and settles in the same instant. A rank that hangs hears no Cancel.
    A Cancel after TIMED_OUT is ignored. `steps_done` is 0 unless the outcome is DONE.
    """

    __slots__ = (
        "_clock",
        "_costs",
        "_fabric",
        "_faults",
        "_instances",
        "_is_closed",
        "_ledger",
        "_links",
        "_records_layers",
    )

    def __init__(
        self,
        cost: CostModel | Sequence[CostModel],
        *,
        links: Links,
        fabric: FabricSetup | None = None,
        num_ranks: int = 1,
        faults: FaultConfig | None = None,
        seed: int = 0,
        record_layers: bool = False,
    ) -> None:
        if num_ranks < 1:
            raise ConfigError(f"num_ranks must be at least 1, not {num_ranks!r}")
        self._costs = cost
        self._clock = Clock()
        self._ledger = Ledger(self._clock)
        self._fabric: Fabric | None = None
        if fabric is not None:
            self._fabric = Fabric(fabric, self._clock, self._ledger, records_layers=record_layers)
        self._links = LinkTable(
            links,
            self._cost_of(0),
            self._clock,
            self._ledger,
            records_layers=record_layers,
            fabric=self._fabric,
        )
        self._instances: dict[int, Instance] = {}
        self._faults = plan_faults(faults, seed=seed, num_ranks=num_ranks)
        self._records_layers = record_layers
        self._is_closed = False

    def now(self) -> int:
        """Return the virtual time in nanoseconds; it changes inside `wait` only."""
        return self._clock.now

    @property
    def wires(self) -> Sequence[Hop]:
        """The wires between instances that have been used, and how many bytes passed each."""
        return () if self._fabric is None else self._fabric.hops

    def submit(self, command: Command) -> None:
        """Take a command, now.

        Raises
        ------
        MisuseError
            If the backend is closed, the op id is open already, or the op waits for one that was
            not submitted before it.
        ConfigError
            If no link is configured for a Transfer.
        """
        if self._is_closed:
            raise MisuseError("the backend is closed and takes no commands")
        faults = self._faults
        if type(command) is Forward:
            instance = self._instances.get(command.instance) or self._instance(command.instance)
            fault = None if faults is None else faults.fault(command)
            forward = ForwardOp(command, instance, fault)
            self._ledger.enroll(forward)
            instance.submit(forward)
        elif type(command) is Transfer:
            traffic = self._links.traffic(command.source, command.target)
            cost = self._cost_of(command.source.instance)
            num_bytes = cost.transfer_bytes(len(command.source_ids))
            fault = None if faults is None else faults.fault(command)
            transfer = TransferOp(command, num_bytes, traffic, fault)
            self._ledger.enroll(transfer)
            transfer.submit()
        else:
            op = self._ledger.open_ops.get(command.op_id)
            if op is not None and not op.is_timed_out:
                op.cancel()

    def wait(self, until: int | None) -> Sequence[Answer]:
        """Jump to the next instant with an answer, at most to `until`; return all its answers."""
        clock = self._clock
        plans, answers = clock.plans, self._ledger.answers
        while plans:
            when, _, fire, subject, ticket = plans[0]
            if when > clock.now and (answers or (until is not None and when > until)):
                break
            heappop(plans)
            if subject.ticket == ticket:
                clock.now = when
                fire()
        if answers:
            self._ledger.answers = []
            if len(answers) > 1:
                answers.sort(key=_BY_OP_ID)
            return answers
        if until is not None and until > clock.now:
            clock.now = until
        return ()

    def close(self) -> None:
        """Forget all that is under way. Idempotent."""
        self._is_closed = True
        self._clock.plans.clear()
        self._ledger.open_ops.clear()
        self._ledger.answers.clear()
        self._instances.clear()

    def _instance(self, instance_id: int) -> Instance:
        instance = self._instances[instance_id] = Instance(
            self._cost_of(instance_id),
            self._clock,
            self._ledger,
            records_layers=self._records_layers,
        )
        return instance

    def _cost_of(self, instance_id: int) -> CostModel:
        return self._costs[instance_id] if isinstance(self._costs, Sequence) else self._costs
