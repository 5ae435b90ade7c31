"""What a policy or a backend does wrong is said, and nothing is lost silently. One-token blocks."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from kvsim.config import CacheConfig, SchedulerConfig
from kvsim.core.instant import replay_instantly
from kvsim.core.manager import CacheManager
from kvsim.core.ops import Settled
from kvsim.core.scheduler import Scheduler
from kvsim.errors import MisuseError, PolicyError
from kvsim.policies import policy_factory
from kvsim.policies.lru import LRU
from kvsim.testing import Prompt, make_request

if TYPE_CHECKING:
    from kvsim.core.ports import Peel
    from kvsim.types import NodeId, Request


def ask(request_id: int, *letters: int) -> Request:
    """Return a request with a block for each letter."""
    return make_request(request_id, Prompt(letters, 1), block_size=1)


class Unpeeled(LRU):
    """Names what is evictable without taking it."""

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        del peel, now
        return [node for node, listed in enumerate(self._is_listed) if listed][:n]


class Greedy(LRU):
    """Takes one more than was asked for."""

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        return super().choose_victims(n + 1, peel, now)


class Forgetful(LRU):
    """Takes victims and does not name them."""

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        super().choose_victims(n, peel, now)
        return []


@pytest.mark.parametrize("cpu_blocks", [0, 4])
@pytest.mark.parametrize("policy", [Unpeeled, Greedy, Forgetful])
def test_a_policy_must_return_just_what_it_took(policy: type[LRU], cpu_blocks: int) -> None:
    # Two prompts fill the tier of 4; the third needs one block more.
    config = CacheConfig(block_size=1, tier_blocks=(4, cpu_blocks), swap_batch_blocks=1)
    manager = CacheManager(config, policy, rng=Random(0))
    prompts = [(0, 0), (1, 1), (2,)]
    requests = [ask(i, *letters) for i, letters in enumerate(prompts)]
    with pytest.raises(PolicyError, match="just what it took"):
        list(replay_instantly(manager, requests))


def test_a_running_forward_cannot_settle_before_it_has_timed_out() -> None:
    config = CacheConfig(block_size=1, tier_blocks=(4,))
    manager = CacheManager(config, policy_factory("lru")[1], rng=Random(0))
    scheduler = Scheduler(manager, [ask(0, 0)], SchedulerConfig())
    (forward,) = scheduler.step(0)
    with pytest.raises(MisuseError, match="has not timed out"):
        scheduler.settle(Settled(op_id=forward.op_id, finished_at=1))
