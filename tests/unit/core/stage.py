"""Short ways to tell a story to the scheduler: requests, an engine on the simulator, or by hand.

A block is four tokens unless told otherwise, and equal tokens are shared. On the simulator a token
takes 1 ns and a step 10 ns more; a block takes 10 ns over the link.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from kvsim.backends.sim import SimBackend
from kvsim.config import CacheConfig, LinkConfig, SchedulerConfig, SwapIn
from kvsim.core.engine import run
from kvsim.core.manager import CacheManager
from kvsim.core.ops import Cancel, Completion, Forward, Outcome, Settled, Transfer
from kvsim.core.scheduler import Scheduler
from kvsim.cost import LinearCost
from kvsim.policies import policy_factory
from kvsim.testing import EventMirror
from kvsim.types import Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.config import FaultConfig
    from kvsim.core.ops import Answer, Command
    from kvsim.core.sequence import Sequence as Record
    from kvsim.cost import CostModel
    from kvsim.events import Event
    from kvsim.types import OpId, RequestId

COST = LinearCost(step_ns=10, token_ns=1, block_bytes=10, num_layers=5)
ONE_BYTE_A_NS = LinkConfig(bytes_per_second=10**9, latency_ns=0, overhead_ns=0)
OVERLAP = SchedulerConfig(decode_reserve_blocks=0)
WAIT = SchedulerConfig(decode_reserve_blocks=0, swap_in=SwapIn.WAIT)


def ask(
    request_id: RequestId,
    tokens: Iterable[int],
    *,
    num_output_tokens: int = 1,
    at: int = 0,
    cancelled_at: int | None = None,
    block_size: int = 4,
) -> Request:
    """Return a request whose prompt is `tokens`; the key of a block is all tokens up to its end."""
    prompt = tuple(tokens)
    ends = range(block_size, len(prompt) + 1, block_size)
    return Request(
        request_id=request_id,
        arrived_at=at,
        block_keys=[prompt[:end] for end in ends],
        num_input_tokens=len(prompt),
        num_output_tokens=num_output_tokens,
        cancelled_at=cancelled_at,
    )


class Turn(NamedTuple):
    """One turn of the loop."""

    now: int
    commands: Sequence[Command]
    answers: Sequence[Answer]


class Engine:
    """A cache manager and its scheduler, without a backend.

    Attributes
    ----------
    turns
        What an observer of the loop saw.
    """

    def __init__(
        self, requests: Iterable[Request], cache: CacheConfig, scheduler: SchedulerConfig
    ) -> None:
        self.mirror = EventMirror(len(cache.tier_blocks))
        _, make, _ = policy_factory("lru")
        self.manager = CacheManager(
            cache,
            make,
            rng=Random(0),
            transfer_timeout_ns=scheduler.transfer_timeout_ns,
            sink=self.mirror,
        )
        self.scheduler = Scheduler(self.manager, requests, scheduler, sink=self.mirror)
        self.turns: list[Turn] = []
        self.open: dict[OpId, Forward | Transfer] = {}

    # -- on a backend

    def play(
        self,
        *,
        cost: CostModel = COST,
        link: LinkConfig = ONE_BYTE_A_NS,
        faults: FaultConfig | None = None,
        seed: int = 0,
    ) -> Engine:
        """Run to the end on the simulator."""
        run(
            self.scheduler,
            SimBackend(cost, links=link, faults=faults, seed=seed),
            observer=self,
        )
        self.manager.check()
        return self

    def turn(self, now: int, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
        """Take one turn."""
        self.turns.append(Turn(now, commands, answers))

    # -- by hand

    def step(self, now: int = 0) -> list[Command]:
        """Let the scheduler decide."""
        commands = self.scheduler.step(now)
        self.turns.append(Turn(now, commands, ()))
        self.open |= {op.op_id: op for op in commands if not isinstance(op, Cancel)}
        self.manager.check()
        return commands

    def answer(
        self,
        op: Forward | Transfer,
        outcome: Outcome = Outcome.DONE,
        *,
        at: int = 0,
        steps_done: int | None = None,
    ) -> None:
        """Let an op end; a Forward that is DONE has made all its steps unless told otherwise."""
        if steps_done is None:
            is_run = isinstance(op, Forward) and outcome is Outcome.DONE
            steps_done = op.num_steps if is_run and isinstance(op, Forward) else 0
        if outcome is not Outcome.TIMED_OUT:
            del self.open[op.op_id]
        self.scheduler.settle(
            Completion(
                op_id=op.op_id,
                outcome=outcome,
                started_at=at,
                finished_at=at,
                steps_done=steps_done,
            )
        )
        self.manager.check()

    def rest(self, op: Forward | Transfer, *, at: int = 0) -> None:
        """Let a timed-out op settle."""
        del self.open[op.op_id]
        self.scheduler.settle(Settled(op_id=op.op_id, finished_at=at))
        self.manager.check()

    def finish_all(self, now: int = 0) -> None:
        """Go on by hand until no work is left, every op DONE at once, oldest first."""
        while self.scheduler.has_work():
            wakeup_at = self.scheduler.next_wakeup_at()
            if not self.step(now) and not self.open:
                assert wakeup_at is not None, "nothing will ever happen"
                now = wakeup_at
            for op in sorted(self.open.values(), key=lambda each: isinstance(each, Forward)):
                self.answer(op, at=now)

    # -- what came of it

    @property
    def commands(self) -> list[Command]:
        """All commands, in order."""
        return [command for turn in self.turns for command in turn.commands]

    @property
    def forwards(self) -> list[Forward]:
        """All Forwards, in order."""
        return [command for command in self.commands if isinstance(command, Forward)]

    @property
    def transfers(self) -> list[Transfer]:
        """All Transfers, in order."""
        return [command for command in self.commands if isinstance(command, Transfer)]

    @property
    def answers(self) -> list[Answer]:
        """All answers of the backend, in order."""
        return [answer for turn in self.turns for answer in turn.answers]

    @property
    def events(self) -> list[Event]:
        """All events, in order."""
        return self.mirror.events

    @property
    def records(self) -> dict[RequestId, Record]:
        """The requests that have ended, by id, in the order of ids."""
        records = {record.request.request_id: record for record in self.scheduler.ended}
        return dict(sorted(records.items()))

    @property
    def statuses(self) -> dict[RequestId, str]:
        """How each request ended, by id."""
        return {request_id: str(record.status) for request_id, record in self.records.items()}

    @property
    def forward(self) -> Forward:
        """The Forward that is under way (by hand)."""
        (forward,) = (op for op in self.open.values() if isinstance(op, Forward))
        return forward

    @property
    def transfer(self) -> Transfer:
        """The one Transfer that is under way (by hand)."""
        (transfer,) = (op for op in self.open.values() if isinstance(op, Transfer))
        return transfer

    def slices(self) -> list[tuple[RequestId, int, int]]:
        """Return (request, first token, tokens) of every piece of a prompt that was computed."""
        return [
            (piece.request_id, piece.first_token, piece.num_tokens)
            for forward in self.forwards
            for piece in forward.prefill
        ]


def engine(
    *requests: Request,
    gpu: int,
    cpu: int = 0,
    scheduler: SchedulerConfig | None = None,
    swap_batch: int = 1,
    keep_outputs: bool = True,
) -> Engine:
    """Return an engine of `gpu` and `cpu` blocks, of four tokens each.

    It writes back only when there is need, and reserves nothing for decoding unless told so.
    """
    cache = CacheConfig(
        block_size=4,
        tier_blocks=(gpu, cpu),
        swap_batch_blocks=swap_batch,
        low_watermark_blocks=0,
        keep_outputs=keep_outputs,
    )
    if scheduler is None:
        scheduler = SchedulerConfig(decode_reserve_blocks=0)
    return Engine(requests, cache, scheduler)


def served(scheduler: SchedulerConfig = OVERLAP) -> Engine:
    """Return an engine whose request 2 is about to copy one block up: GPU 2, CPU 8 blocks.

    Request 0 (tokens 1..8) has been served and was pushed to the CPU by request 1 (21..28), which
    has been written back in its turn. Request 2 (1..5) has hit block 0 there.
    """
    stage = engine(
        ask(0, range(1, 9)),
        ask(1, range(21, 29), at=100),
        ask(2, range(1, 6), num_output_tokens=3, at=200),
        gpu=2,
        cpu=8,
        scheduler=scheduler,
    )
    stage.step(0)
    stage.answer(stage.forward)
    for now in (100, 200):
        stage.step(now)
        stage.answer(stage.transfer, at=now)  # the last request's blocks, on their way down
        if now == 100:
            stage.step(now)
            stage.answer(stage.forward, at=now)
    stage.step(200)
    return stage


def loading_beside_two(*, num_output_tokens: int) -> Engine:
    """Return an engine where request 2 loads a block, and 3 and 4 are being computed; GPU 4."""
    stage = engine(
        ask(0, range(1, 5)),
        ask(1, range(20, 36), at=100),
        ask(2, range(1, 6), at=200),
        ask(3, range(50, 54), num_output_tokens=num_output_tokens, at=200),
        ask(4, range(60, 64), num_output_tokens=num_output_tokens, at=200),
        gpu=4,
        cpu=8,
        swap_batch=4,
        scheduler=WAIT,
    )
    stage.step(0)
    stage.answer(stage.forward)
    stage.step(100)
    stage.answer(stage.transfer, at=100)  # the block of 0, on its way down
    stage.step(100)
    stage.answer(stage.forward, at=100)
    stage.step(200)
    stage.answer(stage.transfer, at=200)  # the blocks of 1
    stage.step(200)
    return stage
