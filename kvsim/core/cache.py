"""The state that the parts of the cache manager share, and the small steps they are made of."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvsim.core.ports import RemoveReason
from kvsim.core.residency import INCOMING, LEAVING, READY, CopyEvent
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
    from collections.abc import Callable, Sequence

    from kvsim.config import CacheConfig
    from kvsim.core.attempt import Attempt
    from kvsim.core.ops import Answer
    from kvsim.core.ports import EventSink, EvictionPolicy, Peel
    from kvsim.types import BlockId, NodeId, OpId, RequestId, TierIndex


_NOTHING: frozenset[OpId] = frozenset()


class OpenTransfer:
    """A Transfer that has not settled: which nodes it copies, and between which tiers.

    `pins` are references of ended attempts that go on until the op has settled. `is_timed_out`
    is set once its deadline has passed: then only its Settled is missing.
    """

    __slots__ = ("is_timed_out", "nodes", "pins", "source", "source_ids", "target")

    def __init__(
        self,
        nodes: list[NodeId],
        source: TierIndex,
        target: TierIndex,
        source_ids: list[BlockId],
    ) -> None:
        self.nodes = nodes
        self.source_ids = source_ids
        self.source = source
        self.target = target
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


class CacheState:
    """Tree, tiers, live attempts and open ops of one instance.

    Attributes
    ----------
    incoming_by
        The open Transfer that writes an INCOMING GPU copy. A GPU copy not listed here is written
        by an open Forward.
    num_path_blocks
        Lengths of the live attempts' paths, added up.
    num_rescued
        Copies hit again on their way down, by open ops: while 0, a settled write-back need not
        look for them.
    postponed
        Answers of failed Transfers on which an open Forward depends: taken when that has settled,
        so that no block is given away while a Forward may still read it.
    version
        Rises whenever blocks may have become free or evictable.
    drop_next
        The last write-back failed: the next eviction drops instead, so that a broken link
        cannot stop the instance.
    """

    def __init__(
        self,
        config: CacheConfig,
        new_policy: Callable[[TierIndex, int, PrefixTree], EvictionPolicy],
        sink: EventSink | None,
    ) -> None:
        capacities = [n for i, n in enumerate(config.tier_blocks) if n or not i]
        # Every node has a copy in some tier, and a copy has a block of its own.
        num_nodes = sum(capacities) + 1
        self.config = config
        self.sink = sink
        self.tree = PrefixTree(num_nodes)
        self.tiers = [
            Tier(i, n, num_nodes, new_policy(i, n, self.tree)) for i, n in enumerate(capacities)
        ]
        self.gpu = self.tiers[0]
        self.lower = self.tiers[1] if len(self.tiers) > 1 else None
        # Victims leave the GPU for the tier below where there is one; from the last they go.
        last = self.tiers[-1]
        self.peels: list[Peel] = [
            partial(
                tier.copies.peel,
                self.tree.parent,
                CopyEvent.DROP if tier is last else CopyEvent.LEAVE,
            )
            for tier in self.tiers
        ]
        self.live: dict[RequestId, Attempt] = {}
        self.transfers: dict[OpId, OpenTransfer] = {}
        self.forwards: dict[OpId, OpenForward] = {}
        self.incoming_by: dict[NodeId, OpId] = {}
        self.postponed: list[Answer] = []
        self.num_path_blocks = 0
        self.num_rescued = 0
        self.version = 0
        self.drop_next = False

    # -- what keeps a copy where it is

    def hold(self, tier: Tier, node: NodeId) -> None:
        """Add one hold on the node's copy in `tier`; tell the policy if it was evictable."""
        holds = tier.copies.holds
        holds[node] += 1
        if holds[node] == 1 and tier.copies.state[node] == READY and node not in self.tree.detached:
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

    def rescue(self, node: NodeId) -> None:
        """Keep a copy that was hit on its way down; it protects its parent again."""
        self.gpu.copies.move([node], CopyEvent.RESCUE)
        self.emit_kept(self.gpu, [node])
        self.hold(self.gpu, self.tree.parent[node])
        self.start_read(self.gpu, node)
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
        if self.lower is None:
            self.tree.remove(nodes)
            return
        above, below = self.gpu.copies.state, self.lower.copies.state
        self.tree.remove([node for node in nodes if not (above[node] or below[node])])

    def detach(self, top: NodeId) -> None:
        """Take `top` and all below it out of the tree; nobody may hold a reference into it.

        Copies that an op still touches go when it settles.
        """
        nodes = self.tree.subtree(top)
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

        Above, a copy is announced when its block is taken; below, when it is written, and it is
        taken back when it starts on its way up.
        """
        state = tier.copies.state[node]
        if tier is self.gpu:
            return state in {READY, INCOMING}
        return state == READY and node not in tier.reads

    def reap(self, node: NodeId) -> None:
        """Drop the copies of a detached node that nothing holds; forget it with the last one."""
        for tier in self.tiers:
            if tier.copies.state[node] == READY and not tier.copies.holds[node]:
                self.emit_freed(tier, tier.copies.blocks_of([node]))
                self.drop(tier, [node], CopyEvent.DROP)
        is_held = self.tree.pins[node] or self.gpu.copies.state[node]  # by a reference, or an op
        if node in self.tree.detached and not is_held:
            self.forget([node])

    # -- counts

    def has_evictable(self, n: int, path: Sequence[NodeId]) -> bool:
        """Whether eviction can free `n` GPU blocks in the end without touching `path`.

        Shared blocks make the lengths of the live paths add up to more than they hold, so the
        quick answer is a lower bound; only where that is not enough are they counted.
        """
        num_in = self.gpu.copies.num_in
        quick = num_in[READY] - self.num_path_blocks - len(path) - len(self.tree.detached)
        if quick >= n and not (self.transfers or self.forwards):
            return True
        return quick >= n + self._num_op_pinned() or self.num_evictable(path) >= n

    def num_evictable(self, path: Sequence[NodeId] = ()) -> int:
        """Count the GPU blocks that eviction can free in the end: READY, attached, held by nobody.

        `path` counts as held. A copy hit again on its way down keeps its ancestors too until that
        op settles; these few are counted as evictable.
        """
        held = set(path).union(self.tree.detached, *(a.path for a in self.live.values()))
        for node in self._op_pins():
            held.update(self.tree.path_to(node))
        state = self.gpu.copies.state
        num_held = bytes(map(state.__getitem__, held)).count(READY)
        return self.gpu.copies.num_in[READY] - num_held

    def _num_op_pinned(self) -> int:
        """Bound how many nodes are held by references that ended attempts left to their ops."""
        return sum(len(self.tree.path_to(node)) for node in self._op_pins())

    def _op_pins(self) -> list[NodeId]:
        pins = [node for transfer in self.transfers.values() for node in transfer.pins]
        pins += [node for forward in self.forwards.values() for node in forward.pins]
        return pins

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

    def is_on_gpu(self, node: NodeId) -> bool:
        """Whether the node has a GPU copy, or will have one, that is not leaving."""
        state = self.gpu.copies.state[node]
        return node == ROOT or state in {READY, INCOMING}
