"""Stands between the loop, a split scheduler and a backend, and checks all that passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from kvsim.config import CacheConfig, Role, SchedulerConfig, SplitConfig
from kvsim.core.attempt import BlockLayout
from kvsim.core.check import evictable_nodes
from kvsim.core.engine import run
from kvsim.core.handoff import Instance, Phase
from kvsim.core.manager import CacheManager
from kvsim.core.ops import Completion, OpIds, Outcome, Transfer
from kvsim.core.residency import LEAVING, READY
from kvsim.core.scheduler import Scheduler
from kvsim.core.sequence import Status
from kvsim.core.split import SplitScheduler
from kvsim.events import AttemptEnded, RequestAdmitted
from kvsim.policies import policy_factory
from kvsim.testing import CheckedPolicy, EventMirror
from tests.property.memory import TIERS_AN_INSTANCE, num_full_slots
from tests.property.split_worker import SplitWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.handoff import Handoff
    from kvsim.core.ops import Answer, Command
    from kvsim.core.ports import Backend, EvictionPolicy, PolicyContext
    from kvsim.types import OpId, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStory:
    """What is run on which instances, and how often clients give up (percent of turns)."""

    roles: tuple[Role, ...]
    caches: tuple[CacheConfig, ...]
    scheduler: SchedulerConfig
    split: SplitConfig
    requests: tuple[Request, ...]
    policy: str = "lru"
    cancel_percent: int = 0

    @property
    def most_turns(self) -> int:
        """More turns than any run of the story can need."""
        num_tokens = sum(each.num_input_tokens + each.num_output_tokens for each in self.requests)
        num_tries = self.split.max_attempts + self.scheduler.max_attempts + len(self.requests) + 2
        return 200 + 40 * num_tokens * num_tries


class SplitWitness:
    """A `Decider` and a `Backend` for the loop: passes everything on, and believes nothing."""

    def __init__(self, story: SplitStory, backend: Backend, rng: Random) -> None:
        self.story = story
        self.backend = backend
        self.rng = rng
        self.op_ids = OpIds()
        self.mirrors: list[EventMirror] = []
        self.policies: list[list[CheckedPolicy]] = []
        self.instances = [
            self._instance(number, role, cache)
            for number, (role, cache) in enumerate(zip(story.roles, story.caches, strict=True))
        ]
        self.scheduler = SplitScheduler(
            self.instances, story.requests, story.split, new_op_id=self.op_ids
        )
        self.requests = {each.request_id: each for each in story.requests}
        self.worker = SplitWorker(
            self.requests, story.caches[0].block_size, dict(enumerate(story.roles))
        )
        self.cancelled: set[int] = set()
        self.num_turns = 0
        self._num_events = [0] * len(self.instances)
        self._num_ended = self._num_failures = 0
        self._now = -1

    def _instance(self, number: int, role: Role, cache: CacheConfig) -> Instance:
        mirror = EventMirror(len(cache.tier_blocks))
        policies: list[CheckedPolicy] = []
        _, make, _ = policy_factory(self.story.policy)

        def checked(context: PolicyContext) -> EvictionPolicy:
            policies.append(CheckedPolicy(make(context), is_ranked=True))
            return policies[-1]

        manager = CacheManager(
            cache,
            checked,
            rng=Random(0),
            instance=number,
            transfer_timeout_ns=self.story.scheduler.transfer_timeout_ns,
            sink=mirror,
            new_op_id=self.op_ids,
        )
        self.mirrors.append(mirror)
        self.policies.append(policies)
        config = self.story.scheduler
        if role is not Role.MIXED:
            config = replace(config, max_attempts=1)
        return Instance(number, role, manager, Scheduler(manager, (), config, instance=number))

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
            request = self.rng.choice(self.story.requests)
            if request.arrived_at <= self._now:
                self.cancelled.add(request.request_id)
            self.scheduler.cancel(request.request_id, now)
        self._now = now
        commands = self.scheduler.step(now)
        self._look(now)
        return commands

    def settle(self, answer: Answer) -> None:
        self.scheduler.settle(answer)
        self._look(answer.finished_at)

    # -- the backend's side

    def now(self) -> int:
        return self.backend.now()

    def submit(self, command: Command) -> None:
        self.worker.submit(command)
        self.backend.submit(command)

    def wait(self, until: int | None) -> Sequence[Answer]:
        answers = self.backend.wait(until)
        for answer in self.worker.in_order(list(answers)):
            self.worker.take(answer)
            self._check_layers(answer)
        return answers

    def close(self) -> None:
        self.backend.close()

    def _check_layers(self, answer: Answer) -> None:
        """Hook for backends that tell when layers end; see `LayerWitness`."""

    # -- what the scheduler and its managers say

    def _look(self, now: int) -> None:
        for index, instance in enumerate(self.instances):
            instance.manager.check()
            self._check_cached(index, instance)
            mirror = self.mirrors[index]
            for event in mirror.events[self._num_events[index] :]:
                if isinstance(event, RequestAdmitted):
                    self._take_admission(index, event)
                elif isinstance(event, AttemptEnded):
                    self.worker.num_kv.pop((index, event.request_id, event.attempt), None)
            self._num_events[index] = len(mirror.events)
        for handoff in self.scheduler.ended[self._num_ended :]:
            self._take_end(handoff, now)
        self._num_ended = len(self.scheduler.ended)
        failures = self.scheduler.failures
        if len(failures) > self._num_failures:
            seen = [(each.request_id, each.attempt) for each in failures]
            assert len(set(seen)) == len(seen), "an attempt is told to have failed twice"
            self._num_failures = len(failures)

    def _check_cached(self, index: int, instance: Instance) -> None:
        """Invariants 5, 6 and 9: what can be read holds what its key says, and can be reached."""
        cache = instance.manager._cache  # noqa: SLF001  (the invariants are about its inside)
        content, size = self.worker.memory.content, cache.config.block_size
        for tier, policy in zip(cache.tiers, self.policies[index], strict=True):
            place = index * TIERS_AN_INSTANCE + tier.index
            readable = set()
            for key, node in cache.tree.index.items():
                if tier.copies.state[node] in (READY, LEAVING):
                    readable.add(key)
                    seen = content.get((place, tier.copies.block[node]))
                    assert seen == (key, num_full_slots(key, size), 0), f"{key} holds {seen}"
            assert self.mirrors[index].readable[tier.index] == readable
            assert not policy.pending
            assert policy.listed == evictable_nodes(cache, tier)

    def _take_admission(self, index: int, event: RequestAdmitted) -> None:
        request = self.requests[event.request_id]
        layout = BlockLayout(request, self.story.caches[0].block_size)
        known = request.num_input_tokens + self.worker.tokens_made[event.request_id]
        hits = sum(map(len, event.hit_keys))
        num_kv = min(layout.num_tokens(hits), known - 1)
        self.worker.num_kv[index, event.request_id, event.attempt] = num_kv

    def _take_end(self, handoff: Handoff, now: int) -> None:
        request = handoff.request
        assert handoff.phase is Phase.ENDED
        assert handoff.prefill_sequence is None
        assert handoff.decode_sequence is None
        assert handoff.num_made == self.worker.tokens_made[request.request_id]
        assert handoff.ended_at is not None
        assert handoff.ended_at >= request.arrived_at
        if handoff.status is Status.FINISHED:
            assert handoff.num_made == request.num_output_tokens
            assert handoff.first_token_at is not None
            assert request.arrived_at <= handoff.first_token_at <= handoff.ended_at
        elif handoff.status is Status.CANCELLED:
            at = request.cancelled_at
            assert request.request_id in self.cancelled or (at is not None and at <= now)
        elif handoff.status is Status.FAILED:
            assert handoff.num_failures > 0
        else:
            assert handoff.status is Status.REFUSED
        if handoff.decode_started_at is not None and handoff.arrived_at is not None:
            times = [
                request.arrived_at,
                handoff.reserved_at,
                handoff.prefill_started_at,
                handoff.prompt_done_at,
                handoff.arrived_at,
                handoff.decode_started_at,
            ]
            assert times == sorted(times)  # type: ignore[type-var]
        failures = [f for f in self.scheduler.failures if f.request_id == request.request_id]
        assert len(failures) == handoff.num_failures
        has_cause = self.worker.num_bad or self.story.split.reserve_timeout_ns is not None
        assert has_cause or not failures, "a failure without a cause"

    def _check_end(self) -> None:
        ids = sorted(handoff.request.request_id for handoff in self.scheduler.ended)
        assert ids == sorted(self.requests), "not every request ended once"
        assert not self.worker.memory.open
        assert not self.scheduler._sends  # noqa: SLF001  (nothing may be left)
        assert not self.scheduler._owners  # noqa: SLF001
        for index, instance in enumerate(self.instances):
            assert not instance.waiting
            assert not instance.unread
            assert instance.num_tokens == instance.num_receiving == 0
            manager, capacities = instance.manager, self.story.caches[index].tier_blocks
            num_cached = [len(readable) for readable in self.mirrors[index].readable]
            assert manager.num_evictable_blocks == num_cached[0]
            assert manager.num_free_blocks() + num_cached[0] == capacities[0]
            if capacities[1]:
                assert manager.num_free_blocks(1) + num_cached[1] == capacities[1]


class LayerWitness(SplitWitness):
    """Also checks, on a backend that records layers, that none is sent before it is computed."""

    def __init__(self, story: SplitStory, backend: Backend, rng: Random) -> None:
        super().__init__(story, backend, rng)
        self.layers: dict[OpId, tuple[int, ...]] = {}
        self.sends: dict[OpId, Transfer] = {}
        self.num_checked = 0

    def submit(self, command: Command) -> None:
        super().submit(command)
        if isinstance(command, Transfer) and command.attempts:
            self.sends[command.op_id] = command

    def _check_layers(self, answer: Answer) -> None:
        if not isinstance(answer, Completion) or answer.outcome is not Outcome.DONE:
            return
        self.layers[answer.op_id] = answer.layers_finished_at
        send = self.sends.get(answer.op_id)
        for before in send.after if send is not None else ():
            pairs = zip(self.layers[before], answer.layers_finished_at, strict=True)
            assert all(computed <= sent for computed, sent in pairs), "sent before it was computed"
            self.num_checked += 1
