"""Words for short stories about a cache manager; each step checks all invariants.

A letter stands for a block's content: equal leading letters are a shared prefix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.config import CacheConfig, TierInclusion, WritePolicy
from kvsim.core.ops import Outcome
from kvsim.testing import Prompt
from tests.property.driver import Driver

if TYPE_CHECKING:
    from tests.property.client import Client
    from tests.property.memory import OpenOp


def p(letters: str, *, tail: int = 1) -> Prompt:
    """Return a prompt with one block a letter, `tail` tokens in the last one."""
    return Prompt(tuple(map(int, letters)), tail)


def tokens(first: int, last: int, *more: int, block_size: int = 4) -> Prompt:
    """Return the prompt of token ids `first` to `last`, then of `more`, a block each with a letter.

    `more` must begin a block of its own.
    """
    letters = range(first, last + 1, block_size)
    num_tail = len(more) if more else (last - first) % block_size + 1
    return Prompt((*letters, *more[:1]), num_tail)


def new_driver(
    gpu: int,
    cpu: int = 0,
    disk: int = 0,
    *,
    mode: str = "exclusive",
    hits: int | None = None,
    share_in_flight: bool = True,
    block_size: int = 1,
    policy: str = "lru",
    watermark: int = 0,
    batch: int = 1,
) -> Driver:
    """Return a driver that, by default, writes back exactly what it must.

    `mode` is "exclusive", or the write policy of inclusive tiers; `hits` are those after which a
    block is written through.
    """
    is_exclusive = mode == "exclusive"
    config = CacheConfig(
        block_size=block_size,
        tier_blocks=(gpu, cpu, disk) if disk else (gpu, cpu),
        tier_inclusion=TierInclusion.EXCLUSIVE if is_exclusive else TierInclusion.INCLUSIVE,
        write_policy=WritePolicy.BACK if is_exclusive else WritePolicy(mode),
        write_through_hits=hits,
        share_in_flight=share_in_flight,
        swap_batch_blocks=batch,
        low_watermark_blocks=watermark,
    )
    return Driver(config, policy=policy)


def served(driver: Driver, prompt: Prompt) -> None:
    """Take a request from arrival to end, finishing every op that it takes."""
    client = driver.submit(prompt, num_output_tokens=1)
    while not driver.admit(client):
        driver.drain()
    answer(driver, issued(driver, client))
    driver.end(client)
    driver.check()


def push_down(driver: Driver) -> None:
    """Empty the GPU tier into the CPU tier, by a request as large as the GPU tier."""
    client = driver.submit(Prompt((9,) * driver.config.tier_blocks[0], driver.config.block_size))
    while not driver.admit(client):
        driver.drain()
    driver.end(client)
    driver.check()


def admitted(driver: Driver, prompt: Prompt, *, num_output_tokens: int = 1) -> Client:
    """Return a client that has its blocks."""
    client = driver.submit(prompt, num_output_tokens=num_output_tokens)
    assert driver.admit(client)
    driver.check()
    return client


def refused(driver: Driver, prompt: Prompt) -> Client:
    """Return a client that does not get its blocks now."""
    client = driver.submit(prompt)
    assert not driver.admit(client)
    driver.check()
    return client


def issued(driver: Driver, client: Client, num_tokens: int = 99) -> OpenOp:
    """Return a running Forward for one client; what it waits for is still open."""
    assert driver.join(client, num_tokens)
    op = driver.issue()
    driver.check()
    return op


def last_transfer(driver: Driver) -> OpenOp:
    """Return the Transfer issued last."""
    return [op for op in driver.answerable if op.transfer is not None][-1]


def answer(driver: Driver, op: OpenOp, outcome: Outcome = Outcome.DONE) -> None:
    """Let an op end, after those that it waits for."""
    if outcome is Outcome.DONE:
        for before in op.after:
            if before in driver.memory.open:
                answer(driver, driver.memory.open[before])
    assert driver.answer(op, outcome)
    driver.check()


def matched(driver: Driver, prompt: Prompt) -> tuple[int, ...]:
    """Return the tier of each leading block of the prompt that is cached; 0 is the GPU."""
    client = driver.submit(prompt)
    driver.waiting.remove(client)
    return driver.manager.match(client.request.block_keys)


def readable(driver: Driver, tier: int) -> set[tuple[int, ...]]:
    """Return what is readable in a tier, each block by the letters up to it."""
    keys = driver.mirror.readable[tier]
    return {key[0] for key in keys if isinstance(key, tuple)}
