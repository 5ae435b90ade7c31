"""The cache manager of one instance: who holds which blocks, and which ops that takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.config import Preempt, TierInclusion
from kvsim.core.admission import (
    ADMITTED,
    Admission,
    AdmitOutcome,
    Admitter,
    Blocked,
    Deferred,
)
from kvsim.core.ahead import Ahead
from kvsim.core.cache import CacheState, OpenForward
from kvsim.core.check import check_cache
from kvsim.core.contexts import PolicyContexts
from kvsim.core.counts import num_evictable
from kvsim.core.eviction import Evictor
from kvsim.core.filling import Filler
from kvsim.core.holding import (
    emit_admitted,
    emit_ended,
    keep_reading,
    let_go,
    tiers_of,
)
from kvsim.core.loans import Loans
from kvsim.core.ops import OpIds
from kvsim.core.residency import ABSENT, INCOMING, LEAVING
from kvsim.core.retention import access_info
from kvsim.core.settlement import Settler
from kvsim.core.upkeep import Upkeep
from kvsim.errors import MisuseError
from kvsim.events import EndReason, RequestGrown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvsim.config import CacheConfig
    from kvsim.core.attempt import Attempt
    from kvsim.core.ops import Answer, Transfer
    from kvsim.core.ports import EventSink, EvictionPolicy, PolicyContext
    from kvsim.core.tree import PrefixTree
    from kvsim.types import BlockKey, OpId, Rng, TierIndex

__all__ = ["Admission", "AdmitOutcome", "Blocked", "CacheManager", "Deferred"]


class CacheManager:
    """Hierarchical prefix cache of one instance: a GPU tier, and up to two tiers below.

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
    new_op_id
        Gives the ids of ops, where several managers share them; None: count from 1.

    Attributes
    ----------
    loans
        Ops that copy blocks from or to another instance.
    upkeep
        What an operator asks. His orders are called here: `pin_prefix`, `unpin_prefix`, `evict`,
        `flush`, `bump_weight_version` and `resize`; see `kvsim.core.upkeep.Upkeep`.
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
        new_op_id: Callable[[], OpId] | None = None,
    ) -> None:
        contexts = PolicyContexts(
            rng=rng,
            recompute_ns=recompute_ns,
            is_inclusive=config.tier_inclusion is TierInclusion.INCLUSIVE,
        )

        def build(tier: TierIndex, capacity: int, tree: PrefixTree) -> EvictionPolicy:
            return new_policy(contexts.new(tier, capacity, tree))

        self.config = config
        self._shares_in_flight = config.share_in_flight
        self._cache = CacheState(config, build, sink)
        self._new_op_id = new_op_id or OpIds()
        self._evictor = Evictor(
            self._cache,
            new_op_id=self.new_op_id,
            instance=instance,
            timeout_ns=transfer_timeout_ns,
        )
        self._settler = Settler(self._cache, self.release)
        self.upkeep = upkeep = Upkeep(self._cache, self._evictor, contexts.listeners)
        self._admitter = Admitter(self._cache, self._evictor, upkeep, config.swap_batch)
        self._filler = Filler(self._cache)
        self.loans = Loans(self._cache, self._filler)
        self.pin_prefix, self.unpin_prefix = upkeep.pin_prefix, upkeep.unpin_prefix
        self.evict, self.flush, self.resize = upkeep.evict, upkeep.flush, upkeep.resize
        self.bump_weight_version = upkeep.bump_weight_version
        self._writes_through = self._cache.hits_to_write_through is not None
        self._ahead = Ahead(self._cache, self._evictor, config)

    # -- queries

    @property
    def version(self) -> int:
        """Rises whenever a Blocked or Deferred attempt may fare better than before."""
        return self._cache.version

    @property
    def num_duplicate_blocks(self) -> int:
        """Blocks that were computed although their key was in the tree by then."""
        return self._filler.num_duplicate_blocks

    @property
    def num_skipped_writes(self) -> int:
        """Blocks that were due to be written through and found no room below."""
        return self._evictor.num_skipped_writes

    @property
    def num_tiers(self) -> int:
        """Tiers, the GPU's included."""
        return len(self._cache.tiers)

    @property
    def has_writes_due(self) -> bool:
        """Whether blocks are to be written through."""
        return self._writes_through and any(tier.due for tier in self._cache.tiers)

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
        return num_evictable(self._cache)

    def is_open(self, op_id: OpId) -> bool:
        """Whether a Transfer or Forward has not settled."""
        return op_id in self._cache.transfers or op_id in self._cache.forwards

    def match(self, keys: Sequence[BlockKey]) -> tuple[int, ...]:
        """Return for each block of the longest cached leading run the tier it would come from.

        A block that an op is still writing counts where it will be. Changes nothing.
        """
        return tiers_of(self._cache, self._cache.tree.match(keys))

    def check(self) -> None:
        """Recompute every count and state relation; raise `InvariantError` on any difference."""
        check_cache(self._cache)

    # -- commands

    def new_op_id(self) -> OpId:
        """Return the next op id; ids rise over the whole run."""
        return self._new_op_id()

    def admit(self, attempt: Attempt, now: int) -> AdmitOutcome:
        """Match the attempt's keys and take every block it needs, all or nothing.

        Raises
        ------
        MisuseError
            If the attempt, or another one of its request, holds blocks already.
        """
        cache = self._cache
        gpu, state = cache.gpu, cache.gpu.copies.state
        request_id = attempt.request.request_id
        if attempt.is_admitted or request_id in cache.live:
            raise MisuseError(f"request {request_id} is admitted already")
        path = cache.tree.match(attempt.keys)
        states = bytes([state[node] for node in path])
        if attempt.no_reload or not self._shares_in_flight:
            path, states = self._admitter.usable(attempt, path, states)
        num_matched = len(path)
        num_needed = attempt.num_wanted_blocks - num_matched + states.count(ABSENT)
        ops: list[Transfer] = []
        if num_needed > len(gpu.pool.free):
            outcome = self._admitter.make_room(num_needed, now, path, states)
            if not isinstance(outcome, Admission):
                return outcome
            ops += outcome.ops
        elif path:
            cache.hold_all(path[-1])
        if path:
            cache.tree.pins[path[-1]] += 1
        info = attempt.info = access_info(attempt, now)
        tiers = tiers_of(cache, path) if cache.sink is not None else ()
        if cache.is_inclusive:
            self._admitter.hit_below(path, info)
        if ABSENT in states or LEAVING in states:
            ops += self._admitter.fetch(attempt, path, states, info, now)
        elif path:
            gpu.policy.on_hit(path, 0, info)
        attempt.after = attempt.own_transfers
        if INCOMING in states:
            attempt.after = self._admitter.dependencies(path, states, attempt.own_transfers)
        attempt.path = path
        own = gpu.pool.take(attempt.num_wanted_blocks - num_matched)
        attempt.table = gpu.copies.blocks_of(path) + own
        attempt.num_hit_blocks, attempt.num_joined_blocks = num_matched, states.count(INCOMING)
        attempt.is_admitted = True
        attempt.weight_version = cache.weight_version
        cache.live[request_id] = attempt
        cache.num_path_blocks += num_matched
        emit_admitted(cache, attempt, tiers, now)
        return Admission(ops=tuple(ops)) if ops else ADMITTED

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
            self._filler.fill(attempt, start, end, forward, op_id)
            if self._cache.prefix_pins:
                self.upkeep.renew_pins()

    def fill_at_once(self, attempt: Attempt, num_blocks: int) -> None:
        """As `fill`, by an op that is done: for driving the cache without time."""
        start = len(attempt.path)
        end = min(num_blocks, len(attempt.keys))
        if end > start and not self._filler.fill_at_once(attempt, start, end):
            forward = OpenForward()
            self._filler.fill(attempt, start, end, forward, None)
            self._settler.fill_done(forward)
        if self._cache.prefix_pins:
            self.upkeep.renew_pins()

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
            outcome = self._admitter.make_room(num_blocks, now, [], b"")
            if not isinstance(outcome, Admission):
                return outcome
            ops = outcome.ops
        block_ids = pool.take(num_blocks)
        attempt.table += block_ids
        sink = self._cache.sink
        if sink is not None:
            request_id = attempt.request.request_id
            sink.emit(RequestGrown(request_id, attempt.number, tuple(block_ids)))
        return Admission(ops=ops)

    def publish(self, attempt: Attempt, num_tokens: int) -> None:
        """Make nodes of the output blocks that `num_tokens` tokens with KV have filled."""
        num_blocks = attempt.layout.num_full_blocks(num_tokens)
        start = len(attempt.path)
        # A block is a node only below all blocks before it, and of the weights of today.
        if (
            num_blocks > start >= len(attempt.request.block_keys)
            and attempt.weight_version == self._cache.weight_version
        ):
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
        private, path = attempt.private_block_ids, attempt.path
        if attempt.loans:
            private = self.loans.leave(attempt, private)
        if reason is EndReason.RESTARTED and cache.incoming_by:
            # Whoever waited for these copies computes the blocks, unless they arrive after all.
            waited = [cache.tree.key_of[node] for node in path if node in cache.incoming_by]
            attempt.no_reload = attempt.no_reload.union(waited)
        if held_by is None:
            if private:
                cache.gpu.pool.give(private)
        else:
            cache.gpu.pool.quarantine(held_by, private)
            cache.emit_quarantined(held_by, cache.gpu, private)
            keep_reading(cache, path, held_by)
        attempt.duplicates.clear()
        if path:
            let_go(cache, attempt)
        attempt.path, attempt.table, attempt.after = [], [], ()
        emit_ended(cache, attempt, reason, now)

    def settle(self, answer: Answer) -> list[Attempt]:
        """Take the answer to an op; return attempts that cannot go on and were released."""
        if answer.op_id in self.loans.open_ops:
            self.loans.close(answer)
        ended = self._settler.settle(answer)
        if self._cache.prefix_pins:
            self.upkeep.renew_pins()
        return ended

    def preempt(self, attempt: Attempt, now: int, how: Preempt) -> tuple[Transfer, ...]:
        """Release the attempt; if it is swapped, write back what nobody else refers to at once.

        What finds no room below stays on the GPU. Its private blocks are free.

        Raises
        ------
        MisuseError
            If the attempt holds nothing.
        """
        path = list(attempt.path)
        self.release(attempt, EndReason.PREEMPTED, now)
        return tuple(self._evictor.write_back(path, now)) if how is Preempt.SWAP else ()

    def write_through(self, now: int) -> tuple[Transfer, ...]:
        """Copy down what the write policy has found due since the last call."""
        return tuple(self._evictor.write_through(now)) if self._writes_through else ()

    def keep_low_watermark(self, now: int) -> tuple[Transfer, ...]:
        """Write back ahead of need where fewer blocks than the low-water mark are coming free.

        Also does what `write_through` does, and empties blocks that are retiring, as soon as
        nobody holds them.
        """
        ops = self.write_through(now)
        if self.upkeep.is_retiring:
            ops = (*ops, *self.upkeep.retire(now))
        return (*ops, *self._ahead.keep_low_watermark(now))

    def make_room_below(self, num_blocks: int, now: int) -> tuple[Transfer, ...]:
        """Write back from tiers between two others until `num_blocks` will be free in each."""
        return tuple(self._ahead.make_room_below(num_blocks, now))

    def _require_live(self, attempt: Attempt) -> None:
        if self._cache.live.get(attempt.request.request_id) is not attempt:
            raise MisuseError(
                f"attempt {attempt.number} of request {attempt.request.request_id} holds nothing:"
                " it was never admitted, or has ended"
            )
