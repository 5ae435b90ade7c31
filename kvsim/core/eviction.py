"""Making room: eviction is planned, then applied, and never waits for the tier below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.cache import OpenTransfer
from kvsim.core.ops import Place, Transfer
from kvsim.core.planning import Planner
from kvsim.core.ports import RemoveReason
from kvsim.core.residency import READY, CopyEvent
from kvsim.core.tree import ROOT
from kvsim.errors import PolicyError
from kvsim.events import RemoveCause, TransferIssued

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvsim.core.cache import CacheState
    from kvsim.core.tier import Tier
    from kvsim.types import BlockId, NodeId, OpId, RequestId


class Evictor:
    """Frees blocks: writes them back to the tier below where that has room, else drops them.

    Parameters
    ----------
    cache
        The state to change.
    new_op_id
        Gives the id of the next op.
    instance
        Named in the Places of the ops.
    timeout_ns
        Deadline of a Transfer after its issue; None: none.

    Attributes
    ----------
    num_skipped_writes
        Blocks that were due to be written through and found no room below.
    """

    def __init__(
        self,
        cache: CacheState,
        *,
        new_op_id: Callable[[], OpId],
        instance: int,
        timeout_ns: int | None,
    ) -> None:
        self._cache = cache
        self._new_op_id = new_op_id
        self._timeout_ns = timeout_ns
        self._places = [Place(instance=instance, tier=tier.index) for tier in cache.tiers]
        self._planner = Planner(cache, self._drop_chosen)
        # With two exclusive tiers a victim has no copy below, and its parent none either.
        self._is_plain = not cache.is_inclusive and len(cache.below) < 2
        self.num_skipped_writes = 0

    def reclaim(self, n: int, now: int, *, tier: Tier | None = None) -> list[Transfer]:
        """Take up to `n` evictable blocks from a tier, the GPU's unless told otherwise.

        Blocks that find no room below are free on return; the others when the returned Transfers
        are done. The oldest victims are dropped first: the slots below go to those chosen last,
        so that ancestors come before descendants and a child gets one only if its parent keeps a
        copy somewhere.
        """
        if tier is None:
            tier = self._cache.gpu
        below = tier.below
        if below is None:
            self._drop_victims(tier, n, now)
            return []
        if tier.drop_next:
            self._drop_rather_than_move(tier, below, lambda: self._choose(tier, n, now), now)
            return []
        return self._write_back(tier, below, self._choose(tier, n, now), now)

    def move_out(self, tier: Tier, take: Callable[[], list[NodeId]], now: int) -> list[Transfer]:
        """As `reclaim`, for what `take` returns: victims (children first) the policy knows to go.

        It is called again where something had to go first. After a failed write-back what can go
        is dropped, and the rest moves.
        """
        cache = self._cache
        below = tier.below
        cache.retired_from = tier
        ops: list[Transfer] = []
        if below is None:
            self._drop_taken(tier, take())
        else:
            if tier.drop_next:
                self._drop_rather_than_move(tier, below, take, now)
            if not tier.drop_next and (victims := take()):
                ops = self._write_back(tier, below, victims, now)
        cache.retired_from = None
        return ops

    def _write_back(
        self, tier: Tier, below: Tier, victims: list[NodeId], now: int
    ) -> list[Transfer]:
        num_wanting = len(victims)
        if not self._is_plain:
            num_wanting -= len(self._planner.without_need(tier, victims))
        self._make_room(below, num_wanting, victims, now)
        num_slots = len(below.pool.free)
        demoted = victims
        if not self._is_plain or below.reads or len(victims) > num_slots:
            demoted = self._planner.sort_out(tier, victims, num_slots)
        if not demoted:
            return []
        self._cache.tell_removed(tier, demoted, RemoveReason.DEMOTED)
        return [self._demote(demoted, tier, below, now)]

    def write_through(self, now: int) -> list[Transfer]:
        """Copy down what is due; make room for it by dropping, and skip what finds none."""
        ops: list[Transfer] = []
        for tier in self._cache.tiers:
            below = tier.below
            if below is None or not tier.due:
                continue
            due, tier.due = tier.due, {}
            # What was noted may have gone meanwhile, and its id may be another block's.
            self._cache.note_due(tier, due)
            nodes, tier.due = _parents_first(tier.due, self._cache.tree.parent), {}
            for node in nodes:
                self._cache.hold_all(node)
            self._make_room(below, len(nodes), nodes, now)
            for node in nodes:
                self._cache.unhold_all(node)
            num_slots = len(below.pool.free)
            self.num_skipped_writes += max(0, len(nodes) - num_slots)
            if nodes := nodes[:num_slots][::-1]:
                ops.append(self._copy_down(nodes, tier, below, now))
        return ops

    def write_back(self, path: Sequence[NodeId], now: int) -> list[Transfer]:
        """Write back what nobody refers to at the end of `path`, as far as there is room below."""
        cache = self._cache
        gpu, lower = cache.gpu, cache.lower
        if lower is None or gpu.drop_next:
            return []
        state, holds, parent = gpu.copies.state, gpu.copies.holds, cache.tree.parent
        free: list[NodeId] = []
        for node in reversed(path):
            # All but the last have a child, which goes before.
            if state[node] != READY or holds[node] > bool(free):
                break
            free.append(node)
        num_wanting = sum(not cache.is_below(gpu, node) for node in free)
        self._make_room(lower, num_wanting, free, now)
        num_slots = len(lower.pool.free)
        twins: list[NodeId] = []
        demoted: list[NodeId] = []
        above = ROOT
        for node in free:
            is_twin = cache.is_below(gpu, node)
            if not is_twin and len(demoted) == num_slots:
                break
            gpu.policy.on_remove([node], RemoveReason.SWAPPED)
            gpu.copies.move([node], CopyEvent.LEAVE)
            (twins if is_twin else demoted).append(node)
            above = parent[node]
            holds[above] -= 1
        if above != ROOT and state[above] == READY and not holds[above]:
            cache.review(gpu, above)
        if twins:
            self._planner.drop_twins(gpu, twins, is_told=True)
        return [self._demote(demoted, gpu, lower, now)] if demoted else []

    def _drop_rather_than_move(
        self, tier: Tier, below: Tier, take: Callable[[], list[NodeId]], now: int
    ) -> None:
        """Free blocks at once, after a write-back has failed: those of the victims that it takes.

        Where nothing can go, something is held by an open op; then it is still to be done.
        """
        num_owned = tier.pool.num_owned
        self._planner.sort_out(tier, take(), 0)
        if tier.pool.num_owned == num_owned:
            # All victims have descendants below, which must go first.
            self._drop_victims(below, below.pool.capacity, now)
            self._planner.sort_out(tier, take(), 0)
        tier.drop_next = tier.pool.num_owned == num_owned

    def issue(
        self,
        nodes: list[NodeId],
        source: Tier,
        target: Tier,
        target_ids: list[BlockId],
        now: int,
        *,
        attempts: tuple[tuple[RequestId, int], ...] = (),
        releases_source: bool = False,
    ) -> Transfer:
        """Record a Transfer of the nodes' copies into `target_ids` and return it."""
        cache = self._cache
        op_id = self._new_op_id()
        source_ids = source.copies.blocks_of(nodes)
        cache.transfers[op_id] = OpenTransfer(
            nodes, source.index, target.index, source_ids, releases_source=releases_source
        )
        if cache.sink is not None:
            cache.sink.emit(
                TransferIssued(
                    op_id=op_id,
                    source=source.index,
                    target=target.index,
                    keys=tuple(map(cache.tree.key_of.__getitem__, nodes)),
                    source_ids=tuple(source_ids),
                    target_ids=tuple(target_ids),
                    releases_source=releases_source,
                )
            )
        return Transfer(
            op_id=op_id,
            source=self._places[source.index],
            target=self._places[target.index],
            source_ids=tuple(source_ids),
            target_ids=tuple(target_ids),
            attempts=attempts,
            releases_source=releases_source,
            deadline_at=None if self._timeout_ns is None else now + self._timeout_ns,
        )

    def _demote(self, nodes: list[NodeId], tier: Tier, below: Tier, now: int) -> Transfer:
        target_ids = self._reserve(nodes, below)
        return self.issue(nodes, tier, below, target_ids, now, releases_source=True)

    def _copy_down(self, nodes: list[NodeId], tier: Tier, below: Tier, now: int) -> Transfer:
        """Write copies through that stay: the op reads them until it has settled."""
        target_ids = self._reserve(nodes, below)
        for node in nodes:
            self._cache.start_read(tier, node)
        self._cache.num_rescued += len(nodes)
        return self.issue(nodes, tier, below, target_ids, now)

    def _reserve(self, nodes: list[NodeId], below: Tier) -> list[BlockId]:
        """Give the nodes INCOMING copies below."""
        target_ids = below.pool.take(len(nodes))
        parent = self._cache.tree.parent
        if not self._is_plain:
            state, holds = below.copies.state, below.copies.holds
            for node in nodes:
                above = parent[node]
                if state[above] == READY and not holds[above]:
                    below.policy.on_pinned(above)
        below.copies.reserve(nodes, target_ids, parent)
        return target_ids

    def _make_room(self, tier: Tier, n: int, nodes: Sequence[NodeId], now: int) -> None:
        """Drop blocks of a tier until `n` are free for the nodes that come from above."""
        missing = n - len(tier.pool.free)
        if missing <= 0:
            return
        cache = self._cache
        guards: list[NodeId] = []
        if not self._is_plain:
            # What leaves the tier above protects its parent no more, but will hang below it.
            guards = [cache.tree.parent[node] for node in nodes]
        for node in guards:
            cache.hold_all(node)
        self._drop_victims(tier, missing, now)
        for node in guards:
            cache.unhold_all(node)

    def _drop_victims(self, tier: Tier, n: int, now: int) -> None:
        """Drop up to `n` evictable blocks of a tier, and what would be out of reach below them."""
        self._drop_taken(tier, self._choose(tier, n, now))

    def _drop_taken(self, tier: Tier, victims: list[NodeId]) -> None:
        if not victims:
            return
        if len(self._cache.tiers) < 3:
            self._drop_chosen(tier, victims)
        else:
            self._planner.sort_out(tier, victims, 0)

    def _choose(self, tier: Tier, n: int, now: int) -> list[NodeId]:
        """Let the policy choose; what it returns must be what it took with `peel`.

        Raises
        ------
        PolicyError
            If it is not, or is more than was asked for.
        """
        num_in = tier.copies.num_in
        num_ready = num_in[READY]
        victims = tier.policy.choose_victims(n, self._cache.peels[tier.index], now)
        num_taken = num_ready - num_in[READY]
        if not len(victims) == num_taken <= n:
            raise PolicyError(
                f"{type(tier.policy).__name__}.choose_victims returned {len(victims)} victims and"
                f" took {num_taken} with peel, where at most {n} were asked for; it must return"
                " just what it took"
            )
        return victims

    def _drop_chosen(self, tier: Tier, victims: list[NodeId]) -> None:
        """Finish victims that were peeled off by DROP, their parents let go of."""
        cache = self._cache
        if cache.sink is not None:
            cache.emit_removed(tier, victims, RemoveCause.EVICTED)
        tier.pool.give_dropped(tier.copies.blocks_of(victims))
        cache.tell_removed(tier, victims, RemoveReason.EVICTED)
        cache.forget(victims)


def _parents_first(nodes: Iterable[NodeId], parent: Sequence[NodeId]) -> list[NodeId]:
    """Return the nodes in their order, but for parents that come after a child of theirs."""
    left = dict.fromkeys(nodes)
    ordered: list[NodeId] = []
    while left:
        node = next(iter(left))
        chain: list[NodeId] = []
        while node in left:
            del left[node]
            chain.append(node)
            node = parent[node]
        ordered += chain[::-1]
    return ordered
