"""A cache in the plainest way, around an oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from kvsim.types import BlockKey, Request
    from tests.unit.policies.oracles import Oracle


class OracleCache:
    """A cache in the plainest way, flat or under the prefix rule."""

    def __init__(self, oracle: Oracle, capacity: int) -> None:
        self.oracle = oracle
        self.capacity = capacity
        self.parent: dict[BlockKey, BlockKey | None] = {}
        self.now = 0

    def access_flat(self, request: Request) -> int:
        """Access block after block, each alone; return the hits."""
        num_hits = 0
        for depth, key in enumerate(request.block_keys):
            self.now += 1
            if key in self.parent:
                num_hits += 1
                self.oracle.hit(key, depth, self.now, request)
                continue
            if len(self.parent) == self.capacity:
                del self.parent[self.oracle.victim(self.parent.keys(), key)]
                self.oracle.turn(self.parent.keys())
            self.parent[key] = None
            self.oracle.enter(key, depth, self.now, request)
        return num_hits

    def access_path(self, request: Request) -> int:
        """Put a request through under the prefix rule; return its hits, all leading.

        Room first, then the hits, then what is new; leaf first each.
        """
        keys = request.block_keys
        if len(keys) > self.capacity:
            return 0
        num_hits = sum(key in self.parent for key in keys)
        while len(self.parent) + len(keys) - num_hits > self.capacity:
            del self.parent[self.oracle.victim(self.leaves(keys), None)]
            self.oracle.turn(self.leaves(keys))
        for i in reversed(range(num_hits)):
            self.oracle.hit(keys[i], i, request.request_id, request)
        for i in reversed(range(num_hits, len(keys))):
            self.parent[keys[i]] = keys[i - 1] if i else None
            self.oracle.enter(keys[i], i, request.request_id, request)
        return num_hits

    def leaves(self, protected: Iterable[BlockKey]) -> Set[BlockKey]:
        return self.parent.keys() - set(self.parent.values()) - set(protected)
