"""Getting a request's blocks together: room, reloads, rescues and dependencies."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from kvsim.core.ports import RemoveReason
from kvsim.core.residency import ABSENT, INCOMING, LEAVING, READY

if TYPE_CHECKING:
    from kvsim.core.attempt import Attempt
    from kvsim.core.cache import CacheState
    from kvsim.core.eviction import Evictor
    from kvsim.core.ops import Transfer
    from kvsim.core.ports import AccessInfo
    from kvsim.core.tier import Tier
    from kvsim.types import NodeId, OpId


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
    """

    def __init__(self, cache: CacheState, evictor: Evictor, swap_batch_blocks: int) -> None:
        self._cache = cache
        self._evictor = evictor
        self._swap_batch = swap_batch_blocks

    def without_reloads(
        self, attempt: Attempt, path: list[NodeId], states: bytes
    ) -> tuple[list[NodeId], bytes]:
        """Cut the path before the first block that may not be copied up again."""
        keys, no_reload = attempt.keys, attempt.no_reload
        for i, state in enumerate(states):
            if state == ABSENT and keys[i] in no_reload:
                return path[:i], states[:i]
        return path, states

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
        if shortfall <= 0:
            return Deferred()
        if not cache.has_evictable(shortfall, path):
            return Blocked(shortfall_blocks=shortfall - cache.num_evictable(path))
        guards = path[-1:]
        if own_leaving or ABSENT in states:
            # What no child in the same tier protects must be held by hand meanwhile.
            below = zip(path, states[1:], strict=False)
            guards += [node for node, state in below if state in {ABSENT, LEAVING}]
        for node in guards:
            cache.hold_all(node)
        ops = tuple(self._reclaim(shortfall, now))
        is_enough = num_needed <= len(gpu.pool.free)
        for node in guards[1:] if is_enough else guards:
            cache.unhold_all(node)
        if is_enough:
            return Admission(ops=ops) if ops else ADMITTED
        return Deferred(ops=ops)

    def _reclaim(self, shortfall: int, now: int) -> list[Transfer]:
        """Evict until `shortfall` blocks are free or on their way, which the caller knows to be.

        One round does it, except after a failed write-back: then blocks are dropped at once, and
        those with descendants below cannot be.
        """
        gpu = self._cache.gpu
        batch = self._swap_batch if self._cache.lower is not None else 1
        target = len(gpu.pool.free) + gpu.copies.num_in[LEAVING] + shortfall
        ops: list[Transfer] = []
        num_free = -1
        while shortfall > 0 and not ops and num_free != len(gpu.pool.free):
            num_free = len(gpu.pool.free)
            ops += self._evictor.reclaim(max(shortfall, batch), now)
            shortfall = target - len(gpu.pool.free) - gpu.copies.num_in[LEAVING]
        return ops

    def fetch(
        self, attempt: Attempt, path: list[NodeId], states: bytes, info: AccessInfo, now: int
    ) -> list[Transfer]:
        """Rescue what is leaving, and order the copies of what is below."""
        cache = self._cache
        gpu = cache.gpu
        runs: list[tuple[int, int, list[NodeId]]] = []
        start = 0
        for kind, group in groupby(states.translate(_READY_AS_INCOMING)):
            length = len(tuple(group))
            runs.append((kind, start, path[start : start + length]))
            start += length
        for kind, start, nodes in runs:
            if kind == INCOMING:
                gpu.policy.on_hit(nodes, start, info)
            elif kind == ABSENT and cache.lower is not None:
                self._start_up(cache.lower, nodes, start, info)
        cold: list[NodeId] = []
        for kind, start, nodes in runs:
            if kind == LEAVING:
                gpu.policy.on_insert(nodes, start, info)
                for node in nodes:
                    self._cache.rescue(node)
            elif kind == ABSENT:
                cold += nodes
                gpu.policy.on_insert(nodes, start, info)
        if not cold or cache.lower is None:
            return []
        target_ids = gpu.pool.take(len(cold))
        parent, state, holds = cache.tree.parent, gpu.copies.state, gpu.copies.holds
        for node in cold:
            above = parent[node]
            if not holds[above] and state[above] == READY:
                gpu.policy.on_pinned(above)
        gpu.copies.reserve(cold, target_ids, parent)
        request_id = attempt.request.request_id
        transfer = self._evictor.issue(
            cold, cache.lower, gpu, target_ids, now, attempts=((request_id, attempt.number),)
        )
        cache.incoming_by.update(dict.fromkeys(cold, transfer.op_id))
        attempt.own_transfers = (transfer.op_id,)
        attempt.num_reload_blocks = len(cold)
        return [transfer]

    def _start_up(self, lower: Tier, nodes: list[NodeId], depth: int, info: AccessInfo) -> None:
        """Start copies below on their way up: an op reads them, and their policy lets them go."""
        # Blocks that a timed-out copy still reads were taken from the policy then.
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
