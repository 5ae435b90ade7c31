"""Random stories for the whole engine, and what they are run on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kvsim.backends import paddle
from kvsim.backends.setup import BackendSetup, ForwardTime, Workers
from kvsim.backends.sim import SimBackend
from kvsim.config import CacheConfig, FaultConfig, LinkConfig, SchedulerConfig, SwapIn
from kvsim.core.attempt import BlockLayout
from kvsim.cost import LinearCost
from kvsim.testing import Prompt, make_request
from kvsim.types import PartialRule
from tests.property.clients import Story
from tests.property.scripted import ScriptedBackend
from tests.property.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from kvsim.backends.paddle.crew import WorkerCrew
    from kvsim.backends.setup import OpenBackend
    from kvsim.types import Request

COST = LinearCost(step_ns=3, token_ns=1, attention_ns=0, block_bytes=4, num_layers=2)
WALL_UNIT_NS = 50_000  # a story takes some milliseconds
WALL_COST = LinearCost(
    step_ns=3 * WALL_UNIT_NS, token_ns=WALL_UNIT_NS, attention_ns=0, block_bytes=4, num_layers=2
)
LINK = LinkConfig(bytes_per_second=10**9, latency_ns=2, overhead_ns=0)


def make_story(rng: Random, *, max_requests: int = 6, unit_ns: int = 1) -> Story:
    """Return a story on a GPU that holds hardly more than its largest request.

    All its times are multiples of `unit_ns`.
    """
    block_size = rng.randint(1, 3)
    partial = rng.choice(list(PartialRule))
    num_requests = rng.randint(1, max_requests)
    requests = make_requests(rng, num_requests, block_size, partial, unit_ns=unit_ns)
    most = max(BlockLayout(each, block_size).num_most_blocks for each in requests)
    gpu_blocks = max(1, most + rng.choice([0, 0, 1, 2, 3, 5, -1]))
    max_running = rng.randint(1, 4)
    return Story(
        cache=CacheConfig(
            block_size=block_size,
            tier_blocks=(gpu_blocks, rng.choice([0, 2, 4, 8, 16])),
            swap_batch_blocks=rng.randint(1, 3),
            low_watermark_blocks=rng.choice([0, 0, 1, 2]),
            keep_outputs=rng.choice([True, False]),
        ),
        scheduler=SchedulerConfig(
            token_budget=max_running + rng.choice([0, 1, 4, 10]),
            max_running=max_running,
            decode_reserve_blocks=rng.choice([0, 0, 1, 2]),
            grow_blocks=rng.randint(1, 2),
            max_blocks_per_request=rng.choice([None] * 7 + [max(1, most - 1)]),
            swap_in=rng.choice(list(SwapIn)),
            max_attempts=rng.choice([1, 3, 16, 16]),
            transfer_timeout_ns=rng.choice([None, None, 15 * unit_ns]),
            forward_timeout_ns=rng.choice([None, None, 40 * unit_ns]),
        ),
        requests=requests,
        policy=rng.choice(["lru", "lru", "fifo", "belady"]),
        cancel_percent=rng.choice([0, 0, 0, 5]),
        audit_percent=10,
    )


def make_requests(
    rng: Random, num_requests: int, block_size: int, partial: PartialRule, *, unit_ns: int
) -> tuple[Request, ...]:
    """Return requests in order of arrival; they share prefixes, and come again as a whole."""
    requests: list[Request] = []
    prompts: list[Prompt] = []
    at = 0
    waits_ns = rng.choice([[0, 0, 1, 5], [0, 1, 5, 30]])
    for request_id in range(num_requests):
        at += rng.choice(waits_ns) * unit_ns
        if prompts and rng.randrange(2):
            prompt = rng.choice(prompts)
        else:
            letters = tuple(rng.choice([0, 0, 1]) for _ in range(rng.randint(1, 5)))
            prompt = Prompt(letters, rng.randint(1, block_size))
            prompts.append(prompt)
        request = make_request(
            request_id,
            prompt,
            block_size=block_size,
            partial=partial,
            num_output_tokens=rng.choice([1, 2, 3, 3 * block_size + 1, 5 * block_size]),
            arrived_at=at,
        )
        if not rng.randrange(8):
            request = replace(request, cancelled_at=at + rng.choice([0, 3, 20]) * unit_ns)
        requests.append(request)
    return tuple(requests)


def run_scripted(rng: Random, *, max_requests: int = 6) -> Witness:
    """Run a story on a backend that ends ops in any order and any way; return the witness."""
    story = make_story(rng, max_requests=max_requests)
    backend = ScriptedBackend(
        rng,
        trouble_percent=rng.choice([0, 0, 3, 20]),
        can_cancel_unstarted=rng.choice([False, False, True]),
    )
    witness = Witness(story, backend, rng)
    witness.run()
    return witness


def run_simulated(rng: Random, *, max_requests: int = 6) -> Witness:
    """Run a story on the simulator with seeded faults; return the witness."""
    story = make_story(rng, max_requests=max_requests)
    rate = rng.choice([0.0, 0.0, 0.02, 0.15])
    backend = SimBackend(
        COST,
        links=LINK,
        num_ranks=rng.randint(1, 2),
        faults=FaultConfig(
            fail_rate=rate, delay_rate=rate, hang_rate=rate, delay_ns=7, settle_ns=9
        ),
        seed=rng.randrange(1000),
    )
    witness = Witness(story, backend, rng)
    witness.run()
    return witness


def run_on_threads(rng: Random, *, max_requests: int = 6) -> Witness:
    """Run a story on real tensors with seeded faults; return the witness.

    What the witness believes of the memory and what is in it are two accounts of the same run.
    """
    return _run_on_tensors(rng, max_requests, Workers.THREADS, paddle.open_backend)


def run_on_processes(rng: Random, *, crew: WorkerCrew, max_requests: int = 6) -> Witness:
    """Run a story on real tensors in worker processes of a crew; return the witness."""
    return _run_on_tensors(
        rng, max_requests, Workers.PROCESSES, partial(paddle.open_backend, crew=crew)
    )


def _run_on_tensors(
    rng: Random,
    max_requests: int,
    workers: Workers,
    open_it: Callable[[BackendSetup], OpenBackend],
) -> Witness:
    story = make_story(rng, max_requests=max_requests, unit_ns=WALL_UNIT_NS)
    rate = rng.choice([0.0, 0.0, 0.02, 0.15])
    setup = BackendSetup(
        requests=story.requests,
        block_size=story.cache.block_size,
        tier_blocks=story.cache.tier_blocks,
        cost=WALL_COST,
        host_link=LINK,
        num_ranks=rng.randint(1, 2),
        faults=FaultConfig(
            fail_rate=rate,
            delay_rate=rate,
            hang_rate=rate,
            delay_ns=7 * WALL_UNIT_NS,
            settle_ns=9 * WALL_UNIT_NS,
        ),
        seed=rng.randrange(1000),
        forward=rng.choice(list(ForwardTime)),
        workers=workers,
    )
    opened = open_it(setup)
    witness = Witness(story, opened.backend, rng)
    try:
        witness.run()
    finally:
        opened.backend.close()
    assert opened.tensors is not None
    assert opened.tensors()["wrong_bytes"] == 0, opened.notes()
    return witness
