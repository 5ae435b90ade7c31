"""Short ways to tell a story to a split scheduler, on the simulator or by hand.

Blocks of four tokens. On the simulator a token takes 1 ns, a step nothing more, and a block 10 ns
over the link between instances, in five layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.backends.sim import SimBackend
from kvsim.building import split_scheduler
from kvsim.config import CacheConfig, LinkConfig, Role, SchedulerConfig, SplitConfig
from kvsim.core.engine import run
from kvsim.core.ops import Cancel, Completion, Forward, Outcome, Settled, Transfer
from kvsim.cost import LinearCost
from kvsim.policies import policy_factory
from kvsim.testing import EventMirror

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.handoff import Handoff, Instance
    from kvsim.core.ops import Answer, Command
    from kvsim.cost import CostModel
    from kvsim.types import OpId, Request, RequestId

PREFILL, DECODE, MIXED = Role.PREFILL, Role.DECODE, Role.MIXED
COST = LinearCost(step_ns=0, token_ns=1, attention_ns=0, block_bytes=10, num_layers=5)
ONE_BYTE_A_NS = LinkConfig(bytes_per_second=10**9, latency_ns=0, overhead_ns=0)


class Cluster:
    """Instances and the scheduler above them, without a backend.

    Attributes
    ----------
    commands, answers
        All so far, in order.
    open
        Ops that have not come to rest.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        *,
        roles: Sequence[Role] = (PREFILL, DECODE),
        gpu: int = 20,
        cpu: int = 0,
        scheduler: SchedulerConfig | None = None,
        split: SplitConfig | None = None,
    ) -> None:
        _, make, _ = policy_factory("lru")
        self.mirrors = [EventMirror(2) for _ in roles]
        self.scheduler = split_scheduler(
            roles,
            requests,
            cache=CacheConfig(
                block_size=4, tier_blocks=(gpu, cpu), swap_batch_blocks=1, low_watermark_blocks=0
            ),
            scheduler=scheduler or SchedulerConfig(decode_reserve_blocks=0),
            split=split or SplitConfig(),
            new_policy=make,
            sink_of=self.mirrors.__getitem__,
        )
        self.commands: list[Command] = []
        self.answers: list[Answer] = []
        self.open: dict[OpId, Forward | Transfer] = {}

    # -- on the simulator

    def play(self, *, cost: CostModel = COST, link: LinkConfig = ONE_BYTE_A_NS) -> Cluster:
        """Run to the end on the simulator."""
        run(self.scheduler, SimBackend(cost, links=link, record_layers=True), observer=self)
        self.check()
        return self

    def turn(self, now: int, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
        """Take one turn."""
        self.commands += commands
        self.answers += answers

    # -- by hand

    def step(self, now: int = 0) -> list[Command]:
        """Let the scheduler decide."""
        commands = self.scheduler.step(now)
        self.commands += commands
        self.open |= {op.op_id: op for op in commands if not isinstance(op, Cancel)}
        self.check()
        return commands

    def answer(
        self,
        op: Forward | Transfer,
        outcome: Outcome = Outcome.DONE,
        *,
        at: int = 0,
        reason: str = "",
    ) -> None:
        """Let an op end; a Forward that is DONE has made all its steps."""
        is_run = isinstance(op, Forward) and outcome is Outcome.DONE
        if outcome is not Outcome.TIMED_OUT:
            del self.open[op.op_id]
        self.scheduler.settle(
            Completion(
                op_id=op.op_id,
                outcome=outcome,
                started_at=at,
                finished_at=at,
                steps_done=op.num_steps if is_run and isinstance(op, Forward) else 0,
                reason=reason,
            )
        )
        self.check()

    def rest(self, op: Forward | Transfer, *, at: int = 0) -> None:
        """Let a timed-out op settle."""
        del self.open[op.op_id]
        self.scheduler.settle(Settled(op_id=op.op_id, finished_at=at))
        self.check()

    def finish_all(self, now: int = 0) -> None:
        """Go on by hand until no work is left, every op DONE at once, oldest first."""
        while self.scheduler.has_work():
            wakeup_at = self.scheduler.next_wakeup_at()
            if not self.step(now) and not self.open:
                assert wakeup_at is not None, "nothing will ever happen"
                now = wakeup_at
            for op in sorted(self.open.values(), key=lambda each: each.op_id):
                self.answer(op, at=now)

    def check(self) -> None:
        """Check the invariants of every instance."""
        for number in range(len(self.mirrors)):
            self.instance(number).manager.check()

    # -- what came of it

    def instance(self, number: int) -> Instance:
        """Return an instance by its number."""
        return self.scheduler.instances[number]

    def free(self, number: int) -> int:
        """Return the free GPU blocks of an instance."""
        return self.instance(number).manager.num_free_blocks()

    def room(self, number: int) -> int:
        """Return the GPU blocks of an instance that are free or can be evicted."""
        manager = self.instance(number).manager
        return manager.num_free_blocks() + manager.num_evictable_blocks

    @property
    def forwards(self) -> list[Forward]:
        """All Forwards, in order."""
        return [command for command in self.commands if isinstance(command, Forward)]

    @property
    def sends(self) -> list[Transfer]:
        """All Transfers between instances, in order."""
        ops = [command for command in self.commands if isinstance(command, Transfer)]
        return [op for op in ops if op.source.instance != op.target.instance]

    def open_sends(self) -> list[Transfer]:
        """Return the sends that have not come to rest (by hand)."""
        return [op for op in self.sends if op.op_id in self.open]

    def open_forward(self, number: int) -> Forward:
        """Return the Forward that an instance is running (by hand)."""
        ops = [op for op in self.open.values() if isinstance(op, Forward)]
        (forward,) = (op for op in ops if op.instance == number)
        return forward

    @property
    def ended(self) -> dict[RequestId, Handoff]:
        """The requests that have ended, by id."""
        ended = {each.request.request_id: each for each in self.scheduler.ended}
        return dict(sorted(ended.items()))

    @property
    def statuses(self) -> dict[RequestId, str]:
        """How each request ended, by id."""
        return {request_id: str(each.status) for request_id, each in self.ended.items()}

    @property
    def errors(self) -> list[tuple[RequestId, int, str]]:
        """(request, attempt, error) of every attempt that failed."""
        return [(f.request_id, f.attempt, str(f.error)) for f in self.scheduler.failures]
