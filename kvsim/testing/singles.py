"""What blocks without parents show of a policy: whether hits matter, and what calls cost."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from kvsim.core.ports import AccessInfo
from kvsim.hitrate.flat import FlatCache, flat_context
from kvsim.policies.adapter import PerBlockAdapter
from kvsim.testing.findings import ConformanceError, Finding
from kvsim.testing.steps import (
    CountedKey,
    StepCounter,
    WatchedPolicy,
    counted_builtins,
    counted_nodes,
)
from kvsim.types import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.core.ports import EvictionPolicy, PolicyContext
    from kvsim.types import BlockKey

    Make = Callable[[PolicyContext], EvictionPolicy]

_FEW: Final = 64
_MANY: Final = 1024
_MOST_GROWTH: Final = 2.5
"""From few to many blocks, 16 times as many: log2 grows from 6 to 10, by less than this."""
_FREE_STEPS: Final = 32
"""What a call may cost more whatever the growth: small counts jump."""


def check_hits(make: Make, name: str, *, seed: int) -> None:
    """Raise unless hits change what a policy evicts.

    Two runs get the same accesses; in one of them those that hit are not told. Up to the first
    victim that differs both caches hold the same.

    Raises
    ------
    ConformanceError
        If no victim differs.
    """
    capacity, num_accesses = 10, 1500
    rng = Random(seed)
    # Some blocks are wanted more often than others, and each comes back soon.
    accesses = [int(18 * rng.random() ** 2) for _ in range(num_accesses)]
    told, untold = (_victims(make, capacity, accesses, are_told=each) for each in (True, False))
    if told == untold:
        raise ConformanceError(
            Finding.IGNORES_HITS,
            f"{name} took the same {len(told)} victims in {num_accesses} accesses, whether it was"
            " told of the hits among them or not; if that is meant, set ignores_hits = True in the"
            f" class, or waive {Finding.IGNORES_HITS!s}",
        )


def _victims(
    make: Make, capacity: int, accesses: Sequence[int], *, are_told: bool
) -> list[BlockKey]:
    next_use_at = _next_uses(accesses)
    key_of: list[BlockKey] = [None] * (capacity + 2)
    cache = FlatCache(make(flat_context(capacity, key_of)), capacity, key_of)
    victims: list[BlockKey] = []
    for index, key in enumerate(accesses):
        info = _access(index, next_use_at[index])
        if key not in cache:
            victims += cache.enter(key, 0, info)
        elif are_told:
            cache.hit(key, 0, info)
        else:
            continue
        cache.let_go(key, info)
    return victims


def check_cost(make: Make, name: str, *, seed: int) -> dict[str, tuple[float, float]]:
    """Count the steps of each method with few and with many blocks in the tier.

    Half of the blocks, the oldest, are in use all the time, as the head of a queue mostly is.

    Raises
    ------
    ConformanceError
        If a call takes clearly more steps with many blocks.
    """
    few = _count_steps(make, _FEW, seed=seed)
    limits = {
        method: _MOST_GROWTH * few.mean_steps(method) + _FREE_STEPS for method in few.num_steps
    }
    # So many steps in all are too many whatever is still to come.
    growth = _MANY // _FEW
    enough = {method: limits[method] * growth * few.num_calls[method] for method in limits}
    many = _count_steps(make, _MANY, seed=seed, enough=enough)
    is_per_block = isinstance(make(flat_context(_FEW, [None] * (_FEW + 2))), PerBlockAdapter)
    means: dict[str, tuple[float, float]] = {}
    for method, limit in limits.items():
        called = "choose_victim" if is_per_block and method == "choose_victims" else method
        means[called] = (few.mean_steps(method), many.mean_steps(method))
        if many.mean_steps(method) > limit:
            raise ConformanceError(
                Finding.COST,
                f"{name}.{called} took {many.mean_steps(method):.0f} steps a call with {_MANY}"
                f" blocks in the tier and {few.mean_steps(method):.0f} with {_FEW}; index what is"
                f" evictable, or waive {Finding.COST!s}",
            )
    return means


def _count_steps(
    make: Make, capacity: int, *, seed: int, enough: dict[str, float] | None = None
) -> StepCounter:
    counter = StepCounter()
    key_of: list[BlockKey] = [None] * (capacity + 2)
    policy = make(flat_context(capacity, key_of))
    watched = WatchedPolicy(policy, counter)
    nodes = counted_nodes(capacity + 2, counter)
    cache = FlatCache(watched.as_policy(), capacity, key_of, nodes)
    keys = [CountedKey(i, counter) for i in range(3 * capacity)]
    for index, key in enumerate(keys[:capacity]):
        cache.enter(key, 0, _access(index, NEVER))
    free = keys[capacity // 2 : capacity]
    for key in free:
        cache.let_go(key, _access(capacity, NEVER))
    watched.is_watched = True
    rng = Random(seed)
    with counted_builtins(
        policy.policy if isinstance(policy, PerBlockAdapter) else policy, counter
    ):
        # More calls than there are blocks, so that what is put in order now and then is paid for.
        for index, key in enumerate(keys[capacity:], capacity):
            info = _access(index, NEVER)
            (victim,) = cache.enter(key, 0, info)
            cache.let_go(key, info)
            free[_index(free, victim)] = key
            again = free[rng.randrange(len(free))]
            cache.hit(again, 0, info)
            cache.let_go(again, info)
            if enough and any(num > enough[each] for each, num in counter.num_steps.items()):
                break
    return counter


def _index(keys: list[CountedKey], wanted: BlockKey) -> int:
    return next(i for i, key in enumerate(keys) if key is wanted)


def _access(index: int, next_use_at: int) -> AccessInfo:
    return AccessInfo(
        now=index,
        request_index=index,
        session_id=None,
        num_tokens=1,
        priority=0,
        next_use_at=[next_use_at],
    )


def _next_uses(accesses: Sequence[int]) -> list[int]:
    """Return for each access the index of the next one of the same block."""
    next_at: dict[int, int] = {}
    found: list[int] = []
    for index in reversed(range(len(accesses))):
        found.append(next_at.get(accesses[index], NEVER))
        next_at[accesses[index]] = index
    return found[::-1]
