"""Drives a cache manager as a scheduler and a backend do, and checks all that it promises."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from kvsim import policies
from kvsim.config import CacheConfig, Preempt
from kvsim.core.manager import Admission, Blocked, CacheManager, Deferred
from kvsim.core.ops import Completion, Outcome, Settled
from kvsim.core.residency import INCOMING
from kvsim.events import EndReason
from kvsim.policies import policy_factory
from kvsim.policies.rank import RankPolicy
from kvsim.testing import CheckedPolicy, EventMirror, PerBlockLRU, Prompt, digest, make_request
from kvsim.types import PartialRule
from tests.property.client import Client, new_attempt, num_common_steps
from tests.property.memory import Memory, OpenOp, Piece, blocks_written
from tests.property.promises import (
    check_a_large_one_fits,
    check_nothing_is_left,
    check_promises,
    check_reloads,
    keys_in,
    missing_blocks,
)
from tests.property.recount import Recount

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.core.attempt import Attempt
    from kvsim.core.ops import Transfer
    from kvsim.core.ports import EvictionPolicy, PolicyContext
    from kvsim.policies.registry import PolicyMaker
    from kvsim.types import OpId

POLICIES: dict[str, str | PolicyMaker] = {
    **{name: name for name in policies.POLICIES},
    "per-block": PerBlockLRU,
}


class Driver:
    """One instance: its manager, its clients, and a model of its memory.

    A method is one thing that can happen, and asserts what it promises.
    """

    def __init__(
        self,
        config: CacheConfig,
        *,
        policy: str = "lru",
        partial: PartialRule = PartialRule.NEVER,
        transfer_timeout_ns: int | None = None,
    ) -> None:
        self.config = config
        self.partial = partial
        self.policies: list[CheckedPolicy] = []
        self.mirror = EventMirror(len(config.tier_blocks))
        self.recount = Recount(config.tier_blocks, self.mirror.events)
        _, make, _ = policy_factory(POLICIES[policy])

        def checked(context: PolicyContext) -> EvictionPolicy:
            made = make(context)
            wrapped = CheckedPolicy(made, is_ranked=isinstance(made, RankPolicy))
            self.policies.append(wrapped)
            return wrapped

        self.manager = CacheManager(
            config,
            checked,
            rng=Random(0),
            transfer_timeout_ns=transfer_timeout_ns,
            sink=self.mirror,
        )
        self.cache = self.manager._cache  # noqa: SLF001  (the invariants are about its inside)
        self.memory = Memory()
        self.waiting: list[Client] = []
        self.running: list[Client] = []
        self.batch: list[Client] = []
        self.building: OpenOp | None = None
        self.postponed: list[OpenOp] = []
        self.num_checked_events = 0
        self.now = 0
        self.num_requests = 0

    # -- queries

    @property
    def idle(self) -> list[Client]:
        """Clients that hold blocks and are in no Forward."""
        return [client for client in self.running if client not in self.batch]

    @property
    def answerable(self) -> list[OpenOp]:
        """Ops without a Completion."""
        return [op for op in self.memory.open.values() if not op.is_timed_out]

    @property
    def may_build(self) -> bool:
        """Whether a Forward may be built: one at a time, and a timed-out one counts."""
        return not any(op.pieces for op in self.memory.open.values())

    # -- requests

    def submit(self, prompt: Prompt, *, num_output_tokens: int = 1, reserve: int = 0) -> Client:
        """A request arrives."""
        request = make_request(
            self.num_requests,
            prompt,
            block_size=self.config.block_size,
            partial=self.partial,
            num_output_tokens=num_output_tokens,
            arrived_at=self.now,
        )
        self.num_requests += 1
        client = Client(request, new_attempt(request, self.config.block_size, reserve=reserve))
        self.waiting.append(client)
        return client

    def admit(self, client: Client) -> bool:
        """Ask the manager for the client's blocks; whether it got them."""
        attempt, manager = client.attempt, self.manager
        before, holdings = self._digest(), digest(attempt)
        matched = manager.match(attempt.keys)
        assert self._digest() == before, "match changed something"
        shortfall = missing_blocks(self, attempt)
        outcome = manager.admit(attempt, self.now)
        if isinstance(outcome, Blocked):
            assert self._digest() == before, "Blocked changed something"
            assert digest(attempt) == holdings, "Blocked changed the attempt"
            assert outcome.shortfall_blocks == shortfall > 0
            return False
        assert shortfall <= 0, f"{shortfall} blocks are missing, and yet {outcome}"
        self._issue(outcome.ops)
        if isinstance(outcome, Deferred):
            assert digest(attempt) == holdings, "Deferred changed the attempt"
            assert self.memory.open, "Deferred, and nothing will ever change"
            return False
        assert len(attempt.table) == attempt.num_wanted_blocks
        cuts = attempt.no_reload or not self.config.share_in_flight
        assert attempt.num_hit_blocks == len(matched) or cuts
        check_reloads(client, outcome.ops)
        num_tokens = attempt.layout.num_tokens(attempt.num_hit_blocks)
        client.num_kv = min(num_tokens, client.num_known)
        client.is_prefilling = True
        self.waiting.remove(client)
        self.running.append(client)
        return True

    def _digest(self) -> object:
        return digest(self.manager, without=[self.mirror]), len(self.mirror.events)

    def _issue(self, ops: Iterable[Transfer]) -> None:
        for op in ops:
            self.memory.start_transfer(op)

    def grow(self, client: Client, num_blocks: int) -> bool:
        """Ask for more private blocks; whether the client got them."""
        attempt = client.attempt
        before, holdings = self._digest(), digest(attempt)
        outcome = self.manager.grow(attempt, num_blocks, self.now)
        if isinstance(outcome, Blocked):
            assert self._digest() == before, "Blocked changed something"
        else:
            self._issue(outcome.ops)
        if isinstance(outcome, Admission):
            return True
        assert isinstance(outcome, Blocked) or self.memory.open, "Deferred for ever"
        assert digest(attempt) == holdings
        return False

    def publish(self, client: Client) -> None:
        """Make the client's full output blocks nodes."""
        if not client.is_prefilling:
            self.manager.publish(client.attempt, client.num_kv)

    def preempt(
        self, client: Client, how: Preempt = Preempt.RECOMPUTE, *, reserve: int = 0
    ) -> None:
        """Take the blocks of a client that is in no Forward; it waits for its next attempt."""
        self._issue(self.manager.preempt(client.attempt, self.now, how))
        self._requeue(client, reserve)

    def end(self, client: Client) -> None:
        """End a client that is in no Forward: it gives up, or has read enough."""
        self.manager.release(client.attempt, EndReason.FINISHED, self.now)
        self.running.remove(client)

    def write_back_ahead(self) -> None:
        """Keep the low-water mark."""
        self._issue(self.manager.keep_low_watermark(self.now))

    def _requeue(self, client: Client, reserve: int = 0) -> None:
        old = client.attempt
        self.running.remove(client)
        client.attempt = new_attempt(
            client.request,
            self.config.block_size,
            reserve=reserve,
            number=old.number + 1,
            num_made=client.num_made,
            no_reload=old.no_reload,
        )
        if not client.is_cancelled:
            self.waiting.append(client)

    # -- forwards

    def join(self, client: Client, num_tokens: int = 1 << 20) -> bool:
        """Put an idle client into the Forward that is being built; whether it could."""
        attempt = client.attempt
        layout = attempt.layout
        left = client.num_known - client.num_kv
        if not client.is_prefilling:
            missing = layout.num_blocks(client.num_kv + 1) - len(attempt.table)
            if client.num_made >= client.request.num_output_tokens:
                return False
            if missing > 0 and not self.grow(client, missing):
                return False
            piece = Piece(attempt, client.num_kv, 1, is_decode=True)
        elif left:
            piece = Piece(attempt, client.num_kv, min(left, num_tokens))
        else:
            piece = Piece(attempt, client.num_known - 1, 1, writes=False)
        if self.building is None:
            self.building = OpenOp(self.manager.new_op_id(), set(), set())
        self.building.pieces.append(piece)
        self.batch.append(client)
        if client.is_prefilling:
            end = piece.first_token + piece.num_tokens
            self.manager.fill(attempt, layout.num_full_blocks(end), self.building.op_id)
        return True

    def issue(self, num_steps: int = 1) -> OpenOp:
        """Submit the Forward that is being built."""
        op = self.building
        assert op is not None
        self.building = None
        if all(piece.is_decode for piece in op.pieces):
            op.num_steps = num_common_steps(self.batch, num_steps)
        after: set[OpId] = set()
        for piece in op.pieces:
            if piece.is_decode:
                piece.num_tokens = op.num_steps
            attempt, layout = piece.attempt, piece.attempt.layout
            end = layout.num_blocks(piece.first_token + piece.num_tokens)
            piece.table = tuple(attempt.table[:end])
            after.update(filter(self.manager.is_open, attempt.after))
            op.reads |= {(0, b) for b in piece.table}
            writes = set(blocks_written(piece))
            assert not writes & op.writes, "two pieces of a Forward write the same block"
            op.writes |= writes
        op.after = tuple(sorted(after - {op.op_id}))
        self.manager.issue_forward(op.op_id, op.after)
        self.memory.start(op)
        return op

    # -- answers

    def answer(self, op: OpenOp, outcome: Outcome = Outcome.DONE, steps_done: int = 1) -> bool:
        """Let an op end, if it can now; one whose predecessor failed cannot end well."""
        before = [self.memory.outcome_of.get(op_id) for op_id in op.after]
        if outcome is Outcome.DONE:
            if any(seen not in {None, Outcome.DONE} for seen in before):
                outcome = Outcome.FAILED
            elif None in before:
                return False
        if op.transfer is not None:
            self._answer_transfer(op, outcome)
        else:
            self._answer_forward(op, outcome, min(steps_done, op.num_steps))
        return True

    def _answer_transfer(self, op: OpenOp, outcome: Outcome) -> None:
        assert op.transfer is not None
        self.memory.finish(op.op_id, outcome)
        forwards = self.memory.open.values()
        if outcome is not Outcome.DONE and any(op.op_id in f.after for f in forwards):
            self.postponed.append(op)
        if outcome is not Outcome.DONE and op.transfer.target.tier == 0:
            up = {b for _, b in op.transfer.block_pairs}
            for client in self.running:
                number = client.attempt.number
                if (client.request.request_id, number) in op.transfer.attempts:
                    client.failed_reloads |= keys_in(client.attempt, up)
        self._take_ended(self._settle(op, outcome))

    def _answer_forward(self, op: OpenOp, outcome: Outcome, steps_done: int) -> None:
        batch, self.batch = self.batch, []
        self.memory.finish(op.op_id, outcome, steps_done)
        if outcome is Outcome.DONE:
            self._take_ended(self._settle(op, outcome))
            for client, piece in zip(batch, op.pieces, strict=True):
                self._advance(client, piece, steps_done)
            return
        held_by = op.op_id if outcome is Outcome.TIMED_OUT else None
        if held_by is not None:
            # What had not come yet may be read by it as garbage: its result is lost anyhow.
            copies = self.cache.gpu.copies
            nodes = self.cache.tree.index.values()
            op.reads -= {(0, copies.block[v]) for v in nodes if copies.state[v] == INCOMING}
        for client in batch:
            self.manager.release(client.attempt, EndReason.RESTARTED, self.now, held_by=held_by)
        ended = self._settle(op, outcome)
        for client in batch:
            self._requeue(client)
        self._take_ended(ended)

    def _advance(self, client: Client, piece: Piece, steps_done: int) -> None:
        if piece.is_decode:
            client.num_kv += steps_done
            client.num_made += steps_done
        else:
            client.num_kv = piece.first_token + piece.num_tokens
            if client.num_kv == client.num_known:
                client.is_prefilling = False
                client.num_made += 1
        if client.is_cancelled:
            self.manager.release(client.attempt, EndReason.CANCELLED, self.now)
            self.running.remove(client)

    def _settle(self, op: OpenOp, outcome: Outcome) -> list[Attempt]:
        return self.manager.settle(
            Completion(op_id=op.op_id, outcome=outcome, started_at=self.now, finished_at=self.now)
        )

    def come_to_rest(self, op: OpenOp) -> None:
        """Let a timed-out op settle."""
        self.memory.come_to_rest(op.op_id)
        self._take_ended(self.manager.settle(Settled(op_id=op.op_id, finished_at=self.now)))

    def _take_ended(self, ended: list[Attempt]) -> None:
        clients = {id(client.attempt): client for client in self.running}
        assert len({id(a) for a in ended}) == len(ended), "an attempt ended twice"
        for attempt in ended:
            client = clients[id(attempt)]
            assert client not in self.batch, "an attempt ended while its Forward was running"
            self._requeue(client)

    def drain(self) -> None:
        """Let every op end as well as it can."""
        while self.memory.open:
            for op in sorted(self.memory.open.values(), key=lambda op: op.op_id):
                if op.op_id not in self.memory.open:
                    continue
                if op.is_timed_out:
                    self.come_to_rest(op)
                else:
                    self.answer(op)

    def serve(self, prompt: Prompt) -> bool:
        """Take one request through from arrival to end, if it can be admitted now."""
        client = self.submit(prompt)
        for _ in range(3):
            if self.admit(client):
                break
            for op in self.answerable:
                if op.transfer is not None and op.transfer.target.tier:
                    self.answer(op)
        else:
            self.waiting.remove(client)
            return False
        if self.may_build and self.join(client):
            forward = self.issue()
            for op_id in forward.after:
                self.answer(self.memory.open[op_id])
            self.answer(forward)
        if client in self.running:
            self.end(client)
        elif client in self.waiting:
            self.waiting.remove(client)
        return True

    def check(self) -> None:
        """Assert what holds at any time."""
        check_promises(self)

    def close(self) -> None:
        """Let everything end; assert that nothing is left behind and nothing is in the way."""
        if self.building is not None:
            self.issue()
        self.drain()
        for client in list(self.running):
            self.end(client)
        for pin in list(self.cache.prefix_pins.values()):
            for _ in range(pin.count):
                self.manager.unpin_prefix(pin.keys)
        while self.manager.upkeep.is_retiring:
            before = len(self.mirror.events)
            self.write_back_ahead()
            self.drain()
            assert len(self.mirror.events) > before, "a tier never gets its size"
        check_nothing_is_left(self)
        check_a_large_one_fits(self)
