"""Ops that have not settled, as the cache sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.core.attempt import Attempt
    from kvsim.types import BlockId, NodeId, OpId, TierIndex

_NOTHING: frozenset[OpId] = frozenset()


class OpenTransfer:
    """A Transfer that has not settled: which nodes it copies, and between which tiers.

    `pins` are references of ended attempts that go on until the op has settled. `releases_source`:
    it was issued to free its source. `is_timed_out` is set once its deadline has passed: then only
    its Settled is missing.
    """

    __slots__ = (
        "is_timed_out",
        "nodes",
        "pins",
        "releases_source",
        "source",
        "source_ids",
        "target",
    )

    def __init__(
        self,
        nodes: list[NodeId],
        source: TierIndex,
        target: TierIndex,
        source_ids: list[BlockId],
        *,
        releases_source: bool,
    ) -> None:
        self.nodes = nodes
        self.source_ids = source_ids
        self.source = source
        self.target = target
        self.releases_source = releases_source
        self.pins: list[NodeId] = []
        self.is_timed_out = False


class OpenForward:
    """A Forward that has not settled: the nodes it writes, by attempt.

    `after` are the ops it waits for. `duplicates` are blocks, by attempt and position, that it
    computes although their key is in the tree by now. `supersedes`: a node among `fills` has a
    copy below.
    """

    __slots__ = ("after", "duplicates", "fills", "is_timed_out", "pins", "supersedes")

    def __init__(self) -> None:
        self.after: frozenset[OpId] = _NOTHING
        self.fills: list[tuple[Attempt, list[NodeId]]] = []
        self.duplicates: list[tuple[Attempt, int]] = []
        self.pins: list[NodeId] = []
        self.supersedes = False
        self.is_timed_out = False
