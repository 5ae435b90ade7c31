"""Making room: eviction is planned, then applied, and never waits for the tier below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.cache import OpenTransfer
from kvsim.core.ops import Place, Transfer
from kvsim.core.ports import RemoveReason
from kvsim.core.residency import READY, CopyEvent
from kvsim.errors import PolicyError
from kvsim.events import RemoveCause, TransferIssued

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.core.cache import CacheState
    from kvsim.core.tier import Tier
    from kvsim.types import BlockId, NodeId, OpId, RequestId


class Evictor:
    """Frees GPU blocks: writes them back to the tier below where that has room, else drops them.

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
        self._retired_from: Tier | None = None
        self._places = [Place(instance=instance, tier=tier.index) for tier in cache.tiers]

    def reclaim(self, n: int, now: int) -> list[Transfer]:
        """Take up to `n` evictable blocks from the GPU tier.

        Blocks that find no room below are free on return; the others when the returned Transfers
        are done. The oldest victims are dropped first: the slots below go to those chosen last,
        so that ancestors come before descendants and a child gets one only if its parent keeps a
        copy somewhere.
        """
        cache = self._cache
        gpu, lower = cache.gpu, cache.lower
        if lower is None:
            self._drop_victims(gpu, n, now)
            return []
        if cache.drop_next:
            num_free = len(gpu.pool.free)
            self._drop_rather_than_move(gpu, lower, n, now)
            # Where nothing could go, something is held by an open op; then it is still to be done.
            cache.drop_next = len(gpu.pool.free) == num_free
            return []
        return self._write_back(gpu, lower, self._choose(gpu, n, now), now)

    def move_out(self, tier: Tier, victims: list[NodeId], now: int) -> list[Transfer]:
        """As `reclaim`, for victims (children first) that the policy has been told are gone."""
        cache = self._cache
        self._retired_from = tier
        ops: list[Transfer] = []
        if tier is not cache.gpu or cache.lower is None:
            self._drop_chosen(tier, victims)
        elif cache.drop_next:
            self._sort_out(tier, cache.lower, victims, 0)
        else:
            ops = self._write_back(tier, cache.lower, victims, now)
        self._retired_from = None
        return ops

    def _write_back(
        self, gpu: Tier, lower: Tier, victims: list[NodeId], now: int
    ) -> list[Transfer]:
        missing = len(victims) - len(lower.pool.free)
        if missing > 0:
            self._drop_victims(lower, missing, now)
        num_slots = len(lower.pool.free)
        demoted = victims
        if lower.reads or len(victims) > num_slots:
            demoted = self._sort_out(gpu, lower, victims, num_slots)
        if not demoted:
            return []
        self._tell_removed(gpu, demoted, RemoveReason.DEMOTED)
        return [self._demote(demoted, lower, now)]

    def _drop_rather_than_move(self, gpu: Tier, lower: Tier, n: int, now: int) -> None:
        """Free GPU blocks at once, after a write-back has failed."""
        num_free = len(gpu.pool.free)
        self._sort_out(gpu, lower, self._choose(gpu, n, now), 0)
        if len(gpu.pool.free) == num_free:
            # All victims have descendants below, which must go first.
            self._drop_victims(lower, lower.pool.capacity, now)
            self._sort_out(gpu, lower, self._choose(gpu, n, now), 0)

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
        cache.transfers[op_id] = OpenTransfer(nodes, source.index, target.index, source_ids)
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

    def _demote(self, nodes: list[NodeId], lower: Tier, now: int) -> Transfer:
        gpu = self._cache.gpu
        target_ids = lower.pool.take(len(nodes))
        # No parent is evictable below: who has a child above has at most a copy on its way down.
        lower.copies.reserve(nodes, target_ids, self._cache.tree.parent)
        return self.issue(nodes, gpu, lower, target_ids, now, releases_source=True)

    def _drop_victims(self, tier: Tier, n: int, now: int) -> None:
        """Drop up to `n` evictable blocks of a tier that nothing below depends on."""
        victims = self._choose(tier, n, now)
        if victims:
            self._drop_chosen(tier, victims)

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
        self._tell_removed(tier, victims, RemoveReason.EVICTED)
        cache.forget(victims)

    def _sort_out(
        self, gpu: Tier, lower: Tier, victims: list[NodeId], num_slots: int
    ) -> list[NodeId]:
        """Drop what finds no room below, oldest first; return what is to be written back.

        A victim that is below already (a timed-out op still reads it there) needs no room. One
        stays where it is if something of its subtree is busy below (a copy under way, or read):
        dropping it would leave that out of reach. Whoever stays keeps its ancestors too; they
        come later in `victims`.
        """
        cache = self._cache
        parent, below = cache.tree.parent, lower.copies.state
        num_over = sum(below[node] != READY for node in victims) - num_slots
        dropped: list[NodeId] = []
        twins: list[NodeId] = []
        demoted: list[NodeId] = []
        kept: list[NodeId] = []
        for node in victims:
            is_twin = below[node] == READY
            if not gpu.copies.holds[node]:
                if is_twin:
                    twins.append(node)
                    continue
                if num_over <= 0:
                    demoted.append(node)
                    continue
                if not lower.copies.holds[node]:
                    dropped.append(node)
                    num_over -= 1
                    continue
            kept.append(node)
            num_over -= not is_twin
            cache.hold(gpu, parent[node])
        if dropped:
            gpu.copies.move(dropped, CopyEvent.LEFT)
            self._drop_chosen(gpu, dropped)
        if twins:
            self._drop_twins(gpu, twins)
        if kept:
            self._put_back(gpu, kept)
        return demoted

    def _drop_twins(self, gpu: Tier, twins: list[NodeId]) -> None:
        self._cache.emit_removed(gpu, twins, RemoveCause.DEMOTED)
        gpu.copies.move(twins, CopyEvent.LEFT)
        gpu.pool.give_dropped(gpu.copies.blocks_of(twins))
        self._tell_removed(gpu, twins, RemoveReason.DEMOTED)

    def _tell_removed(self, tier: Tier, nodes: list[NodeId], reason: RemoveReason) -> None:
        """Tell the policy, unless it has heard of these nodes as retired."""
        if tier is not self._retired_from:
            tier.policy.on_remove(nodes, reason)

    def _put_back(self, gpu: Tier, kept: list[NodeId]) -> None:
        gpu.copies.move(kept, CopyEvent.RESCUE)
        self._tell_removed(gpu, kept, RemoveReason.DEMOTED)
        gpu.policy.on_insert(kept, 0, None)
        for node in kept:
            if not gpu.copies.holds[node]:
                gpu.policy.on_evictable(node)
