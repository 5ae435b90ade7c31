"""Requests that say how long their blocks are worth keeping, and a check that it is heeded."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from kvsim.policies import policy_factory
from kvsim.policies.retention import RetentionPolicy
from kvsim.types import DEFAULT_PRIORITY, NEVER, RetentionRange
from tests.property.client import new_attempt
from tests.property.driver import POLICIES, Driver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import AccessInfo, EvictionPolicy, Peel, PolicyContext, RemoveReason
    from kvsim.testing import Prompt
    from kvsim.types import NodeId, Request
    from tests.property.client import Client

RETAINED = "retained "
"""Before the name of a policy: the same behind `RetentionPolicy`."""


class LowestFirst:
    """Passes everything on; every victim is of the lowest priority that could be chosen.

    Its model of what a block is worth is a plain table by key and node, for all tiers, read from
    the calls.
    """

    def __init__(self, policy: RetentionPolicy, context: PolicyContext) -> None:
        self._policy = policy
        self._key_of = context.key_of
        self._listed: set[NodeId] = set()
        table: dict[NodeId, tuple[object, int, int]] = {}
        found = context.shared.setdefault("test.worth", table)
        assert isinstance(found, dict)
        self._worth = found
        known: Counter[NodeId] = Counter()  # in how many tiers
        counted = context.shared.setdefault("test.known", known)
        assert isinstance(counted, Counter)
        self._known = counted

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        self._known.update(nodes)
        self._note(nodes, depth, info)
        self._policy.on_insert(nodes, depth, info)

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        self._note(nodes, depth, info)
        self._policy.on_hit(nodes, depth, info)

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        self._policy.on_release(path, info)

    def on_evictable(self, node: NodeId) -> None:
        self._listed.add(node)
        self._policy.on_evictable(node)

    def on_pinned(self, node: NodeId) -> None:
        self._listed.discard(node)
        self._policy.on_pinned(node)

    def on_remove(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        self._listed.difference_update(nodes)
        self._known.subtract(nodes)
        if reason not in {"demoted", "promoted", "swapped", "retired"}:
            for node in nodes:
                if not self._known[node]:
                    self._worth.pop(node, None)
        self._policy.on_remove(nodes, reason)

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        def watched(
            leaf: NodeId, room: int, rank: Sequence[int], limit: int, out: list[NodeId], /
        ) -> NodeId:
            least = min(self._priority(node, now) for node in self._listed)
            assert self._priority(leaf, now) == least, f"node {leaf} went before its time"
            assert room == 1, "a parent may be worth less than its child"
            bare = peel(leaf, room, rank, limit, out)
            self._listed.discard(leaf)
            if bare >= 0:
                self._listed.add(bare)
            return bare

        return self._policy.choose_victims(n, watched, now)

    def _note(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        if info is not None and info.retention is not None:
            for at, node in enumerate(nodes, depth):
                self._worth[node] = (self._key_of[node], *info.retention.of(at))

    def _priority(self, node: NodeId, now: int) -> int:
        key, priority, over_at = self._worth.get(node, (None, DEFAULT_PRIORITY, NEVER))
        return priority if key == self._key_of[node] and over_at > now else DEFAULT_PRIORITY


def retained_policy(name: str) -> str:
    """Return the name, among the driver's policies, of a policy behind `RetentionPolicy`."""
    _, make, _ = policy_factory(POLICIES[name])

    def build(context: PolicyContext) -> EvictionPolicy:
        return LowestFirst(RetentionPolicy(context, make), context)

    POLICIES[RETAINED + name] = build
    return RETAINED + name


class RetainingDriver(Driver):
    """Its requests say how long their blocks are worth keeping, two of three times."""

    def submit(self, prompt: Prompt, *, num_output_tokens: int = 1, reserve: int = 0) -> Client:
        client = super().submit(prompt, num_output_tokens=num_output_tokens, reserve=reserve)
        request = client.request = with_ranges(client.request)
        client.attempt = new_attempt(request, self.config.block_size, reserve=reserve)
        return client


def with_ranges(request: Request) -> Request:
    """Return the request with ranges drawn by its id."""
    rng = Random(request.request_id)
    if not rng.randrange(3):
        return request
    cut = rng.randint(1, request.num_input_tokens)

    def drawn(first_token: int, end_token: int | None) -> RetentionRange:
        return RetentionRange(
            first_token=first_token,
            end_token=end_token,
            priority=rng.choice([0, 35, 80, 100]),
            duration_ns=rng.choice([None, 2, 10]),
        )

    prompt = (drawn(0, cut), drawn(cut, None))
    return replace(request, retention=prompt, output_retention=drawn(0, None))
