"""The state that the parts of the cache manager share, and the small steps they are made of."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from kvsim.config import TierInclusion
from kvsim.core.open_ops import OpenForward, OpenTransfer
from kvsim.core.ports import RemoveReason
from kvsim.core.residency import ABSENT, INCOMING, LEAVING, READY, CopyEvent
from kvsim.core.tier import Tier
from kvsim.core.tree import ROOT, PrefixTree
from kvsim.events import (
    BlocksFreed,
    BlocksKept,
    BlocksQuarantined,
    BlocksRemoved,
    BlocksStored,
    RemoveCause,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kvsim.config import CacheConfig
    from kvsim.core.attempt import Attempt
    from kvsim.core.ops import Answer
    from kvsim.core.ports import EventSink, EvictionPolicy, Peel
    from kvsim.core.upkeep import PinnedPrefix
    from kvsim.types import BlockId, BlockKey, NodeId, OpId, RequestId, TierIndex


__all__ = ["CacheState", "OpenForward", "OpenTransfer"]


class CacheState:
    """Tree, tiers, live attempts and open ops of one instance.

    Attributes
    ----------
    tiers, gpu, lower, below
        All tiers, nearest first; the first; the second, if there is one; all but the first.
    is_inclusive
        Whether a node may have READY copies in several tiers for good.
    hits_to_write_through, num_hits_of
        How often a block must be hit before it is copied down (None: it is not), and how often it
        was, by node, where that matters.
    incoming_by
        The open Transfer that writes an INCOMING GPU copy. A GPU copy not listed here is written
        by an open Forward.
    num_path_blocks
        Lengths of the live attempts' paths, added up.
    num_rescued
        Copies that stay although an op copies them down, by open ops: hit again on their way, or
        written through. While 0, a settled write-back need not look for them.
    postponed
        Answers of failed Transfers on which an open Forward depends: taken when that has settled,
        so that no block is given away while a Forward may still read it.
    version
        Rises whenever blocks may have become free or evictable.
    prefix_pins
        Pinned prefixes, by the key of their last block.
    weight_version
        Rises when the weights change. Nodes in the index are of this version.
    retired_from
        A tier whose blocks beyond its size are being emptied: its policy knows that they go.
    """

    def __init__(
        self,
        config: CacheConfig,
        new_policy: Callable[[TierIndex, int, PrefixTree], EvictionPolicy],
        sink: EventSink | None,
    ) -> None:
        is_inclusive = config.tier_inclusion is TierInclusion.INCLUSIVE
        capacities = [n for i, n in enumerate(config.tier_blocks) if n or not i]
        # Every node has a copy in some tier, and a copy has a block of its own.
        num_nodes = sum(capacities) + 1
        self.config = config
        self.sink = sink
        self.tree = PrefixTree(num_nodes)
        self.tiers = [
            Tier(
                i,
                n,
                num_nodes,
                new_policy(i, n, self.tree),
                forgets_reads=i > 0 and not is_inclusive,
            )
            for i, n in enumerate(capacities)
        ]
        for tier, next_tier in pairwise(self.tiers):
            tier.below = next_tier
        self.gpu = self.tiers[0]
        self.below = self.tiers[1:]
        self.lower = self.gpu.below
        self.is_inclusive = is_inclusive and bool(self.below)
        self.hits_to_write_through = config.hits_to_write_through if self.below else None
        self.num_hits_of = [0] * num_nodes if self.hits_to_write_through else []
        self.peels = self._new_peels()
        self.live: dict[RequestId, Attempt] = {}
        self.transfers: dict[OpId, OpenTransfer] = {}
        self.forwards: dict[OpId, OpenForward] = {}
        self.incoming_by: dict[NodeId, OpId] = {}
        self.postponed: list[Answer] = []
        self.num_path_blocks = 0
        self.num_rescued = 0
        self.version = 0
        self.prefix_pins: dict[BlockKey, PinnedPrefix] = {}
        self.weight_version = 0
        self.retired_from: Tier | None = None

    def _new_peels(self) -> list[Peel]:
        """Return what policies take their victims with, by tier.

        Victims leave for the tier below where there is one; from the last of two they go. Of
        three, a block of the last may have children in the second, which must go before it.
        """
        last = self.tiers[-1] if len(self.tiers) < 3 else None
        return [
            partial(
                tier.copies.peel,
                self.tree.parent,
                CopyEvent.DROP if tier is last else CopyEvent.LEAVE,
            )
            for tier in self.tiers
        ]

    # -- what keeps a copy where it is

    def hold(self, tier: Tier, node: NodeId) -> None:
        """Add one hold on the node's copy in `tier`; tell the policy if it was evictable."""
        holds = tier.copies.holds
        holds[node] += 1
        if (
            holds[node] == 1
            and tier.copies.state[node] == READY
            and node not in self.tree.detached
            and not (tier.forgets_reads and node in tier.reads)
        ):
            tier.policy.on_pinned(node)

    def unhold(self, tier: Tier, node: NodeId) -> None:
        """Take one hold back; the copy becomes evictable, or goes if its node is detached."""
        holds = tier.copies.holds
        holds[node] -= 1
        if not holds[node] and tier.copies.state[node] == READY:
            self.review(tier, node)

    def review(self, tier: Tier, node: NodeId) -> None:
        """Do what is due with a READY copy that nothing holds."""
        if node in self.tree.detached:
            self.reap(node)
        else:
            tier.policy.on_evictable(node)

    def pin(self, node: NodeId) -> None:
        """Add a reference that ends at `node`."""
        self.tree.pins[node] += 1
        self.hold_all(node)

    def hold_all(self, node: NodeId) -> None:
        """Add one hold on each tier's copy of the node."""
        for tier in self.tiers:
            self.hold(tier, node)

    def unhold_all(self, node: NodeId) -> None:
        """Take one hold back on each tier's copy of the node."""
        for tier in self.tiers:
            self.unhold(tier, node)

    def unpin(self, node: NodeId) -> None:
        """Take back a reference that ends at `node`."""
        self.tree.unpin(node)
        if node in self.tree.detached:
            self.unhold_all(node)
            self.reap(node)
            return
        for tier in self.tiers:
            copies = tier.copies
            copies.holds[node] -= 1
            if not copies.holds[node] and copies.state[node] == READY:
                tier.policy.on_evictable(node)

    def rescue(self, tier: Tier, node: NodeId) -> None:
        """Keep a copy that was hit on its way down; it protects its parent again."""
        tier.copies.move([node], CopyEvent.RESCUE)
        self.emit_kept(tier, [node])
        self.hold(tier, self.tree.parent[node])
        self.start_read(tier, node)
        self.num_rescued += 1

    def start_read(self, tier: Tier, node: NodeId) -> None:
        """Note that an open op reads the node's copy."""
        tier.reads[node] = tier.reads.get(node, 0) + 1
        self.hold(tier, node)

    def end_read(self, tier: Tier, node: NodeId) -> None:
        """Note that an op that read the node's copy has settled."""
        if tier.reads[node] == 1:
            del tier.reads[node]
        else:
            tier.reads[node] -= 1
        copies = tier.copies
        copies.holds[node] -= 1
        if not copies.holds[node] and copies.state[node] == READY:
            self.review(tier, node)

    @contextmanager
    def unlisted(self, tier: Tier, nodes: list[NodeId]) -> Iterator[list[NodeId]]:
        """Take READY copies off their policy's list while it hears of their use.

        On the GPU whatever is in use is pinned; a policy may rely on it that nothing changes its
        place while it is listed.
        """
        bare = [node for node in nodes if not tier.copies.holds[node]]
        for node in bare:
            tier.policy.on_pinned(node)
        yield nodes
        for node in reversed(bare):
            tier.policy.on_evictable(node)

    # -- copies that go

    def drop(self, tier: Tier, nodes: Sequence[NodeId], event: CopyEvent) -> None:
        """End the nodes' copies in `tier` by `event`, free their blocks, let go of their parents.

        For copies that count as children of their parents (READY and INCOMING ones).
        """
        tier.copies.move(nodes, event)
        tier.pool.give_dropped(tier.copies.blocks_of(nodes))
        parent, holds, state = self.tree.parent, tier.copies.holds, tier.copies.state
        for node in nodes:
            above = parent[node]
            holds[above] -= 1
            if not holds[above] and state[above] == READY:
                self.review(tier, above)

    def forget(self, nodes: Sequence[NodeId]) -> None:
        """Remove those of the nodes that have no copy left."""
        match self.below:
            case []:
                self.tree.remove(nodes)
            case [lower]:
                above, below = self.gpu.copies.state, lower.copies.state
                self.tree.remove([node for node in nodes if not (above[node] or below[node])])
            case _:
                self.tree.remove([node for node in nodes if not self.has_copy(node)])

    def detach(self, top: NodeId) -> None:
        """Take `top` and all below it out of the tree; no attempt may hold a reference into it.

        Copies that an op still touches go when it settles.
        """
        self.detach_all(self.tree.subtree(top))

    def detach_all(self, nodes: Sequence[NodeId]) -> None:
        """As `detach`, for attached nodes with all that is below them, parents before children."""
        for tier in self.tiers:
            state = tier.copies.state
            if known := [node for node in nodes if self.is_known(tier, node)]:
                tier.policy.on_remove(known, RemoveReason.DETACHED)
            readable = [node for node in nodes if state[node] in {READY, LEAVING}]
            self.emit_removed(tier, readable, RemoveCause.DETACHED)
        for node in nodes:
            self.tree.detach(node)
        for node in reversed(nodes):
            self._cut_loose(node)
        for node in reversed(nodes):
            if node in self.tree.detached:
                self.reap(node)

    def _cut_loose(self, node: NodeId) -> None:
        """Hang a detached node below the root: it may outlive its parent, whose id comes again."""
        parent = self.tree.parent[node]
        self.tree.parent[node] = ROOT
        for tier in self.tiers:
            if tier.copies.state[node] in {READY, INCOMING}:
                tier.copies.holds[ROOT] += 1
                self.unhold(tier, parent)

    def is_known(self, tier: Tier, node: NodeId) -> bool:
        """Whether the tier's policy has been told of the node's copy, and not of its removal.

        On the GPU a copy is announced when its block is taken; below, when it is written, and in
        exclusive tiers it is taken back when it starts on its way up.
        """
        state = tier.copies.state[node]
        if tier is self.gpu:
            return state in {READY, INCOMING}
        return state == READY and not (tier.forgets_reads and node in tier.reads)

    def reap(self, node: NodeId) -> None:
        """Drop the copies of a detached node that nothing holds; forget it with the last one."""
        for tier in self.tiers:
            if tier.copies.state[node] == READY and not tier.copies.holds[node]:
                self.emit_freed(tier, tier.copies.blocks_of([node]))
                self.drop(tier, [node], CopyEvent.DROP)
        if node not in self.tree.detached or self.tree.pins[node]:
            return
        if not any(tier.copies.state[node] for tier in self.tiers):
            self.forget([node])

    # -- events

    def emit_stored(self, tier: Tier, nodes: Sequence[NodeId]) -> None:
        """Report that copies became readable."""
        if self.sink is not None and nodes:
            keys = tuple(map(self.tree.key_of.__getitem__, nodes))
            blocks = tuple(tier.copies.blocks_of(nodes))
            self.sink.emit(BlocksStored(tier=tier.index, keys=keys, block_ids=blocks))

    def emit_removed(self, tier: Tier, nodes: Sequence[NodeId], cause: RemoveCause) -> None:
        """Report that readable copies are going."""
        if self.sink is not None and nodes:
            keys = tuple(map(self.tree.key_of.__getitem__, nodes))
            self.sink.emit(BlocksRemoved(tier=tier.index, keys=keys, cause=cause))

    def emit_kept(self, tier: Tier, nodes: Sequence[NodeId]) -> None:
        """Report that copies on their way out stay."""
        if self.sink is not None and nodes:
            keys = tuple(map(self.tree.key_of.__getitem__, nodes))
            self.sink.emit(BlocksKept(tier=tier.index, keys=keys))

    def emit_freed(self, tier: Tier, block_ids: Sequence[BlockId]) -> None:
        """Report that blocks that nobody could read are free."""
        if self.sink is not None and block_ids:
            self.sink.emit(BlocksFreed(tier=tier.index, block_ids=tuple(block_ids)))

    def emit_quarantined(self, op_id: OpId, tier: Tier, block_ids: Sequence[BlockId]) -> None:
        """Report that blocks are set apart until an op has settled."""
        if self.sink is not None and block_ids:
            ids = tuple(block_ids)
            self.sink.emit(BlocksQuarantined(op_id=op_id, tier=tier.index, block_ids=ids))

    def tell_removed(self, tier: Tier, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        """Tell the policy of a tier, unless it has heard of these nodes as retired."""
        if tier is not self.retired_from:
            tier.policy.on_remove(nodes, reason)

    # -- where a block is

    def has_copy(self, node: NodeId) -> bool:
        """Whether the node has a copy in any tier."""
        return any(tier.copies.state[node] for tier in self.tiers)

    def source_of(self, node: NodeId) -> Tier:
        """Return the nearest tier with a copy that can be read; there is one, or a copy comes."""
        for tier in self.tiers:
            if tier.copies.state[node] >= READY:
                return tier
        return self.gpu

    def is_below(self, tier: Tier, node: NodeId) -> bool:
        """Whether a READY copy of the node is in a tier below `tier`."""
        return any(low.copies.state[node] == READY for low in self.tiers[tier.index + 1 :])

    def note_due(self, tier: Tier, nodes: Iterable[NodeId]) -> None:
        """Note which READY copies are to be written through: hit often enough, and not below."""
        below, needed = tier.below, self.hits_to_write_through
        if below is None or needed is None:
            return
        state, state_below = tier.copies.state, below.copies.state
        detached, num_hits_of = self.tree.detached, self.num_hits_of
        for node in nodes:
            is_here_only = state[node] == READY and state_below[node] == ABSENT
            is_wanted = not needed or num_hits_of[node] >= needed
            if is_here_only and is_wanted and node not in detached:
                tier.due[node] = None

    def is_on_gpu(self, node: NodeId) -> bool:
        """Whether the node has a GPU copy, or will have one, that is not leaving."""
        state = self.gpu.copies.state[node]
        return node == ROOT or state in {READY, INCOMING}
