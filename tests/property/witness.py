"""Stands between the engine's loop, a scheduler and a backend, and checks all that passes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from kvsim.core.attempt import Attempt, BlockLayout
from kvsim.core.engine import run
from kvsim.core.manager import Admission, CacheManager
from kvsim.core.ops import Cancel, Completion, Forward, Outcome, Transfer
from kvsim.core.scheduler import Scheduler
from kvsim.core.sequence import Status
from kvsim.events import AttemptEnded, RequestAdmitted, RequestEnded, RequestRefused
from kvsim.policies import policy_factory
from kvsim.testing import CheckedPolicy, EventMirror
from tests.property.memory import Memory, OpenOp, Piece, blocks_written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.config import CacheConfig, SchedulerConfig
    from kvsim.core.ops import Answer, Command, Slice
    from kvsim.core.ports import Backend, EvictionPolicy, PolicyContext
    from kvsim.core.sequence import Sequence as Record
    from kvsim.events import Event
    from kvsim.types import BlockId, BlockKey, OpId, Request, RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is run: the configuration, the requests, and what may go wrong."""

    cache: CacheConfig
    scheduler: SchedulerConfig
    requests: tuple[Request, ...]
    policy: str = "lru"
    cancel_percent: int = 0
    """How often a turn begins with a client that gives up, whoever it is."""
    audit_percent: int = 0
    """How often it is tried out whether the head of the queue is kept waiting for nothing."""


@dataclass(slots=True)
class Client:
    """A request as seen from outside: what the events and the Forwards tell of it.

    `attempt` is the number of the present attempt, None if it holds nothing. `num_kv` counts the
    tokens whose KV the attempt has; `num_target` those it needs before it makes the next one.
    """

    request: Request
    layout: BlockLayout
    attempt: int | None = None
    num_attempts: int = 0
    num_made: int = 0
    num_kv: int = 0
    num_target: int = 0
    is_decoding: bool = False
    end: str | None = None
    is_cancel_wanted: bool = False
    first_hits: tuple[int, ...] | None = None

    def stub(self) -> Attempt:
        """Return an attempt that tells the model of the memory where the tokens lie."""
        return Attempt(
            self.request, number=0, layout=self.layout, num_made=0, num_wanted_blocks=0
        )


@dataclass(slots=True)
class Member:
    """A decoding request as a worker knows it, from the differences alone."""

    num_kv: int
    table: list[BlockId] = field(default_factory=list)


class Witness:
    """A `Decider` and a `Backend` for the loop: passes everything on, and believes nothing.

    Attributes
    ----------
    num_turns
        Steps of the loop so far.
    num_answers
        Answers taken so far.
    """

    def __init__(self, story: Story, backend: Backend, *, rng: Random | None = None) -> None:
        self.story = story
        self.backend = backend
        self.rng = rng if rng is not None else Random(0)
        self.mirror = EventMirror(len(story.cache.tier_blocks))
        _, make, _ = policy_factory(story.policy)

        def checked(context: PolicyContext) -> EvictionPolicy:
            return CheckedPolicy(make(context), is_ranked=True)

        self.manager = CacheManager(
            story.cache,
            checked,
            rng=Random(0),
            transfer_timeout_ns=story.scheduler.transfer_timeout_ns,
            sink=self.mirror,
        )
        self.scheduler = Scheduler(
            self.manager, story.requests, story.scheduler, sink=self.mirror
        )
        size = story.cache.block_size
        self.clients = {
            request.request_id: Client(request, BlockLayout(request, size))
            for request in story.requests
        }
        self.memory = Memory()
        self.members: dict[RequestId, Member] = {}
        self.forward: OpenOp | None = None
        self.cancelled_runs: set[OpId] = set()
        self.num_turns = self.num_answers = self.num_bad = 0
        self._num_events = self._num_ended = 0
        self._now = -1
        self._bound = turn_bound(story)

    def run(self) -> int:
        """Run the story to its end and check what is left; return the number of turns."""
        num_turns = run(self, self)
        self._check_end()
        return num_turns

    # -- the scheduler's side

    def has_work(self) -> bool:
        return self.scheduler.has_work()

    def next_wakeup_at(self) -> int | None:
        at = self.scheduler.next_wakeup_at()
        assert at is None or at > self._now, f"wake-up at {at}, and it is {self._now}"
        return at

    def step(self, now: int) -> Sequence[Command]:
        self.num_turns += 1
        assert self.num_turns <= self._bound, f"no end after {self.num_turns} turns"
        assert now >= self._now, "time went back"
        if self.rng.randrange(100) < self.story.cancel_percent:
            client = self.rng.choice(list(self.clients.values()))
            # Of one that has not arrived yet the scheduler knows nothing.
            client.is_cancel_wanted |= client.request.arrived_at <= self._now
            self.scheduler.cancel(client.request.request_id, now)
        self._now = now
        num_preemptions = self.scheduler.num_preemptions
        commands = self.scheduler.step(now)
        self._look(now)
        self._check_step(commands, has_preempted=self.scheduler.num_preemptions > num_preemptions)
        return commands

    def settle(self, answer: Answer) -> None:
        self.num_answers += 1
        self.scheduler.settle(answer)
        self._look(answer.finished_at)

    # -- the backend's side

    def now(self) -> int:
        return self.backend.now()

    def submit(self, command: Command) -> None:
        if isinstance(command, Forward):
            self._submit_forward(command)
        elif isinstance(command, Transfer):
            assert command.deadline_at == self._deadline(
                self.story.scheduler.transfer_timeout_ns
            )
            self.memory.start_transfer(command)
        else:
            self._submit_cancel(command)
        self.backend.submit(command)

    def wait(self, until: int | None) -> Sequence[Answer]:
        answers = self.backend.wait(until)
        # Of ops that end in one instant, those that others wait for have ended first.
        for answer in sorted(answers, key=lambda each: each.op_id == self._forward_id()):
            self._take_answer(answer)
        return answers

    def close(self) -> None:
        self.backend.close()

    # -- commands

    def _forward_id(self) -> OpId | None:
        return None if self.forward is None else self.forward.op_id

    def _deadline(self, timeout_ns: int | None) -> int | None:
        return None if timeout_ns is None else self._now + timeout_ns

    def _submit_cancel(self, command: Cancel) -> None:
        assert self.forward is not None and command.op_id == self.forward.op_id
        assert self.forward.num_steps > 1, "a Forward of one step is cancelled"
        assert command.op_id not in self.cancelled_runs, "a run is cancelled twice"
        self.cancelled_runs.add(command.op_id)

    def _submit_forward(self, forward: Forward) -> None:
        assert not any(op.pieces for op in self.memory.open.values()), "two Forwards at a time"
        config = self.story.scheduler
        self._take_difference(forward)
        assert forward.num_decodes == len(self.members)
        assert forward.context_tokens == sum(m.num_kv + 1 for m in self.members.values())
        assert forward.num_steps == 1 or not forward.prefill
        assert forward.num_steps >= 1 and (forward.prefill or self.members), "an empty Forward"
        assert forward.deadline_at == self._deadline(config.forward_timeout_ns)
        num_tokens = forward.num_decodes + sum(piece.num_tokens for piece in forward.prefill)
        assert num_tokens <= config.token_budget
        assert sum(c.attempt is not None for c in self.clients.values()) <= config.max_running
        op = OpenOp(
            forward.op_id, set(), set(), after=forward.after, num_steps=forward.num_steps
        )
        op.pieces = [self._slice_piece(piece) for piece in forward.prefill]
        op.pieces += [self._member_piece(each, forward.num_steps) for each in self.members]
        for piece in op.pieces:
            op.reads |= {(0, block_id) for block_id in piece.table}
            writes = set(blocks_written(piece))
            assert op.writes.isdisjoint(writes), "two pieces of a Forward write the same block"
            op.writes |= writes
        self.memory.start(op)
        self.forward = op

    def _take_difference(self, forward: Forward) -> None:
        for request_id in forward.left:
            del self.members[request_id]
        for joined in forward.joined:
            assert joined.request_id not in self.members, "joined twice"
            assert joined.attempt == self.clients[joined.request_id].attempt
            self.members[joined.request_id] = Member(joined.num_tokens, list(joined.block_ids))
        for request_id, block_ids in forward.grown:
            assert block_ids
            self.members[request_id].table += block_ids
        decoding = {i for i, client in self.clients.items() if client.is_decoding}
        assert decoding == set(self.members), f"{decoding} decode, not {set(self.members)}"

    def _slice_piece(self, piece: Slice) -> Piece:
        client = self.clients[piece.request_id]
        assert piece.attempt == client.attempt
        assert piece.num_tokens > 0
        assert piece.first_token == client.num_kv, "a slice does not begin where the last ended"
        end = piece.first_token + piece.num_tokens
        assert end <= client.num_target
        assert len(piece.block_ids) == client.layout.num_blocks(end)
        assert len(set(piece.block_ids)) == len(piece.block_ids)
        return Piece(
            client.stub(),
            piece.first_token,
            piece.num_tokens,
            table=piece.block_ids,
            writes=piece.writes,
        )

    def _member_piece(self, request_id: RequestId, num_steps: int) -> Piece:
        client, member = self.clients[request_id], self.members[request_id]
        assert member.num_kv == client.num_kv
        assert client.num_made + num_steps <= client.request.num_output_tokens
        num_blocks = client.layout.num_blocks(member.num_kv + num_steps)
        assert num_blocks <= len(member.table) <= client.layout.num_most_blocks
        assert len(set(member.table)) == len(member.table)
        table = tuple(member.table[:num_blocks])
        return Piece(client.stub(), member.num_kv, num_steps, table=table, is_decode=True)

    # -- answers

    def _take_answer(self, answer: Answer) -> None:
        if not isinstance(answer, Completion):
            op = self.memory.open[answer.op_id]
            for address in op.writes:  # whatever it wrote in the end, nobody may want it
                self.memory.content.pop(address, None)
            self.memory.come_to_rest(answer.op_id)
            return
        op = self.memory.open[answer.op_id]
        self.num_bad += answer.outcome is not Outcome.DONE
        if op.pieces and answer.outcome is Outcome.TIMED_OUT:
            # What had not come yet it may read as garbage: its result is lost anyhow.
            for other in self.memory.open.values():
                op.reads -= other.writes
        self.memory.finish(answer.op_id, answer.outcome, answer.steps_done)
        if not op.pieces:
            return
        self.forward = None
        if answer.outcome is Outcome.DONE:
            self._advance(op, answer.steps_done)

    def _advance(self, op: OpenOp, steps_done: int) -> None:
        is_cut = op.op_id in self.cancelled_runs
        assert steps_done == op.num_steps or (is_cut and 0 < steps_done <= op.num_steps)
        for piece in op.pieces:
            client = self.clients[piece.attempt.request.request_id]
            if piece.is_decode:
                self.members[client.request.request_id].num_kv += steps_done
                client.num_kv += steps_done
                client.num_made += steps_done
            else:
                client.num_kv = piece.first_token + piece.num_tokens
                if client.num_kv == client.num_target:
                    client.num_made += 1
                    client.is_decoding = True

    # -- what the scheduler and its manager say

    def _look(self, now: int) -> None:
        """Check the manager's invariants, and take note of what has been decided."""
        self.manager.check()
        for event in self.mirror.events[self._num_events :]:
            self._take_event(event, now)
        self._num_events = len(self.mirror.events)
        for record in self.scheduler.ended[self._num_ended :]:
            self._take_end(record, now)
        self._num_ended = len(self.scheduler.ended)
        readable = set().union(*self.mirror.readable)
        for key in readable:
            above = self._parent_of(key)
            assert above is None or above in readable, f"{key} is out of reach"

    def _parent_of(self, key: BlockKey) -> BlockKey | None:
        assert isinstance(key, tuple)
        if key[0] == "output":
            _, request_id, index = key
            prompt = self.clients[request_id].request.block_keys
            if index > len(prompt):
                return ("output", request_id, index - 1)
            return prompt[index - 1] if index else None
        letters, _ = key
        return (letters[:-1], self.story.cache.block_size) if len(letters) > 1 else None

    def _take_event(self, event: Event, now: int) -> None:
        if isinstance(event, RequestEnded):
            client = self.clients[event.request_id]
            assert client.end is None, "a request ended twice"
            assert client.attempt is None, "it ended and holds blocks"
            client.end = event.status
        elif isinstance(event, RequestRefused):
            layout = self.clients[event.request_id].layout
            assert event.needed_blocks == layout.num_most_blocks > event.allowed_blocks
        elif isinstance(event, AttemptEnded):
            client = self.clients[event.request_id]
            assert client.attempt == event.attempt
            client.attempt = None
            client.is_decoding = False
        elif isinstance(event, RequestAdmitted):
            self._admitted(event, now)

    def _admitted(self, event: RequestAdmitted, now: int) -> None:
        client = self.clients[event.request_id]
        assert client.attempt is None and client.end is None
        assert event.attempt == client.num_attempts
        client.attempt = event.attempt
        client.num_attempts += 1
        num_hits = tuple(map(len, event.hit_keys))
        if client.first_hits is None:
            client.first_hits = num_hits
        client.num_target = client.request.num_input_tokens + client.num_made
        num_tokens = client.layout.num_tokens(sum(num_hits)) if sum(num_hits) else 0
        client.num_kv = min(num_tokens, client.num_target - 1)
        for request_id, other in self.clients.items():
            if request_id == event.request_id:
                return
            waits = other.attempt is None and other.end is None
            assert not waits or other.request.arrived_at > now, (
                f"request {event.request_id} is admitted before {request_id}"
            )

    def _take_end(self, record: Record, now: int) -> None:
        client = self.clients[record.request.request_id]
        request = client.request
        assert record.status == client.end, "the record and the event differ"
        wanted_at = request.cancelled_at
        is_cancelled = client.is_cancel_wanted or (wanted_at is not None and wanted_at <= now)
        assert record.num_made == client.num_made
        assert record.ended_at is not None and record.ended_at >= request.arrived_at
        if record.status is Status.FINISHED:
            assert client.num_made == request.num_output_tokens
            assert record.admitted_at is not None and record.first_token_at is not None
            assert request.arrived_at <= record.admitted_at <= record.first_token_at
            assert record.first_token_at <= record.ended_at
        elif record.status is Status.CANCELLED:
            assert is_cancelled
        elif record.status is Status.FAILED:
            assert record.num_failures == self.story.scheduler.max_attempts
        else:
            assert record.status is Status.REFUSED
            assert client.layout.num_most_blocks > self._allowed_blocks()
        assert record.num_failures <= self.num_bad, "a failure without a cause"
        hits = client.first_hits or (0,)
        assert record.num_gpu_hit_blocks == hits[0]
        assert record.num_cpu_hit_blocks == sum(hits[1:])

    def _allowed_blocks(self) -> int:
        limit = self.story.scheduler.max_blocks_per_request
        return min(self.story.cache.tier_blocks[0], limit or self.story.cache.tier_blocks[0])

    def _check_step(self, commands: Sequence[Command], *, has_preempted: bool) -> None:
        """Check that everybody who must go on does, whether or not more requests come."""
        present = [
            client
            for client in self.clients.values()
            if client.request.arrived_at <= self._now and client.end is None
        ]
        issued = [command for command in commands if not isinstance(command, Cancel)]
        assert issued or self.memory.open or not present, "work is left, and nothing is under way"
        for client in present:
            at = client.request.cancelled_at
            if client.is_cancel_wanted or (at is not None and at <= self._now):
                assert self._is_in_forward(client), "a client gave up, and its request goes on"
            if client.num_made == client.request.num_output_tokens:
                raise AssertionError("a request is through, and has not ended")
        if not has_preempted and self.rng.randrange(100) < self.story.audit_percent:
            self._audit_head(commands)

    def _is_in_forward(self, client: Client) -> bool:
        pieces = [] if self.forward is None else self.forward.pieces
        return any(piece.attempt.request is client.request for piece in pieces)

    def _audit_head(self, commands: Sequence[Command]) -> None:
        """Check that the head of the queue would not be admitted if it were asked for again."""
        config = self.story.scheduler
        forwards = [command for command in commands if isinstance(command, Forward)]
        waits = [
            client
            for client in self.clients.values()
            if client.attempt is None
            and client.end is None
            and client.request.arrived_at <= self._now
        ]
        num_running = sum(client.attempt is not None for client in self.clients.values())
        if not waits or num_running >= config.max_running:
            return
        if forwards:
            forward = forwards[0]
            num_tokens = sum(piece.num_tokens for piece in forward.prefill)
            if num_tokens + forward.num_decodes >= config.token_budget:
                return
        elif self.forward is None:
            return  # members wait for a write-back, or a timed-out Forward for its end
        elif self.forward.num_steps == 1 or commands or self.forward.op_id in self.cancelled_runs:
            return  # it ends soon
        head = waits[0]
        known = head.request.num_input_tokens + head.num_made
        num_blocks = head.layout.num_blocks(known)
        most = max(num_blocks, head.layout.num_most_blocks)
        attempt = Attempt(
            head.request,
            number=head.num_attempts,
            layout=head.layout,
            num_made=head.num_made,
            num_wanted_blocks=min(num_blocks + config.decode_reserve_blocks, most),
        )
        outcome = deepcopy(self.manager).admit(attempt, self._now)
        assert not isinstance(outcome, Admission), (
            f"request {head.request.request_id} waits, and could be admitted"
        )

    def _check_end(self) -> None:
        ids = sorted(record.request.request_id for record in self.scheduler.ended)
        assert ids == sorted(self.clients), "not every request ended once"
        assert not self.memory.open
        manager, capacities = self.manager, self.story.cache.tier_blocks
        assert manager.num_free_blocks() + manager.num_evictable_blocks == capacities[0]
        assert manager.num_evictable_blocks == len(self.mirror.readable[0])
        if capacities[-1] and len(capacities) > 1:
            num_cached = len(self.mirror.readable[1])
            assert manager.num_free_blocks(1) + num_cached == capacities[1]
        if not self.num_bad:
            assert all(record.status is not Status.FAILED for record in self.scheduler.ended)


def turn_bound(story: Story) -> int:
    """Return more turns than any run of the story can need."""
    num_tokens = sum(
        request.num_input_tokens + request.num_output_tokens for request in story.requests
    )
    num_tries = story.scheduler.max_attempts + len(story.requests) + 2
    return 100 + 20 * num_tokens * num_tries
