"""Retention around any policy: victims from the lowest priority first.

Source: priority-based eviction of TensorRT-LLM, which keeps a free queue for each priority and
lets priorities expire.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush
from itertools import groupby
from typing import TYPE_CHECKING, cast

from kvsim.core.ports import RemoveReason
from kvsim.types import DEFAULT_PRIORITY, NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvsim.core.ports import AccessInfo, EvictionPolicy, Peel, PolicyContext
    from kvsim.types import BlockKey, NodeId, Request

# A block that has to leave a tier because that is made smaller goes down like other victims, or is
# dropped, which is not told: then what it was worth is forgotten when its node is used again.
_STAYS_IN_CACHE = frozenset(
    {RemoveReason.DEMOTED, RemoveReason.PROMOTED, RemoveReason.SWAPPED, RemoveReason.RETIRED}
)


def has_retention(requests: Iterable[Request]) -> bool:
    """Whether a request says how long its blocks are worth keeping."""
    return any(each.retention or each.output_retention is not None for each in requests)


def with_retention(
    make: Callable[[PolicyContext], EvictionPolicy],
) -> Callable[[PolicyContext], EvictionPolicy]:
    """Return a factory of the same policy that heeds `AccessInfo.retention`."""
    return lambda context: RetentionPolicy(context, make)


class RetentionPolicy:
    """One policy a priority, and the lowest that has an evictable block is asked first.

    A block has the priority that the last request with something to say gave it, and the default
    once that is over; it takes it along from tier to tier. Among blocks of one priority the inner
    policy decides; one that changes its priority enters the other policy as new. Under the prefix
    rule a parent stays as long as its children, whatever its own priority.

    Parameters
    ----------
    context
        The tier.
    make
        Makes the policy of a priority.
    """

    __slots__ = (
        "_context", "_inner", "_key_of", "_listed", "_make", "_num_in",
        "_num_listed", "_over", "_priority", "_stale", "_tiers", "_worth",
    )  # fmt: skip

    def __init__(
        self, context: PolicyContext, make: Callable[[PolicyContext], EvictionPolicy]
    ) -> None:
        self._make = make
        self._context = context
        self._key_of = context.key_of
        self._inner: dict[int, EvictionPolicy] = {}
        self._num_in: dict[int, int] = {}
        self._num_listed: dict[int, int] = {}
        self._listed: set[NodeId] = set()
        self._priority: dict[NodeId, int] = {}
        """Of the nodes in this tier: whose policy knows them."""
        self._over: list[tuple[int, NodeId]] = []
        # For all tiers, by node: the key, to know one that is used again; priority, and end.
        worth = context.shared.setdefault("retention.worth", {})
        self._worth = cast("dict[NodeId, tuple[BlockKey, int, int]]", worth)
        self._stale: set[NodeId] = set()
        """What a request has said something about in another tier."""
        # A block may be in several tiers: it may go from one of them, or be used in one.
        tiers = context.shared.setdefault("retention.tiers", [])
        self._tiers = cast("list[tuple[dict[NodeId, int], set[NodeId]]]", tiers)
        self._tiers.append((self._priority, self._stale))
        self._policy_of(DEFAULT_PRIORITY)
        context.on_resize.append(self.resize)

    def resize(self, capacity_blocks: int, num_nodes: int) -> None:
        """Make later policies for the new size; those there are hear of it themselves."""
        self._context = replace(self._context, capacity_blocks=capacity_blocks, num_nodes=num_nodes)

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Let each piece of one priority enter the policy of that priority."""
        self._note(nodes, depth, info)
        for priority, start, piece in self._pieces(nodes, self._worth_of):
            self._enter(piece, priority)
            self._policy_of(priority).on_insert(piece, depth + start if info else 0, info)

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        """Count a hit, or a change of the priority."""
        self._note(nodes, depth, info)
        priority_of = self._priority
        for priority, start, piece in self._pieces(nodes, self._worth_of):
            same = [node for node in piece if priority_of[node] == priority]
            if len(same) == len(piece):
                self._inner[priority].on_hit(piece, depth + start, info)
                continue
            for at, node in enumerate(piece, depth + start):
                if priority_of[node] == priority:
                    self._inner[priority].on_hit([node], at, info)
                else:
                    self._change(node, priority, at, info)

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        """Tell each piece's policy."""
        for priority, _, piece in self._pieces(path, self._priority.__getitem__):
            self._inner[priority].on_release(piece, info)

    def on_evictable(self, node: NodeId) -> None:
        """List the node with its policy."""
        priority = self._priority[node]
        if node not in self._listed:
            self._listed.add(node)
            self._num_listed[priority] += 1
        self._inner[priority].on_evictable(node)

    def on_pinned(self, node: NodeId) -> None:
        """Take the node off its policy's list."""
        priority = self._priority[node]
        self._unlist(node, priority)
        self._inner[priority].on_pinned(node)

    def on_remove(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        """Tell each node's policy; forget what a block was worth that has left the cache."""
        for priority, _, piece in self._pieces(nodes, self._priority.__getitem__):
            self._inner[priority].on_remove(piece, reason)
        for node in nodes:
            priority = self._priority.pop(node)
            self._unlist(node, priority)
            self._num_in[priority] -= 1
            if reason not in _STAYS_IN_CACHE and not self._is_known(node):
                self._worth.pop(node, None)

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        """Ask the policies, the one of the lowest priority first."""
        self._catch_up()
        self._let_expire(now)
        victims: list[NodeId] = []
        while len(victims) < n:
            listed = [priority for priority, num in self._num_listed.items() if num]
            if not listed:
                break
            lowest = min(listed)
            # A parent may be worth less than its child: then it is its turn as soon as it is bare.
            is_least = lowest <= min(priority for priority, num in self._num_in.items() if num)
            wanted = n - len(victims) if is_least else 1
            chosen = self._inner[lowest].choose_victims(wanted, self._peel(peel, lowest), now)
            victims += chosen
            if not chosen:
                break
        return victims

    # -- what a block is worth

    def _note(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Take down what a request says its blocks are worth."""
        if info is None:
            for node in nodes:
                self._watch(node)
            return
        retention, key_of = info.retention, self._key_of
        for at, node in enumerate(nodes, depth):
            if retention is not None:
                self._worth[node] = (key_of[node], *retention.of(at))
                for known, stale in self._tiers:
                    if node in known:
                        stale.add(node)
            elif node in self._worth and self._worth[node][0] != key_of[node]:
                del self._worth[node]
            self._watch(node)

    def _watch(self, node: NodeId) -> None:
        """See to it that the priority ends in time."""
        worth = self._worth.get(node)
        if worth is not None and worth[2] < NEVER:
            heappush(self._over, (worth[2], node))

    def _worth_of(self, node: NodeId) -> int:
        worth = self._worth.get(node)
        return DEFAULT_PRIORITY if worth is None else worth[1]

    def _let_expire(self, now: int) -> None:
        """Give the default to blocks whose priority is over."""
        over = self._over
        while over and over[0][0] <= now:
            at, node = heappop(over)
            worth = self._worth.get(node)
            if worth is not None and worth[2] == at:
                del self._worth[node]
            self._follow(node)

    def _catch_up(self) -> None:
        """Let blocks have the priority that they were given in another tier."""
        for node in sorted(self._stale):
            self._follow(node)
            self._watch(node)
        self._stale.clear()

    def _follow(self, node: NodeId) -> None:
        """Move a block that is here to the policy of what it is worth now."""
        if self._priority.get(node, self._worth_of(node)) != self._worth_of(node):
            self._change(node, self._worth_of(node), 0, None)

    def _is_known(self, node: NodeId) -> bool:
        return any(node in known for known, _ in self._tiers)

    # -- which policy has a block

    def _policy_of(self, priority: int) -> EvictionPolicy:
        policy = self._inner.get(priority)
        if policy is None:
            policy = self._inner[priority] = self._make(self._context)
            self._num_in[priority] = self._num_listed[priority] = 0
        return policy

    def _enter(self, nodes: Sequence[NodeId], priority: int) -> None:
        self._policy_of(priority)
        self._num_in[priority] += len(nodes)
        for node in nodes:
            self._priority[node] = priority

    def _change(self, node: NodeId, priority: int, depth: int, info: AccessInfo | None) -> None:
        """Move a block from one policy to another, by a hit or (`info` is None) as time passes."""
        old = self._priority[node]
        is_listed = node in self._listed
        self._unlist(node, old)
        # As if a request had taken it away: no verdict on the block, and no ghost of it.
        self._inner[old].on_remove([node], RemoveReason.PROMOTED)
        self._num_in[old] -= 1
        self._enter([node], priority)
        self._inner[priority].on_insert([node], depth, info)
        if is_listed:
            self.on_evictable(node)

    def _unlist(self, node: NodeId, priority: int) -> None:
        if node in self._listed:
            self._listed.remove(node)
            self._num_listed[priority] -= 1

    def _pieces(
        self, nodes: Sequence[NodeId], priority_of: Callable[[NodeId], int]
    ) -> list[tuple[int, int, Sequence[NodeId]]]:
        """Return (priority, position, nodes) of each run of nodes with one priority."""
        pieces: list[tuple[int, int, Sequence[NodeId]]] = []
        start = 0
        for priority, run in groupby(map(priority_of, nodes)):
            length = sum(1 for _ in run)
            pieces.append((priority, start, nodes[start : start + length]))
            start += length
        return pieces

    def _peel(self, peel: Peel, priority: int) -> Peel:
        """Return a peel for the policy of one priority: it goes on only within that."""

        def within(
            leaf: NodeId,
            n: int,
            rank: Sequence[int],
            limit: int,
            out: list[NodeId],
            /,
        ) -> NodeId:
            last = len(out) + n
            while True:
                bare = peel(leaf, 1, rank, -1, out)
                self._unlist(leaf, priority)
                if bare < 0:
                    return -1
                if self._priority[bare] != priority:
                    self.on_evictable(bare)
                    return -1
                if len(out) >= last or rank[bare] > limit:
                    # The policy lists it itself.
                    self._listed.add(bare)
                    self._num_listed[priority] += 1
                    return bare
                leaf = bare

        return within
