"""Hits of a policy in a plain cache: no tree, no prefix rule, every block stands alone.

The published definitions of most policies, and the counts that other simulators report, are of
this kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from random import Random
from typing import TYPE_CHECKING

from kvsim.collector import paused_collector
from kvsim.core.ports import AccessInfo, PolicyContext, RemoveReason
from kvsim.errors import ConfigError, PolicyError
from kvsim.hitrate.counting import Tally, checked_capacities
from kvsim.hitrate.curves import HitCurve
from kvsim.hitrate.paths import find_pieces
from kvsim.policies import policy_factory
from kvsim.types import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kvsim.analysis.metrics import HitCounts
    from kvsim.core.ports import BlockPolicy, EvictionPolicy
    from kvsim.policies.registry import PolicyMaker
    from kvsim.trace import Trace
    from kvsim.types import BlockKey, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatHits:
    """What a plain cache hit.

    Parameters
    ----------
    policy
        Name of the policy.
    capacity_blocks
        Size of the cache.
    num_references
        Block references of the trace.
    block_hits
        By request: how many of its blocks were there when their turn came.
    leading_hits
        By request: how many of them before its first miss. Under the prefix rule the two are the
        same; here a block may be there although its prefix is not.
    """

    policy: str
    capacity_blocks: int
    num_references: int
    block_hits: tuple[int, ...]
    leading_hits: tuple[int, ...]

    @property
    def num_block_hits(self) -> int:
        """Hits of all requests, by the definition `block`."""
        return sum(self.block_hits)

    @property
    def num_leading_hits(self) -> int:
        """Hits of all requests, by the definition `prefix_block`."""
        return sum(self.leading_hits)

    @property
    def block_hit_rate(self) -> float:
        """Hits by references, by the definition `block`; 0 for a trace without blocks."""
        return self.num_block_hits / self.num_references if self.num_references else 0.0


def flat_replay(
    trace: Trace,
    policy: str | PolicyMaker | EvictionPolicy | BlockPolicy,
    capacity_blocks: int,
    *,
    seed: int = 0,
    recompute_ns: Callable[[int], int] = lambda depth: depth + 1,
) -> FlatHits:
    """Replay a trace through a cache in which every block stands alone.

    One reference after another, in file order, the first block of a prompt first. A block that is
    there is hit; one that is not enters, and if the cache is then one over, one other leaves. The
    policy is the class that a replay under the prefix rule takes, and hears the same calls: each
    reference is a request of one block, at its depth in the prompt (next uses count references).
    A policy is asked for a victim after it has heard what enters, as the published algorithms with
    ghosts need it; the newcomer is in use and cannot be the victim.

    Parameters
    ----------
    trace
        Its blocks and their order; times and lengths change nothing.
    policy
        As for `kvsim.replay`.
    capacity_blocks
        Size of the cache, at least 1.
    seed
        For policies that draw.
    recompute_ns
        Cost of computing the block at a depth again, in any unit, for cost-aware policies.

    Raises
    ------
    ConfigError
        If the capacity is not a whole number of at least 1.
    PolicyError
        If the policy takes a block that may not leave, or none.
    """
    if type(capacity_blocks) is not int or capacity_blocks < 1:
        raise ConfigError(
            f"capacity_blocks must be an integer of at least 1, not {capacity_blocks!r}"
        )
    name, make, needs_future = policy_factory(policy)
    # One more than fits is there for a moment; node 0 is nobody's, as under the prefix rule.
    key_of: list[BlockKey] = [None] * (min(capacity_blocks, trace.num_unique_blocks) + 2)
    cache = FlatCache(
        make(flat_context(capacity_blocks, key_of, seed=seed, recompute_ns=recompute_ns)),
        capacity_blocks,
        key_of,
    )
    hits = [_access_all(cache, info, keys) for info, keys in _accesses(trace, needs_future)]
    return FlatHits(
        policy=name,
        capacity_blocks=capacity_blocks,
        num_references=trace.num_references,
        block_hits=tuple(num_hits for num_hits, _ in hits),
        leading_hits=tuple(num_leading for _, num_leading in hits),
    )


@paused_collector()
def flat_curve(
    trace: Trace,
    policy: str | PolicyMaker,
    capacities: Iterable[int],
    *,
    warmup: float = 0.0,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> HitCurve:
    """Return the hits of a policy in a plain cache at some capacities, by one replay for each.

    The definition `block` counts every block that was there; the others count what comes before
    the first miss, since that is what an engine could use.

    Parameters
    ----------
    trace, policy, seed
        As for `flat_replay`.
    capacities, warmup, progress
        As for `kvsim.hitrate.replay_curve`.

    Raises
    ------
    UserError
        If a capacity or the warm-up cannot be used, there is no such policy, or it breaks its
        contract.
    """
    chosen = checked_capacities(capacities)
    tally = Tally(trace, warmup)
    name, *_ = policy_factory(policy)
    counts: list[dict[str, HitCounts]] = []
    for capacity in chosen:
        found = flat_replay(trace, policy, capacity, seed=seed)
        hits = tally.hits(found.leading_hits)
        hits["block"] = sum(found.block_hits[tally.first :])
        counts.append(tally.as_counts(hits))
        if progress is not None:
            progress(len(counts), len(chosen))
    return HitCurve(
        policy=f"{name}, flat",
        basis=tally.basis,
        capacities=tuple(chosen),
        counts=tuple(counts),
        infinite=tally.counts(find_pieces(trace).known()),
    )


def flat_context(
    capacity_blocks: int,
    key_of: list[BlockKey],
    *,
    seed: int = 0,
    recompute_ns: Callable[[int], int] = lambda depth: depth + 1,
) -> PolicyContext:
    """Return what the policy of a `FlatCache` is made from."""
    return PolicyContext(
        tier=0,
        capacity_blocks=capacity_blocks,
        num_nodes=len(key_of),
        key_of=key_of,
        rng=Random(seed),
        recompute_ns=recompute_ns,
    )


def _accesses(
    trace: Trace,
    needs_future: bool,  # noqa: FBT001  (as `policy_factory` returns it)
) -> Iterator[tuple[AccessInfo, Sequence[BlockKey]]]:
    next_uses = _next_references(trace) if needs_future else repeat(None)
    for request, next_use_at in zip(trace.requests, next_uses, strict=False):
        info = AccessInfo(
            now=request.arrived_at,
            request_index=request.request_id,
            session_id=request.session_id,
            num_tokens=request.num_input_tokens,
            priority=request.priority,
            next_use_at=next_use_at,
        )
        yield info, request.block_keys


def _next_references(trace: Trace) -> list[Sequence[int]]:
    """Return for each request when its blocks are wanted next, counted in references.

    Not in requests: here a request's blocks come one after another, and which of them is wanted
    first makes a difference.
    """
    next_at: dict[BlockKey, int] = {}
    found: list[Sequence[int]] = []
    end = trace.num_references
    for request in reversed(trace.requests):
        keys = request.block_keys
        found.append(tuple(map(next_at.get, keys, repeat(NEVER))))
        next_at.update(zip(keys, range(end - len(keys), end), strict=True))
        end -= len(keys)
    return found[::-1]


class FlatCache:
    """The blocks that are there, and their policy, one access at a time.

    Parameters
    ----------
    policy
        In its batch form, made with `key_of` and with room for one node more than the capacity.
    capacity_blocks
        How many blocks there may be.
    key_of
        Filled in here, by node.
    nodes
        The nodes to use; default: all but 0, which is nobody's, as under the prefix rule.
    """

    def __init__(
        self,
        policy: EvictionPolicy,
        capacity_blocks: int,
        key_of: list[BlockKey],
        nodes: Sequence[NodeId] | None = None,
    ) -> None:
        self._policy = policy
        self._capacity = capacity_blocks
        self._key_of = key_of
        self._node_of: dict[BlockKey, NodeId] = {}
        self._free = list(range(1, len(key_of)) if nodes is None else nodes)[::-1]
        self._is_evictable = bytearray(len(key_of))

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._node_of

    def hit(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        """Hit a block that is there; it is in use until it is let go of."""
        node = self._node_of[key]
        self._is_evictable[node] = False
        self._policy.on_pinned(node)
        self._policy.on_hit([node], depth, info)

    def enter(self, key: BlockKey, depth: int, info: AccessInfo) -> list[BlockKey]:
        """Let a block enter, in use until it is let go of; return what had to leave for it.

        Raises
        ------
        PolicyError
            If the policy takes what it may not, or nothing.
        """
        node = self._free.pop()
        self._node_of[key] = node
        self._key_of[node] = key
        self._policy.on_insert([node], depth, info)
        return self._make_room(info.now) if len(self._node_of) > self._capacity else []

    def let_go(self, key: BlockKey, info: AccessInfo) -> None:
        """Let a block leave from now on."""
        node = self._node_of[key]
        self._policy.on_release([node], info)
        self._is_evictable[node] = True
        self._policy.on_evictable(node)

    def _make_room(self, now: int) -> list[BlockKey]:
        victims = self._policy.choose_victims(1, self._peel, now)
        if len(victims) != 1:
            raise PolicyError(
                f"{type(self._policy).__name__}.choose_victims returned {victims} when asked for 1"
                f" of {sum(self._is_evictable)} evictable blocks"
            )
        self._policy.on_remove(victims, RemoveReason.EVICTED)
        keys = [self._key_of[node] for node in victims]
        for key in keys:
            self._free.append(self._node_of.pop(key))
        return keys

    def _peel(
        self, leaf: NodeId, n: int, rank: Sequence[int], limit: int, out: list[NodeId]
    ) -> NodeId:
        del n, rank, limit
        if not self._is_evictable[leaf]:
            raise PolicyError(f"a policy took node {leaf} as a victim, which is not evictable")
        self._is_evictable[leaf] = False
        out.append(leaf)
        return -1


def _access_all(cache: FlatCache, info: AccessInfo, keys: Sequence[BlockKey]) -> tuple[int, int]:
    """Access the blocks of one request; return its hits, and those before its first miss."""
    num_hits = num_leading = 0
    for depth, key in enumerate(keys):
        if key in cache:
            num_leading += num_hits == depth
            num_hits += 1
            cache.hit(key, depth, info)
        else:
            cache.enter(key, depth, info)
        cache.let_go(key, info)
    return num_hits, num_leading
