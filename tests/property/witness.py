"""Stands between the engine's loop, a scheduler and a backend, and checks all that passes."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import TYPE_CHECKING

from kvsim.core.attempt import BlockLayout
from kvsim.core.engine import run
from kvsim.core.manager import Admission, CacheManager
from kvsim.core.ops import Cancel, Forward
from kvsim.core.scheduler import Scheduler
from kvsim.core.sequence import Status
from kvsim.events import AttemptEnded, RequestAdmitted, RequestEnded, RequestRefused
from kvsim.policies import policy_factory
from kvsim.testing import CheckedPolicy, EventMirror
from tests.property.clients import Client
from tests.property.recount import Recount
from tests.property.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ops import Answer, Command
    from kvsim.core.ports import Backend, EvictionPolicy, PolicyContext
    from kvsim.core.sequence import Sequence as Record
    from kvsim.events import Event
    from kvsim.types import BlockKey
    from tests.property.clients import Story


class Witness:
    """A `Decider` and a `Backend` for the loop: passes everything on, and believes nothing.

    Attributes
    ----------
    num_turns, num_answers
        Steps of the loop, and answers taken, so far.
    """

    def __init__(self, story: Story, backend: Backend, rng: Random) -> None:
        self.story = story
        self.backend = backend
        self.rng = rng
        self.mirror = EventMirror(len(story.cache.tier_blocks))
        self.recount = Recount(story.cache.tier_blocks, self.mirror.events)
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
        self.scheduler = Scheduler(self.manager, story.requests, story.scheduler, sink=self.mirror)
        size = story.cache.block_size
        self.clients = {
            request.request_id: Client(request, BlockLayout(request, size))
            for request in story.requests
        }
        self.worker = Worker(story, self.clients)
        self.num_turns = self.num_answers = 0
        self._num_events = self._num_ended = 0
        self._now = -1

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
        assert self.num_turns <= self.story.most_turns, f"no end after {self.num_turns} turns"
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
        self._check_progress(commands)
        has_preempted = self.scheduler.num_preemptions > num_preemptions
        if not has_preempted and self.rng.randrange(100) < self.story.audit_percent:
            self._audit_head(commands)
        return commands

    def settle(self, answer: Answer) -> None:
        self.num_answers += 1
        self.scheduler.settle(answer)
        self._look(answer.finished_at)

    # -- the backend's side

    def now(self) -> int:
        return self.backend.now()

    def submit(self, command: Command) -> None:
        self.worker.submit(command, self._now)
        self.backend.submit(command)

    def wait(self, until: int | None) -> Sequence[Answer]:
        answers = self.backend.wait(until)
        # Of ops that end in one instant, those that a Forward waits for have ended before it.
        for answer in sorted(answers, key=self.worker.is_forward):
            self.worker.take(answer)
        return answers

    def close(self) -> None:
        self.backend.close()

    # -- what the scheduler and its manager say

    def _look(self, now: int) -> None:
        """Check the manager's invariants, and take note of what has been decided."""
        self.manager.check()
        for event in self.mirror.events[self._num_events :]:
            self._take_event(event, now)
        self.recount.check(self.manager)
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
        if isinstance(event, RequestAdmitted):
            self._take_admission(event, now)
        elif isinstance(event, AttemptEnded):
            client = self.clients[event.request_id]
            assert client.attempt == event.attempt
            client.attempt = None
            client.is_decoding = False
        elif isinstance(event, RequestEnded):
            client = self.clients[event.request_id]
            assert client.end is None, "a request ended twice"
            assert client.attempt is None, "it ended and holds blocks"
            client.end = event.status
        elif isinstance(event, RequestRefused):
            num_blocks = self.clients[event.request_id].layout.num_most_blocks
            assert event.needed_blocks == num_blocks > event.allowed_blocks

    def _take_admission(self, event: RequestAdmitted, now: int) -> None:
        client = self.clients[event.request_id]
        assert client.waits
        assert event.attempt == client.num_attempts
        client.admit(tuple(map(len, event.hit_keys)))
        for request_id in range(event.request_id):
            other = self.clients[request_id]
            assert not other.waits or other.request.arrived_at > now, (
                f"request {event.request_id} is admitted before {request_id}"
            )

    def _take_end(self, record: Record, now: int) -> None:
        client, request = self.clients[record.request.request_id], record.request
        assert record.status == client.end, "the record and the event differ"
        assert record.num_made == client.num_made
        assert record.ended_at is not None
        assert record.ended_at >= request.arrived_at
        if record.status is Status.FINISHED:
            assert client.num_made == request.num_output_tokens
            assert record.admitted_at is not None
            assert record.first_token_at is not None
            assert request.arrived_at <= record.admitted_at <= record.first_token_at
            assert record.first_token_at <= record.ended_at
        elif record.status is Status.CANCELLED:
            assert self._gave_up(client, now)
        elif record.status is Status.FAILED:
            assert record.num_failures == self.story.scheduler.max_attempts
        else:
            assert record.status is Status.REFUSED
            assert client.layout.num_most_blocks > self.story.allowed_blocks
        assert record.num_failures <= self.worker.num_bad, "a failure without a cause"
        hits = client.first_hits or (0,)
        assert record.num_gpu_hit_blocks == hits[0]
        assert record.num_cpu_hit_blocks == sum(hits[1:])

    @staticmethod
    def _gave_up(client: Client, now: int) -> bool:
        at = client.request.cancelled_at
        return client.is_cancel_wanted or (at is not None and at <= now)

    def _check_progress(self, commands: Sequence[Command]) -> None:
        """Check that everybody who must go on does, whether or not more requests come."""
        present = [
            client
            for client in self.clients.values()
            if client.request.arrived_at <= self._now and client.end is None
        ]
        issued = [command for command in commands if not isinstance(command, Cancel)]
        is_under_way = bool(issued or self.worker.memory.open)
        assert is_under_way or not present, "work is left, and nothing is under way"
        for client in present:
            assert client.num_made < client.request.num_output_tokens, "through, and goes on"
            assert not self._gave_up(client, self._now) or self.worker.is_busy_with(client), (
                "a client gave up, and its request goes on"
            )

    def _audit_head(self, commands: Sequence[Command]) -> None:
        """Check that the head of the queue does not wait while there is free room for it.

        Where room must be made first, members that have grown since it was asked may delay that.
        """
        config, running = self.story.scheduler, self.worker.forward
        waits = [c for c in self.clients.values() if c.waits and c.request.arrived_at <= self._now]
        num_running = sum(client.attempt is not None for client in self.clients.values())
        if not waits or num_running >= config.max_running:
            return
        if forwards := [command for command in commands if isinstance(command, Forward)]:
            num_tokens = sum(piece.num_tokens for piece in forwards[0].prefill)
            if num_tokens + forwards[0].num_decodes >= config.token_budget:
                return
        elif running is None:
            return  # members wait for a write-back, or a timed-out Forward for its end
        elif running.num_steps == 1 or commands or running.op_id in self.worker.cancelled_runs:
            return  # it ends soon
        attempt = waits[0].next_attempt(config.decode_reserve_blocks)
        num_there = self.manager.match(attempt.keys).count(0)
        if attempt.num_wanted_blocks - num_there > self.manager.num_free_blocks():
            return
        outcome = deepcopy(self.manager).admit(attempt, self._now)
        assert not isinstance(outcome, Admission), (
            f"request {waits[0].request.request_id} waits, and could be admitted"
        )

    def _check_end(self) -> None:
        ids = sorted(record.request.request_id for record in self.scheduler.ended)
        assert ids == sorted(self.clients), "not every request ended once"
        assert not self.worker.memory.open
        manager, capacities = self.manager, self.story.cache.tier_blocks
        num_cached = [len(readable) for readable in self.mirror.readable]
        assert manager.num_evictable_blocks == num_cached[0]
        assert manager.num_free_blocks() + num_cached[0] == capacities[0]
        if capacities[1]:
            assert manager.num_free_blocks(1) + num_cached[1] == capacities[1]
