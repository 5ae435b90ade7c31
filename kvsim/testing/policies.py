"""Holds an eviction policy to its contract, and the core with it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from kvsim.config import CacheConfig
from kvsim.core.attempt import Attempt, BlockLayout
from kvsim.core.manager import Blocked, CacheManager
from kvsim.core.ops import Completion, Outcome
from kvsim.core.ports import RemoveReason
from kvsim.errors import InvariantError, PolicyError
from kvsim.events import EndReason
from kvsim.policies import policy_factory
from kvsim.testing.requests import Prompt, make_request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.core.ports import AccessInfo, EvictionPolicy, PolicyContext
    from kvsim.policies.registry import PolicyMaker
    from kvsim.types import BlockKey, NodeId


def check_policy(
    policy: str | PolicyMaker, *, num_traces: int = 50, num_requests: int = 40, seed: int = 0
) -> None:
    """Hold a policy to its contract on random requests that share prefixes and overlap in time.

    On caches of one tier and of two, so small that almost every request evicts.

    Parameters
    ----------
    policy
        A name, or a class or function that takes a `PolicyContext` (either form; see
        `kvsim.core.ports`).
    num_traces, num_requests
        How many traces, and requests in each.
    seed
        Another seed, other requests.

    Raises
    ------
    PolicyError
        If the policy breaks the contract: it chooses what it may not, or too little.
    """
    _, make, _ = policy_factory(policy)
    rng = Random(seed)
    for _ in range(num_traces):
        config = CacheConfig(
            block_size=1,
            tier_blocks=(rng.randint(1, 10), rng.randint(0, 8)),
            swap_batch_blocks=rng.randint(1, 3),
            low_watermark_blocks=0,
        )
        manager = CacheManager(config, lambda context: CheckedPolicy(make(context)), rng=rng)
        _run_overlapping(manager, rng, num_requests)


def _run_overlapping(manager: CacheManager, rng: Random, num_requests: int) -> None:
    """Put random requests through, up to four of them at a time."""
    live: list[Attempt] = []
    for i in range(num_requests):
        num_blocks = rng.randint(1, min(6, manager.config.tier_blocks[0]))
        letters = tuple(rng.choice((0, 0, 1)) for _ in range(num_blocks))
        request = make_request(i, Prompt(letters, 1), block_size=1, arrived_at=i)
        attempt = Attempt(
            request,
            number=0,
            layout=BlockLayout(request, 1),
            num_made=0,
            num_wanted_blocks=num_blocks,
        )
        while not attempt.is_admitted:
            outcome = manager.admit(attempt, i)
            if isinstance(outcome, Blocked):
                manager.release(live.pop(rng.randrange(len(live))), EndReason.FINISHED, i)
                continue
            for op in outcome.ops:
                done = Completion(op_id=op.op_id, outcome=Outcome.DONE, started_at=i, finished_at=i)
                manager.settle(done)
        manager.fill_at_once(attempt, num_blocks)
        live.append(attempt)
        while len(live) > rng.randrange(4):
            manager.release(live.pop(rng.randrange(len(live))), EndReason.FINISHED, i)
        manager.check()


class PerBlockLRU:
    """Least recently used, in the per-block form: the shortest policy that is right.

    Follows `kvsim.core.ports.BlockPolicy`.
    """

    def __init__(self, context: PolicyContext) -> None:
        del context
        self._clock = 0
        self._used_at: dict[BlockKey, int] = {}
        self._evictable: set[BlockKey] = set()

    def on_insert(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        """Stamp the block."""
        self.on_hit(key, depth, info)

    def on_hit(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        """Stamp the block."""
        del depth, info
        self._clock += 1
        self._used_at[key] = self._clock

    def on_evictable(self, key: BlockKey) -> None:
        """List the block."""
        self._evictable.add(key)

    def on_pinned(self, key: BlockKey) -> None:
        """Take the block off the list."""
        self._evictable.discard(key)

    def on_remove(self, key: BlockKey, reason: RemoveReason) -> None:
        """Forget the block."""
        del reason
        self._evictable.discard(key)
        del self._used_at[key]

    def choose_victim(self, now: int) -> BlockKey | None:
        """Return the block with the oldest stamp."""
        del now
        return min(self._evictable, key=self._used_at.__getitem__, default=None)


class CheckedPolicy:
    """Stands between the core and an eviction policy and holds both to their contract.

    Parameters
    ----------
    policy
        The policy in its batch form.
    is_ranked
        Whether it must always take the smallest of the ranks that it hands to `peel`.

    Attributes
    ----------
    known, listed
        Nodes that are in the tier, and those of them that may be chosen, as far as the calls say.
    pending
        Victims whose removal has not been reported yet.

    Raises
    ------
    InvariantError
        From any call that the core should not have made.
    PolicyError
        If the policy returns victims that it may not, or too few.
    """

    def __init__(self, policy: EvictionPolicy, *, is_ranked: bool = False) -> None:
        self._policy = policy
        self._is_ranked = is_ranked
        self.known: set[NodeId] = set()
        self.listed: set[NodeId] = set()
        self.pending: list[NodeId] = []

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Check that the nodes are new."""
        self._require(self.known.isdisjoint(nodes), "on_insert", nodes, "known already")
        self._require(len(set(nodes)) == len(nodes), "on_insert", nodes, "named twice")
        self.known.update(nodes)
        self._policy.on_insert(nodes, depth, info)

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        """Check that the nodes are known."""
        self._require(self.known.issuperset(nodes), "on_hit", nodes, "not known")
        self._policy.on_hit(nodes, depth, info)

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        """Check that the nodes are known."""
        self._require(self.known.issuperset(path), "on_release", path, "not known")
        self._policy.on_release(path, info)

    def on_evictable(self, node: NodeId) -> None:
        """Check that the node is known and no victim."""
        self._require(node in self.known, "on_evictable", [node], "not known")
        self._require(node not in self.pending, "on_evictable", [node], "a victim")
        self.listed.add(node)
        self._policy.on_evictable(node)

    def on_pinned(self, node: NodeId) -> None:
        """Check that the node is known."""
        self._require(node in self.known, "on_pinned", [node], "not known")
        self.listed.discard(node)
        self._policy.on_pinned(node)

    def on_remove(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        """Check that the nodes are known, and that chosen ones were chosen."""
        self._require(self.known.issuperset(nodes), "on_remove", nodes, "not known")
        chosen = reason in {RemoveReason.EVICTED, RemoveReason.DEMOTED}
        for node in nodes:
            self._require((node in self.pending) == chosen, "on_remove", [node], f"not {reason}")
            if chosen:
                self.pending.remove(node)
        self.known.difference_update(nodes)
        self.listed.difference_update(nodes)
        self._policy.on_remove(nodes, reason)

    def choose_victims(self, n: int, peel: Callable[..., NodeId], now: int) -> list[NodeId]:
        """Check that every victim was evictable in its turn, and that there are enough."""
        self._require(not self.pending, "choose_victims", self.pending, "not reported as removed")
        self._require(n >= 0, "choose_victims", [n], "a negative number")
        taken: list[NodeId] = []

        def watched(
            leaf: NodeId, room: int, rank: Sequence[int], limit: int, out: list[NodeId]
        ) -> NodeId:
            if leaf not in self.listed:
                raise PolicyError(f"victim {leaf} is not evictable")
            start = len(out)
            bare = peel(leaf, room, rank, limit, out)
            for node in out[start:]:
                self.listed.add(node)
                if self._is_ranked and any(rank[v] < rank[node] for v in self.listed):
                    raise PolicyError(f"victim {node} does not have the smallest rank")
                self.listed.remove(node)
            taken.extend(out[start:])
            if bare >= 0:
                self.listed.add(bare)
            return bare

        victims = self._policy.choose_victims(n, watched, now)
        if victims != taken or len(victims) > n:
            raise PolicyError(f"{victims} returned, {taken} peeled, {n} asked for")
        if len(victims) < n and self.listed:
            raise PolicyError(f"{len(victims)} of {n} victims, though {self.listed} are evictable")
        self.pending = list(victims)
        return victims

    @staticmethod
    def _require(condition: object, call: str, nodes: object, problem: str) -> None:
        if not condition:
            raise InvariantError(f"{call} of {nodes}: {problem}")
