"""The cache manager of one instance: who holds which blocks, and which ops that takes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from kvsim.core.cache import CacheState, OpenForward
from kvsim.core.check import check_cache
from kvsim.core.eviction import Evictor
from kvsim.core.ports import AccessInfo, PolicyContext, RemoveReason
from kvsim.core.residency import ABSENT, INCOMING, LEAVING, READY, CopyEvent
from kvsim.core.settlement import Settler
from kvsim.core.tree import ROOT
from kvsim.errors import MisuseError
from kvsim.events import AttemptEnded, EndReason, FillIssued, RequestAdmitted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvsim.config import CacheConfig
    from kvsim.core.attempt import Attempt
    from kvsim.core.ops import Answer, Transfer
    from kvsim.core.ports import EventSink, EvictionPolicy
    from kvsim.core.tier import Tier
    from kvsim.core.tree import PrefixTree
    from kvsim.types import BlockKey, NodeId, OpId, Rng, TierIndex


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
_ADMITTED = Admission()
_READY_AS_INCOMING = bytes([ABSENT, INCOMING, INCOMING, LEAVING, *range(4, 256)])


class CacheManager:
    """Hierarchical prefix cache of one instance: a GPU tier, and an exclusive CPU tier below.

    Sans-IO: it takes the time and answers in and gives ops out. It never blocks, and reads
    neither a clock nor random numbers.

    Parameters
    ----------
    config
        Sizes and modes.
    new_policy
        Makes the eviction policy of one tier.
    rng
        Handed to the policies.
    recompute_ns
        Cost of computing the block at a depth again, for cost-aware policies.
    instance
        Number of this instance, named in ops.
    transfer_timeout_ns
        Deadline of a Transfer after its issue; None: none.
    sink
        Where events go; None: nowhere.
    """

    def __init__(
        self,
        config: CacheConfig,
        new_policy: Callable[[PolicyContext], EvictionPolicy],
        *,
        rng: Rng,
        recompute_ns: Callable[[int], int] = lambda depth: depth + 1,
        instance: int = 0,
        transfer_timeout_ns: int | None = None,
        sink: EventSink | None = None,
    ) -> None:
        shared: dict[str, object] = {}

        def build(tier: TierIndex, capacity: int, tree: PrefixTree) -> EvictionPolicy:
            return new_policy(
                PolicyContext(
                    tier=tier,
                    capacity_blocks=capacity,
                    num_nodes=tree.num_nodes,
                    key_of=tree.key_of,
                    rng=rng,
                    recompute_ns=recompute_ns,
                    shared=shared,
                )
            )

        self.config = config
        self._swap_batch = config.swap_batch
        self._low_watermark = config.low_watermark
        self._cache = CacheState(config, build, sink)
        self._next_op_id = 0
        self._evictor = Evictor(
            self._cache,
            new_op_id=self.new_op_id,
            instance=instance,
            timeout_ns=transfer_timeout_ns,
        )
        self._settler = Settler(self._cache, self.release)
        self.num_duplicate_blocks = 0

    # -- queries

    @property
    def version(self) -> int:
        """Rises whenever a Blocked or Deferred attempt may fare better than before."""
        return self._cache.version

    @property
    def has_open_ops(self) -> bool:
        """Whether an op has not settled."""
        return bool(self._cache.transfers or self._cache.forwards)

    def num_free_blocks(self, tier: TierIndex = 0) -> int:
        """Blocks of `tier` that nobody owns."""
        return len(self._cache.tiers[tier].pool.free)

    @property
    def num_evictable_blocks(self) -> int:
        """GPU blocks that eviction can free, now or after their descendants."""
        return self._cache.num_evictable()

    def is_open(self, op_id: OpId) -> bool:
        """Whether a Transfer or Forward has not settled."""
        return op_id in self._cache.transfers or op_id in self._cache.forwards

    def match(self, keys: Sequence[BlockKey]) -> tuple[int, ...]:
        """Return for each block of the longest cached leading run the tier it would come from.

        A block that an op is still writing counts where it will be. Changes nothing.
        """
        gpu = self._cache.gpu.copies.state
        return tuple(int(gpu[node] == ABSENT) for node in self._cache.tree.match(keys))

    def check(self) -> None:
        """Recompute every count and state relation; raise `InvariantError` on any difference."""
        check_cache(self._cache)

    # -- commands

    def new_op_id(self) -> OpId:
        """Return the next op id; ids rise over the whole run."""
        self._next_op_id += 1
        return self._next_op_id

    def admit(self, attempt: Attempt, now: int) -> AdmitOutcome:
        """Match the attempt's keys and take every block it needs, all or nothing.

        Raises
        ------
        MisuseError
            If the attempt, or another one of its request, holds blocks already.
        """
        cache = self._cache
        gpu = cache.gpu
        request_id = attempt.request.request_id
        if attempt.is_admitted or request_id in cache.live:
            raise MisuseError(f"request {request_id} is admitted already")
        path = cache.tree.match(attempt.keys)
        states = bytes(map(gpu.copies.state.__getitem__, path))
        if attempt.no_reload and ABSENT in states:
            path, states = self._without_reloads(attempt, path, states)
        num_matched = len(path)
        num_needed = attempt.num_wanted_blocks - num_matched + states.count(ABSENT)
        ops: list[Transfer] = []
        if num_needed > len(gpu.pool.free):
            outcome = self._make_room(num_needed, now, path, states)
            if not isinstance(outcome, Admission):
                return outcome
            ops += outcome.ops
        elif path:
            cache.hold_all(path[-1])
        if path:
            cache.tree.pins[path[-1]] += 1
        request = attempt.request
        info = attempt.info = AccessInfo(
            now,
            request_id,
            request.session_id,
            request.num_input_tokens + attempt.num_made,
            request.priority,
            None,
            request.next_use_at,
        )
        if ABSENT in states or LEAVING in states:
            ops += self._fetch(attempt, path, states, info, now)
        elif path:
            gpu.policy.on_hit(path, 0, info)
        attempt.after = attempt.own_transfers
        if INCOMING in states:
            attempt.after = self._dependencies(path, states, attempt.own_transfers)
        attempt.path = path
        attempt.table = gpu.copies.blocks_of(path)
        attempt.table += gpu.pool.take(attempt.num_wanted_blocks - num_matched)
        attempt.num_hit_blocks = num_matched
        attempt.num_joined_blocks = states.count(INCOMING)
        attempt.is_admitted = True
        cache.live[request_id] = attempt
        cache.num_path_blocks += num_matched
        if cache.sink is not None:
            self._emit_admitted(attempt, states, now)
        return Admission(ops=tuple(ops)) if ops else _ADMITTED

    def fill(self, attempt: Attempt, num_blocks: int, op_id: OpId) -> None:
        """Make nodes of the attempt's leading blocks that will be full once `op_id` is done.

        They can be matched from now on: whoever does depends on `op_id`.
        """
        start = len(attempt.path)
        end = min(num_blocks, len(attempt.keys))
        if end > start:
            forward = self._cache.forwards.get(op_id)
            if forward is None:
                forward = self._cache.forwards[op_id] = OpenForward()
            self._fill(attempt, start, end, forward, op_id)

    def fill_at_once(self, attempt: Attempt, num_blocks: int) -> None:
        """As `fill`, by an op that is done: for driving the cache without time."""
        start = len(attempt.path)
        end = min(num_blocks, len(attempt.keys))
        if end > start:
            forward = OpenForward()
            self._fill(attempt, start, end, forward, None)
            self._settler.fill_done(forward)

    def issue_forward(self, op_id: OpId, after: Iterable[OpId]) -> None:
        """Take note of a Forward that is submitted, and of the ops it waits for."""
        forward = self._cache.forwards.get(op_id)
        if forward is None:
            forward = self._cache.forwards[op_id] = OpenForward()
        forward.after = frozenset(after)

    def grow(self, attempt: Attempt, num_blocks: int, now: int) -> AdmitOutcome:
        """Append `num_blocks` private blocks to the attempt's table, all or none."""
        self._require_live(attempt)
        pool = self._cache.gpu.pool
        ops: tuple[Transfer, ...] = ()
        if num_blocks > len(pool.free):
            outcome = self._make_room(num_blocks, now, [], b"")
            if not isinstance(outcome, Admission):
                return outcome
            ops = outcome.ops
        attempt.table += pool.take(num_blocks)
        return Admission(ops=ops)

    def publish(self, attempt: Attempt, num_tokens: int) -> None:
        """Make nodes of the output blocks that `num_tokens` tokens with KV have filled."""
        num_blocks = attempt.layout.num_full_blocks(num_tokens)
        start = len(attempt.path)
        # A block is a node only below all blocks before it.
        if num_blocks > start >= len(attempt.request.block_keys):
            self._require_live(attempt)
            attempt.add_output_keys(num_blocks)
            self.fill_at_once(attempt, num_blocks)

    def release(
        self, attempt: Attempt, reason: EndReason, now: int, *, held_by: OpId | None = None
    ) -> None:
        """End the attempt: its reference and its private blocks go back.

        Parameters
        ----------
        held_by
            A timed-out Forward that may still read the attempt's blocks and write its private
            ones: they are quarantined until it has settled.

        Raises
        ------
        MisuseError
            If the attempt holds nothing: it was never admitted, or has ended.
        """
        cache = self._cache
        self._require_live(attempt)
        cache.version += 1
        del cache.live[attempt.request.request_id]
        cache.num_path_blocks -= len(attempt.path)
        attempt.is_admitted = False
        private = attempt.private_block_ids
        path = attempt.path
        if held_by is None:
            if private:
                cache.gpu.pool.give(private)
        else:
            cache.gpu.pool.quarantine(held_by, private)
            self._keep_reading(path, held_by)
        attempt.duplicates.clear()
        if path:
            if attempt.info is not None:
                cache.gpu.policy.on_release(path, attempt.info)
            for op_id in attempt.own_transfers:
                if (transfer := cache.transfers.get(op_id)) is not None:
                    # The deepest block it writes: deeper ones may be another op's, and go with it.
                    deepest = transfer.nodes[-1]
                    cache.pin(deepest)
                    transfer.pins.append(deepest)
            cache.unpin(path[-1])
        attempt.path, attempt.table, attempt.after = [], [], ()
        if cache.sink is not None:
            cache.sink.emit(
                AttemptEnded(
                    at=now,
                    request_id=attempt.request.request_id,
                    attempt=attempt.number,
                    reason=reason,
                )
            )

    def settle(self, answer: Answer) -> list[Attempt]:
        """Take the answer to an op; return attempts that cannot go on and were released."""
        return self._settler.settle(answer)

    def keep_low_watermark(self, now: int) -> tuple[Transfer, ...]:
        """Write back ahead of need while fewer blocks than the low-water mark are coming free."""
        cache = self._cache
        gpu = cache.gpu
        coming = len(gpu.pool.free) + gpu.copies.num_in[LEAVING]
        if cache.lower is None or coming >= self._low_watermark:
            return ()
        return tuple(self._evictor.reclaim(self._swap_batch, now))

    # -- parts of admit

    def _without_reloads(
        self, attempt: Attempt, path: list[NodeId], states: bytes
    ) -> tuple[list[NodeId], bytes]:
        """Cut the path before the first block that may not be copied up again."""
        keys, no_reload = attempt.keys, attempt.no_reload
        for i, state in enumerate(states):
            if state == ABSENT and keys[i] in no_reload:
                return path[:i], states[:i]
        return path, states

    def _make_room(
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
        batch = self._swap_batch if cache.lower is not None else 1
        ops = tuple(self._evictor.reclaim(max(shortfall, batch), now))
        is_enough = num_needed <= len(gpu.pool.free)
        for node in guards[1:] if is_enough else guards:
            cache.unhold_all(node)
        if is_enough:
            return Admission(ops=ops) if ops else _ADMITTED
        return Deferred(ops=ops)

    def _fetch(
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
                    self._rescue(node)
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
        """Copies below start on their way up: an op reads them, and their policy lets them go."""
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

    def _rescue(self, node: NodeId) -> None:
        """A block was hit on its way down: its copy stays, and protects its parent again."""
        cache = self._cache
        cache.gpu.copies.move([node], CopyEvent.RESCUE)
        cache.hold(cache.gpu, cache.tree.parent[node])
        cache.start_read(cache.gpu, node)
        cache.num_rescued += 1

    def _dependencies(
        self, path: list[NodeId], states: bytes, own: tuple[OpId, ...]
    ) -> tuple[OpId, ...]:
        incoming_by, forwards = self._cache.incoming_by, self._cache.forwards
        after = set(own)
        for node, state in zip(path, states, strict=True):
            if state == INCOMING:
                if node in incoming_by:
                    after.add(incoming_by[node])
                else:
                    after.update(forwards)
        return tuple(sorted(after))

    # -- parts of fill

    def _fill(
        self, attempt: Attempt, start: int, end: int, forward: OpenForward, op_id: OpId | None
    ) -> None:
        cache = self._cache
        gpu = cache.gpu
        keys = attempt.keys[start:end]
        cache.num_path_blocks += len(keys)
        if not cache.tree.index.keys().isdisjoint(keys):
            nodes = self._fill_known(attempt, start, keys, forward)
        else:
            last = attempt.path[-1] if attempt.path else ROOT
            nodes = self._insert(last, keys, attempt.table[start:end])
            attempt.path += nodes
            gpu.policy.on_insert(nodes, start, attempt.info)
        forward.fills.append((attempt, nodes))
        if cache.sink is not None and nodes and op_id is not None:
            cache.sink.emit(
                FillIssued(
                    op_id=op_id,
                    request_id=attempt.request.request_id,
                    attempt=attempt.number,
                    keys=tuple(map(cache.tree.key_of.__getitem__, nodes)),
                    block_ids=tuple(gpu.copies.blocks_of(nodes)),
                )
            )

    def _insert(
        self, last: NodeId, keys: Sequence[BlockKey], block_ids: Sequence[int]
    ) -> list[NodeId]:
        """Add a chain of nodes with INCOMING GPU copies; the attempt's reference moves along."""
        cache = self._cache
        nodes = cache.tree.insert(last, keys)
        cache.gpu.copies.reserve_chain(nodes, block_ids)
        if last == ROOT:
            cache.gpu.copies.holds[ROOT] += 1
        # On the GPU the parent's hold passes from the reference to its new child.
        if cache.lower is not None:
            cache.lower.copies.holds[nodes[-1]] += 1
            if last != ROOT:
                cache.unhold(cache.lower, last)
        return nodes

    def _fill_known(
        self, attempt: Attempt, start: int, keys: Sequence[BlockKey], forward: OpenForward
    ) -> list[NodeId]:
        """As `_insert`, where some keys are in the tree by now, block by block."""
        cache = self._cache
        gpu, index = cache.gpu, cache.tree.index
        info = self._info_of(attempt)
        filled: list[NodeId] = []
        for depth, key in enumerate(keys, start):
            last = attempt.path[-1] if attempt.path else ROOT
            block_id = attempt.table[depth]
            if key not in index:
                nodes = self._insert(last, [key], [block_id])
                attempt.path += nodes
                filled += nodes
                gpu.policy.on_insert(nodes, depth, info)
                continue
            node = index[key]
            state = gpu.copies.state[node]
            if state == ABSENT:
                gpu.copies.reserve([node], [block_id], cache.tree.parent)
                gpu.policy.on_insert([node], depth, info)
                filled.append(node)
                forward.supersedes = True
            else:
                if state == LEAVING:
                    gpu.policy.on_insert([node], depth, info)
                    self._rescue(node)
                attempt.duplicates[depth] = block_id
                self.num_duplicate_blocks += 1
                if attempt not in forward.duplicates:
                    forward.duplicates.append(attempt)
            cache.pin(node)
            if last != ROOT:
                cache.unpin(last)
            attempt.path.append(node)
        return filled

    # -- small

    def _keep_reading(self, path: list[NodeId], op_id: OpId) -> None:
        """Let a timed-out Forward keep a reference on what it may still read."""
        state = self._cache.gpu.copies.state
        for node in reversed(path):
            if state[node] == READY:
                self._cache.pin(node)
                self._cache.forwards[op_id].pins.append(node)
                return

    def _info_of(self, attempt: Attempt) -> AccessInfo:
        if attempt.info is None:
            raise MisuseError(f"request {attempt.request.request_id} was never admitted")
        return attempt.info

    def _require_live(self, attempt: Attempt) -> None:
        if self._cache.live.get(attempt.request.request_id) is not attempt:
            raise MisuseError(
                f"attempt {attempt.number} of request {attempt.request.request_id} holds nothing:"
                " it was never admitted, or has ended"
            )

    def _emit_admitted(self, attempt: Attempt, states: bytes, now: int) -> None:
        sink = self._cache.sink
        if sink is None:
            return
        key_of, path = self._cache.tree.key_of, attempt.path
        hits = tuple(
            tuple(key_of[v] for v, s in zip(path, states, strict=True) if (s == ABSENT) == tier)
            for tier in range(len(self._cache.tiers))
        )
        sink.emit(
            RequestAdmitted(
                at=now,
                request_id=attempt.request.request_id,
                attempt=attempt.number,
                hit_keys=hits,
                private_block_ids=tuple(attempt.table[len(path) :]),
                after=attempt.after,
            )
        )
