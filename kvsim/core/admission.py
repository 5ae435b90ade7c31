"""Getting a request's blocks together: room, reloads, rescues and dependencies."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from kvsim.core.counts import has_evictable, num_evictable, num_leaving_for_good
from kvsim.core.ports import RemoveReason
from kvsim.core.residency import ABSENT, INCOMING, LEAVING, READY

if TYPE_CHECKING:
    from kvsim.core.attempt import Attempt
    from kvsim.core.cache import CacheState
    from kvsim.core.eviction import Evictor
    from kvsim.core.ops import Transfer
    from kvsim.core.ports import AccessInfo
    from kvsim.core.tier import Tier
    from kvsim.core.upkeep import Upkeep
    from kvsim.types import NodeId, OpId, TierIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The attempt (or its growth) has all its blocks. `ops` are to be submitted."""

    ops: tuple[Transfer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """Enough blocks will be free once `ops` and the write-backs under way are done.

    Only those ops happened: the attempt holds nothing. Ask again after an answer or a release.
    """

    ops: tuple[Transfer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Not even all evictable blocks would do: nothing has changed."""

    shortfall_blocks: int


AdmitOutcome: TypeAlias = Admission | Deferred | Blocked
ADMITTED = Admission()
_DISK = 2
_READY_AS_INCOMING = bytes([ABSENT, INCOMING, INCOMING, LEAVING, *range(4, 256)])


class Admitter:
    """Makes room for an attempt and brings what it hits to the GPU.

    Parameters
    ----------
    cache
        The state to change.
    evictor
        Frees blocks.
    swap_batch_blocks
        How many blocks a write-back moves at least.
    upkeep
        Empties blocks that are retiring.
    """

    def __init__(
        self, cache: CacheState, evictor: Evictor, upkeep: Upkeep, swap_batch_blocks: int
    ) -> None:
        self._cache = cache
        self._evictor = evictor
        self._upkeep = upkeep
        # What needs no copy goes one by one.
        writes_back = cache.lower is not None and cache.hits_to_write_through is None
        self._batch = swap_batch_blocks if writes_back else 1

    def usable(
        self, attempt: Attempt, path: list[NodeId], states: bytes
    ) -> tuple[list[NodeId], bytes]:
        """Cut the path before the first block that the attempt must compute itself.

        That is one whose copy up has failed, and, unless such are shared, one that is being
        computed for another request.
        """
        cache = self._cache
        keys, no_reload, incoming_by = attempt.keys, attempt.no_reload, cache.incoming_by
        shares = cache.config.share_in_flight
        for i, state in enumerate(states):
            is_refused = state == ABSENT and keys[i] in no_reload
            is_computed = state == INCOMING and path[i] not in incoming_by
            if is_refused or (is_computed and not shares):
                return path[:i], states[:i]
        return path, states

    def hit_below(self, path: list[NodeId], info: AccessInfo) -> None:
        """Tell the policies of the lower tiers, where they are inclusive, what was hit."""
        cache = self._cache
        for tier in cache.below:
            start = 0
            for state, group in groupby(map(tier.copies.state.__getitem__, path)):
                end = start + len(tuple(group))
                if state == READY:
                    with cache.unlisted(tier, path[start:end]) as nodes:
                        tier.policy.on_hit(nodes, start, info)
                start = end
        if cache.num_hits_of:
            for node in path:
                cache.num_hits_of[node] += 1
        cache.note_due(cache.gpu, path)

    def make_room(
        self, num_needed: int, now: int, path: list[NodeId], states: bytes
    ) -> AdmitOutcome:
        """Get `num_needed` blocks free without touching `path`, or say why not.

        After an Admission the copies of the last node of `path` are held. A policy hears nothing
        of an attempt that is blocked.
        """
        cache = self._cache
        gpu = cache.gpu
        # Own hits on their way down will be kept, so their blocks do not come free.
        own_leaving = states.count(LEAVING)
        shortfall = num_needed - len(gpu.pool.free) - gpu.copies.num_in[LEAVING] + own_leaving
        if gpu.pool.retiring:
            shortfall += num_leaving_for_good(cache, path)
        if shortfall <= 0:
            return Deferred()
        if not has_evictable(cache, shortfall, path):
            return Blocked(shortfall_blocks=shortfall - num_evictable(cache, path))
        guards = path[-1:]
        if own_leaving or ABSENT in states:
            # What no child in the same tier protects must be held by hand meanwhile.
            below = zip(path, states[1:], strict=False)
            guards += [node for node, state in below if state in {ABSENT, LEAVING}]
        for node in guards:
            cache.hold_all(node)
        ops = tuple(self._reclaim(shortfall, now, path))
        is_enough = num_needed <= len(gpu.pool.free)
        for node in guards[1:] if is_enough else guards:
            cache.unhold_all(node)
        if is_enough:
            return Admission(ops=ops) if ops else ADMITTED
        return Deferred(ops=ops)

    def _reclaim(self, shortfall: int, now: int, path: list[NodeId]) -> list[Transfer]:
        """Evict until `shortfall` blocks are free or on their way, which the caller knows to be.

        One round does it, except after a failed write-back: then blocks are dropped at once, and
        those with descendants below cannot be.
        """
        gpu = self._cache.gpu
        ops: list[Transfer] = []
        if gpu.pool.retiring:
            # First, or the policy may choose what frees nothing.
            before = self._num_coming(path)
            ops += self._upkeep.retire(now)
            shortfall -= self._num_coming(path) - before
        target = len(gpu.pool.free) + gpu.copies.num_in[LEAVING] + shortfall
        num_free, num_ops = -1, len(ops)
        while shortfall > 0 and len(ops) == num_ops and num_free != len(gpu.pool.free):
            num_free = len(gpu.pool.free)
            ops += self._evictor.reclaim(max(shortfall, self._batch), now)
            shortfall = target - len(gpu.pool.free) - gpu.copies.num_in[LEAVING]
        return ops

    def _num_coming(self, path: list[NodeId]) -> int:
        gpu = self._cache.gpu
        coming = len(gpu.pool.free) + gpu.copies.num_in[LEAVING]
        return coming - num_leaving_for_good(self._cache, path)

    def fetch(
        self, attempt: Attempt, path: list[NodeId], states: bytes, info: AccessInfo, now: int
    ) -> list[Transfer]:
        """Rescue what is leaving, and order the copies of what is below."""
        cache = self._cache
        gpu = cache.gpu
        runs: list[tuple[int, int, list[NodeId]]] = []
        cold_in: dict[TierIndex, list[NodeId]] = {}
        start = 0
        for kind, group in groupby(states.translate(_READY_AS_INCOMING)):
            length = len(tuple(group))
            runs.append((kind, start, path[start : start + length]))
            start += length
        for kind, start, nodes in runs:
            if kind == INCOMING:
                gpu.policy.on_hit(nodes, start, info)
            elif kind == ABSENT:
                for tier, piece, depth in self._by_source(nodes, start):
                    self._start_up(tier, piece, depth, info)
                    cold_in.setdefault(tier.index, []).extend(piece)
        for kind, start, nodes in runs:
            if kind == LEAVING:
                gpu.policy.on_insert(nodes, start, info)
                for node in nodes:
                    cache.rescue(gpu, node)
            elif kind == ABSENT:
                gpu.policy.on_insert(nodes, start, info)
        ops = [
            self._copy_up(attempt, nodes, cache.tiers[index], now)
            for index, nodes in cold_in.items()
        ]
        attempt.own_transfers = tuple(op.op_id for op in ops)
        attempt.num_reload_blocks = sum(map(len, cold_in.values()))
        attempt.num_disk_blocks = len(cold_in.get(_DISK, ()))
        return ops

    def _copy_up(self, attempt: Attempt, nodes: list[NodeId], source: Tier, now: int) -> Transfer:
        """Order a copy of the nodes' blocks to the GPU."""
        cache = self._cache
        gpu = cache.gpu
        target_ids = gpu.pool.take(len(nodes))
        parent, state, holds = cache.tree.parent, gpu.copies.state, gpu.copies.holds
        for node in nodes:
            above = parent[node]
            if not holds[above] and state[above] == READY:
                gpu.policy.on_pinned(above)
        gpu.copies.reserve(nodes, target_ids, parent)
        transfer = self._evictor.issue(
            nodes,
            source,
            gpu,
            target_ids,
            now,
            attempts=((attempt.request.request_id, attempt.number),),
        )
        cache.incoming_by.update(dict.fromkeys(nodes, transfer.op_id))
        return transfer

    def _by_source(self, nodes: list[NodeId], depth: int) -> list[tuple[Tier, list[NodeId], int]]:
        """Return runs of the nodes by the tier they come from, with their depths."""
        cache = self._cache
        if cache.lower is not None and cache.lower.below is None:
            return [(cache.lower, nodes, depth)]
        runs: list[tuple[Tier, list[NodeId], int]] = []
        for index, group in groupby(nodes, lambda node: cache.source_of(node).index):
            run = list(group)
            runs.append((cache.tiers[index], run, depth))
            depth += len(run)
        return runs

    def _start_up(self, lower: Tier, nodes: list[NodeId], depth: int, info: AccessInfo) -> None:
        """Start copies below on their way up: an op reads them.

        Their policy lets them go where tiers are exclusive.
        """
        cache = self._cache
        state = lower.copies.state
        for at, node in enumerate(nodes, depth):
            if state[node] == LEAVING:  # on its way farther down
                if not lower.forgets_reads:
                    lower.policy.on_insert([node], at, info)
                cache.rescue(lower, node)
        if not lower.forgets_reads:
            for node in nodes:
                cache.start_read(lower, node)
            return
        # Blocks that another copy still reads were taken from the policy then.
        known = [node for node in nodes if node not in lower.reads] if lower.reads else nodes
        if known:
            lower.policy.on_hit(known, depth, info)
        reads, holds = lower.reads, lower.copies.holds
        for node in nodes:
            if not holds[node]:
                lower.policy.on_pinned(node)
            holds[node] += 1
            reads[node] = reads.get(node, 0) + 1
        if known:
            lower.policy.on_remove(known, RemoveReason.PROMOTED)

    def dependencies(
        self, path: list[NodeId], states: bytes, own: tuple[OpId, ...]
    ) -> tuple[OpId, ...]:
        """Return the ops that write blocks of `path`, and `own`."""
        incoming_by, forwards = self._cache.incoming_by, self._cache.forwards
        writers = [
            op_id for op_id, each in forwards.items() if each.fills and not each.is_timed_out
        ]
        after = set(own)
        for node, state in zip(path, states, strict=True):
            if state == INCOMING:
                if node in incoming_by:
                    after.add(incoming_by[node])
                else:
                    after.update(writers)
        return tuple(sorted(after))
