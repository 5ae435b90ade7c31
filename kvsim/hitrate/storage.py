"""One tier without time: the core's policies and prefix rule on numbered paths."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from kvsim.core.ports import AccessInfo, PolicyContext, RemoveReason
from kvsim.core.residency import READY, Copies, CopyEvent
from kvsim.core.tree import ROOT
from kvsim.errors import PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.core.ports import EvictionPolicy, Peel
    from kvsim.hitrate.paths import NodePaths
    from kvsim.types import NodeId, Request


def access_infos(requests: Sequence[Request]) -> list[AccessInfo]:
    """Return what a policy may know of each request."""
    return [
        AccessInfo(
            each.arrived_at,
            each.request_id,
            each.session_id,
            each.num_input_tokens,
            each.priority,
            each.next_use_at,
        )
        for each in requests
    ]


def policy_runs(
    nodes: NodePaths,
    infos: Sequence[AccessInfo],
    new_policy: Callable[[PolicyContext], EvictionPolicy],
    capacity: int,
    *,
    seed: int = 0,
    recompute_ns: Callable[[int], int] = lambda depth: depth + 1,
) -> list[int]:
    """Return how many leading blocks each request finds.

    The calls a policy gets are those of `kvsim.core.manager` when requests come one after another
    and every op is done at once: `on_pinned` of the last block found, victims as one batch and
    their `on_remove`, `on_hit`, `on_insert`, `on_release`, `on_evictable`. A request with more
    blocks than the cache keeps its first ones.

    Parameters
    ----------
    nodes, infos
        The paths, and what is known of each request.
    new_policy, seed, recompute_ns
        Makes the policy, with what is in its context.
    capacity
        In blocks.

    Raises
    ------
    PolicyError
        If the policy breaks its contract.
    """
    policy = new_policy(
        PolicyContext(
            tier=0,
            capacity_blocks=capacity,
            num_nodes=len(nodes.parent),
            key_of=nodes.key_of,
            rng=Random(seed),
            recompute_ns=recompute_ns,
        )
    )
    return _serve(nodes, infos, policy, capacity)


def _serve(
    nodes: NodePaths, infos: Sequence[AccessInfo], policy: EvictionPolicy, capacity: int
) -> list[int]:
    """Put one request after another through an empty tier; return what each finds."""
    copies = Copies(len(nodes.parent))
    peel: Peel = partial(copies.peel, nodes.parent, CopyEvent.DROP)
    state, holds, num_in = copies.state, copies.holds, copies.num_in
    runs: list[int] = []
    for path, info in zip(nodes.paths, infos, strict=True):
        run = _num_cached(path, state)
        runs.append(run)
        end = min(len(path), capacity)
        if run:
            last = path[run - 1]
            if not holds[last]:
                policy.on_pinned(last)
            holds[last] += 1
        shortfall = num_in[READY] + end - run - capacity
        if shortfall > 0:
            _evict(policy, peel, shortfall, info, num_in)
        if run:
            policy.on_hit(path[:run], 0, info)
        if run < end:
            new = path[run:end]
            copies.reserve_chain(new, new, is_written=True)
            holds[ROOT] += not run
            policy.on_insert(new, run, info)
        if end:
            # What held the last block found is its first new child now, or nothing.
            policy.on_release(path[:end], info)
            last = path[end - 1]
            holds[last] -= 1
            if not holds[last]:
                policy.on_evictable(last)
    return runs


def _num_cached(path: Sequence[NodeId], state: Sequence[int]) -> int:
    """Return how many nodes of a path are there: by halving, since they are the first ones."""
    low, high = 0, len(path)
    if not high or not state[path[0]]:
        return 0
    if state[path[-1]]:
        return high
    while high - low > 1:
        middle = (low + high) >> 1
        if state[path[middle]]:
            low = middle
        else:
            high = middle
    return high


def _evict(
    policy: EvictionPolicy, peel: Peel, n: int, info: AccessInfo, num_in: Sequence[int]
) -> None:
    num_ready = num_in[READY]
    victims = policy.choose_victims(n, peel, info.now)
    num_taken = num_ready - num_in[READY]
    if not len(victims) == num_taken == n:
        raise PolicyError(
            f"{type(policy).__name__}.choose_victims returned {len(victims)} victims and took"
            f" {num_taken} with peel, where {n} were asked for and are evictable"
        )
    policy.on_remove(victims, RemoveReason.EVICTED)
