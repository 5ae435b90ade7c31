"""Runs a policy written in the per-block form behind the batch protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kvsim.errors import PolicyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import AccessInfo, BlockPolicy, Peel, PolicyContext, RemoveReason
    from kvsim.types import BlockKey, NodeId


class PerBlockAdapter:
    """Translates batches of nodes into one call per block, leaf first, hits before inserts.

    The order matters: SIEVE's hit rate moves by up to 6 points between leaf first and root first.

    Attributes
    ----------
    policy
        What is called. Tests may put something between.
    """

    __slots__ = ("_evictable", "_info_of", "_key_of", "_node_of", "_rank", "_tier", "policy")

    def __init__(self, policy: BlockPolicy, context: PolicyContext) -> None:
        self.policy = policy
        self._tier = context.tier
        self._evictable: set[NodeId] = set()
        self._key_of = context.key_of
        self._node_of: dict[BlockKey, NodeId] = {}
        # Shared by all tiers: a demoted block arrives with what is known of its last access.
        known = context.shared.setdefault("adapter.info", {})
        self._info_of = cast("dict[NodeId, tuple[int, AccessInfo]]", known)
        self._rank = [0] * context.num_nodes
        context.on_resize.append(self.resize)

    def resize(self, capacity_blocks: int, num_nodes: int) -> None:
        """Make room for more nodes; a policy by key that goes by the capacity says so itself."""
        del capacity_blocks
        self._rank += [0] * (num_nodes - len(self._rank))

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Pass on, leaf first; a demoted batch is in that order already."""
        policy, key_of, node_of, info_of = (
            self.policy, self._key_of, self._node_of, self._info_of,
        )  # fmt: skip
        if info is None:
            for node in nodes:
                node_of[key_of[node]] = node
                known_depth, known = info_of[node]
                policy.on_insert(key_of[node], known_depth, known)
            return
        at = depth + len(nodes)
        for node in reversed(nodes):
            at -= 1
            node_of[key_of[node]] = node
            info_of[node] = (at, info)
            policy.on_insert(key_of[node], at, info)

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        """Pass on, leaf first."""
        on_hit, key_of, info_of = self.policy.on_hit, self._key_of, self._info_of
        at = depth + len(nodes)
        for node in reversed(nodes):
            at -= 1
            info_of[node] = (at, info)
            on_hit(key_of[node], at, info)

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        """Change nothing: the per-block form has no call for it."""

    def on_evictable(self, node: NodeId) -> None:
        """Pass on."""
        self._evictable.add(node)
        self.policy.on_evictable(self._key_of[node])

    def on_pinned(self, node: NodeId) -> None:
        """Pass on."""
        self._evictable.discard(node)
        self.policy.on_pinned(self._key_of[node])

    def on_remove(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        """Pass on, one by one."""
        for node in nodes:
            key = self._key_of[node]
            self._evictable.discard(node)
            del self._node_of[key]
            self.policy.on_remove(key, reason)

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        """Ask for one victim at a time; a parent it bares can be the next.

        Raises
        ------
        PolicyError
            If the policy names a block that may not go, or none although one may.
        """
        policy, node_of, evictable = self.policy, self._node_of, self._evictable
        victims: list[NodeId] = []
        while len(victims) < n:
            key = policy.choose_victim(now)
            node = None if key is None else node_of.get(key)
            if node is None or node not in evictable:
                if key is None and not evictable:
                    break
                raise self._refusal(key, node)
            # A limit below every rank: take this block only, and hear whether its parent is bare.
            bare = peel(node, 1, self._rank, -1, victims)
            evictable.remove(node)
            policy.on_pinned(key)
            if bare >= 0:
                evictable.add(bare)
                policy.on_evictable(self._key_of[bare])
        return victims

    def _refusal(self, key: BlockKey | None, node: NodeId | None) -> PolicyError:
        if key is None:
            return self._fault(
                f"returned None while {len(self._evictable)} blocks are evictable; it must"
                " return one of them"
            )
        why = "not in the tier" if node is None else "pinned"
        return self._fault(
            f"returned block {key!r}, which is {why}; it must be one that on_evictable has"
            " named since"
        )

    def _fault(self, problem: str) -> PolicyError:
        name = type(self.policy).__name__
        return PolicyError(f"{name}.choose_victim (tier {self._tier}) {problem}")
