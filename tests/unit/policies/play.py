"""Lets blocks without parents come, be hit, and leave, one request each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.ports import RemoveReason
from tests.unit.policies.context import access, victims_of

if TYPE_CHECKING:
    from kvsim.core.ports import EvictionPolicy


class Play:
    """A policy and the nodes it knows; each is a block of its own, with key "k<node>"."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self.known: set[int] = set()

    def enter(self, *nodes: int) -> None:
        """Let blocks enter, one request after another, and be let go of."""
        for node in nodes:
            self.known.add(node)
            self.policy.on_insert([node], 0, access(node))
            self._release(node)

    def hit(self, *nodes: int) -> None:
        """Let blocks be hit, one request after another."""
        for node in nodes:
            self.policy.on_pinned(node)
            self.policy.on_hit([node], 0, access(node))
            self._release(node)

    def evict(self, n: int = 1, *, reason: RemoveReason = RemoveReason.EVICTED) -> list[int]:
        """Take `n` victims, as the manager does."""
        victims = victims_of(self.policy, n, sorted(self.known))
        self.policy.on_remove(victims, reason)
        self.known.difference_update(victims)
        return victims

    def _release(self, node: int) -> None:
        self.policy.on_release([node], access(node))
        self.policy.on_evictable(node)
