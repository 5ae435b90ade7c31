"""Random stories for prefill and decode instances, and what they are run on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.backends.sim import SimBackend
from kvsim.config import (
    CacheConfig,
    FaultConfig,
    OnSendFailure,
    Role,
    Routing,
    SchedulerConfig,
    SendMode,
    SplitConfig,
    SwapIn,
)
from kvsim.core.attempt import BlockLayout
from kvsim.types import PartialRule
from tests.property.scheduler_machine import COST, LINK, make_requests
from tests.property.scripted import ScriptedBackend
from tests.property.split_witness import LayerWitness, SplitStory, SplitWitness

if TYPE_CHECKING:
    from random import Random

ROLES = [
    (Role.PREFILL, Role.DECODE),
    (Role.PREFILL, Role.DECODE),
    (Role.PREFILL, Role.PREFILL, Role.DECODE),
    (Role.PREFILL, Role.DECODE, Role.DECODE),
    (Role.PREFILL, Role.PREFILL, Role.DECODE, Role.DECODE),
    (Role.DECODE, Role.MIXED, Role.PREFILL),
    (Role.MIXED, Role.MIXED),
]


def make_split_story(rng: Random, *, max_requests: int = 6) -> SplitStory:
    """Return a story on instances that hold hardly more than the largest request."""
    block_size = rng.randint(1, 3)
    partial = rng.choice(list(PartialRule))
    requests = make_requests(rng, rng.randint(1, max_requests), block_size, partial, unit_ns=1)
    most = max(BlockLayout(each, block_size).num_most_blocks for each in requests)
    roles = rng.choice(ROLES)
    keep_outputs = rng.choice([True, False])
    caches = tuple(
        CacheConfig(
            block_size=block_size,
            tier_blocks=(
                max(1, most + rng.choice([0, 0, 1, 2, 3, 5, 9, -1])),
                rng.choice([0, 0, 2, 4, 8]),
            ),
            swap_batch_blocks=rng.randint(1, 3),
            low_watermark_blocks=rng.choice([0, 0, 1, 2]),
            keep_outputs=keep_outputs,
        )
        for _ in roles
    )
    max_running = rng.randint(1, 4)
    return SplitStory(
        roles=roles,
        caches=caches,
        scheduler=SchedulerConfig(
            token_budget=max_running + rng.choice([0, 1, 4, 10]),
            max_running=max_running,
            decode_reserve_blocks=rng.choice([0, 0, 1, 2]),
            grow_blocks=rng.randint(1, 2),
            swap_in=rng.choice(list(SwapIn)),
            max_attempts=rng.choice([1, 3, 16]),
            transfer_timeout_ns=rng.choice([None, None, 15]),
            forward_timeout_ns=rng.choice([None, None, 40]),
        ),
        split=SplitConfig(
            send=rng.choice([SendMode.LAYERWISE, SendMode.LAYERWISE, SendMode.AT_END]),
            on_send_failure=rng.choice([*[OnSendFailure.RECOMPUTE] * 3, OnSendFailure.FAIL]),
            max_attempts=rng.choice([1, 3, 16, 16]),
            send_timeout_ns=rng.choice([None, None, 20]),
            reserve_timeout_ns=rng.choice([None, None, 60]),
            max_receiving=rng.choice([None, None, 1, 2]),
            routing=rng.choice(list(Routing)),
        ),
        requests=requests,
        policy=rng.choice(["lru", "lru", "fifo"]),
        cancel_percent=rng.choice([0, 0, 0, 5]),
    )


def run_split_scripted(rng: Random, *, max_requests: int = 6) -> SplitWitness:
    """Run a story on a backend that ends ops in any order and any way; return the witness."""
    story = make_split_story(rng, max_requests=max_requests)
    dies_at = {}
    if not rng.randrange(6):
        dies_at[rng.randrange(len(story.roles))] = rng.randrange(60)
    backend = ScriptedBackend(
        rng,
        trouble_percent=rng.choice([0, 0, 3, 20]),
        can_cancel_unstarted=rng.choice([False, False, True]),
        dies_at=dies_at,
    )
    witness = SplitWitness(story, backend, rng)
    witness.run()
    return witness


def run_split_simulated(rng: Random, *, max_requests: int = 6) -> SplitWitness:
    """Run a story on the simulator with seeded faults; return the witness."""
    story = make_split_story(rng, max_requests=max_requests)
    rate = rng.choice([0.0, 0.0, 0.02, 0.15])
    backend = SimBackend(
        COST,
        links=LINK,
        num_ranks=rng.randint(1, 2),
        faults=FaultConfig(
            fail_rate=rate, delay_rate=rate, hang_rate=rate, delay_ns=7, settle_ns=9
        ),
        seed=rng.randrange(1000),
        record_layers=True,
    )
    witness = LayerWitness(story, backend, rng)
    witness.run()
    return witness
