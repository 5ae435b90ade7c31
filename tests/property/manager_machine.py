"""The state machine that makes a driver do anything in any order.

One rule with weighted actions instead of a rule for each: hypothesis switches rules off at random,
and a run without one of admission, Forwards and answers does nothing worth checking (measured: one
failing op in 100 steps with a rule each, 11 with these weights).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvsim.config import Preempt
from kvsim.core.ops import Outcome
from kvsim.testing import Prompt, cache_configs, prompts
from kvsim.types import PartialRule
from tests.property.driver import POLICIES, Driver

if TYPE_CHECKING:
    from kvsim.config import CacheConfig

MAX_CLIENTS = 6


@dataclass(frozen=True, slots=True)
class Submit:
    """A request arrives; its scheduler may try at once."""

    prompt: Prompt
    num_output_tokens: int
    reserve: int
    is_admitted: bool

    def apply(self, driver: Driver) -> bool:
        """Do it, if it is possible now; whether it was."""
        if len(driver.waiting) + len(driver.running) >= MAX_CLIENTS:
            return False
        prompt = cut(self.prompt, driver)
        num_output = self.num_output_tokens
        client = driver.submit(prompt, num_output_tokens=num_output, reserve=self.reserve)
        if client.attempt.layout.num_most_blocks > driver.manager.upkeep.num_blocks():
            driver.waiting.remove(client)  # as a scheduler refuses what can never fit
        elif self.is_admitted:
            driver.admit(client)
        return True


@dataclass(frozen=True, slots=True)
class Serve:
    """A request comes and goes; its blocks stay."""

    prompt: Prompt

    def apply(self, driver: Driver) -> bool:
        """Do it, if it is possible now; whether it was."""
        return driver.building is None and driver.serve(cut(self.prompt, driver))


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the scheduler, or a part of one: admissions, and the next Forward."""

    admits: tuple[int, ...]
    joins: tuple[int, ...]
    num_tokens: int
    num_steps: int
    is_issued: bool

    def apply(self, driver: Driver) -> bool:
        """Do it, if it is possible now; whether it was."""
        if not driver.waiting and not (driver.may_build and driver.idle):
            return False
        for index in self.admits:
            if driver.waiting:
                driver.admit(driver.waiting[index % len(driver.waiting)])
        for index in self.joins:
            if driver.may_build and driver.idle:
                driver.join(driver.idle[index % len(driver.idle)], self.num_tokens)
        if self.is_issued and driver.building is not None:
            driver.issue(self.num_steps)
        return True


@dataclass(frozen=True, slots=True)
class Answer:
    """An op ends, or settles after its deadline."""

    index: int
    outcome: Outcome
    steps_done: int

    def apply(self, driver: Driver) -> bool:
        """Do it, if it is possible now; whether it was."""
        ops = list(driver.memory.open.values())
        if driver.building is not None or not ops:
            return False
        op = ops[self.index % len(ops)]
        if op.is_timed_out:
            driver.come_to_rest(op)
            return True
        return driver.answer(op, self.outcome, self.steps_done)


@dataclass(frozen=True, slots=True)
class Disturb:
    """What may come at any time to a client that is in no Forward."""

    index: int
    what: str
    publishes: bool
    num_blocks: int

    def apply(self, driver: Driver) -> bool:
        """Do it, if it is possible now; whether it was."""
        if not driver.idle:
            return False
        client = driver.idle[self.index % len(driver.idle)]
        if self.publishes:
            driver.publish(client)
        if self.what == "end":
            driver.end(client)
        elif self.what in set(Preempt):
            driver.preempt(client, reserve=self.num_blocks, how=Preempt(self.what))
        elif self.what == "grow":
            driver.grow(client, self.num_blocks)
        return True


@dataclass(frozen=True, slots=True)
class CancelInForward:
    """A client gives up while its Forward runs."""

    index: int

    def apply(self, driver: Driver) -> bool:
        """Do it, if it is possible now; whether it was."""
        if not driver.batch:
            return False
        driver.batch[self.index % len(driver.batch)].is_cancelled = True
        return True


@dataclass(frozen=True, slots=True)
class WriteBack:
    """The scheduler keeps the low-water mark."""

    def apply(self, driver: Driver) -> bool:
        """Do it."""
        driver.write_back_ahead()
        return True


Action: TypeAlias = Submit | Serve | Turn | Answer | Disturb | CancelInForward | WriteBack

INDEX = st.integers(0, MAX_CLIENTS - 1)
FAILURES = [Outcome.FAILED, Outcome.CANCELLED, Outcome.TIMED_OUT]
SUBMIT = st.builds(
    Submit,
    prompt=prompts(),
    num_output_tokens=st.integers(1, 6),
    reserve=st.integers(0, 2),
    is_admitted=st.booleans(),
)
TURN = st.builds(
    Turn,
    admits=st.lists(INDEX, max_size=2).map(tuple),
    joins=st.lists(INDEX, min_size=1, max_size=3).map(tuple),
    num_tokens=st.integers(1, 9),
    num_steps=st.integers(1, 4),
    is_issued=st.sampled_from([True, True, True, False]),
)
ANSWER = st.builds(
    Answer,
    index=INDEX,
    outcome=st.sampled_from([Outcome.DONE] * 5 + FAILURES),
    steps_done=st.integers(0, 4),
)
DISTURB = st.builds(
    Disturb,
    index=INDEX,
    what=st.sampled_from(["end", "end", *Preempt, "grow", "nothing"]),
    publishes=st.booleans(),
    num_blocks=st.integers(1, 2),
)
SERVE = st.builds(Serve, prompts())
RARE = st.builds(CancelInForward, index=INDEX) | st.builds(WriteBack)
# A strategy named twice in one_of counts once, hence the detour.
ACTIONS: st.SearchStrategy[Action] = st.sampled_from(
    [TURN] * 4 + [ANSWER] * 5 + [SUBMIT] * 3 + [SERVE] * 4 + [DISTURB] * 2 + [RARE]
).flatmap(lambda actions: actions)


NEXT = (
    Turn(admits=(0,), joins=(0,), num_tokens=2, num_steps=1, is_issued=True),
    Answer(index=0, outcome=Outcome.DONE, steps_done=1),
)


def cut(prompt: Prompt, driver: Driver) -> Prompt:
    """Return as much of the prompt as fits the GPU tier."""
    return Prompt(prompt.letters[: driver.manager.upkeep.num_blocks()], prompt.num_tail_tokens)


class Steps:
    """How many actions the machines of this process have executed, idle ones not counted."""

    count = 0


class ManagerMachine(RuleBasedStateMachine):
    """Requests come, share, grow, fail, end; ops finish in any order and any way."""

    driver: Driver

    @initialize(
        config=cache_configs(),
        policy=st.sampled_from(sorted(POLICIES)),
        partial=st.sampled_from(PartialRule),
        timeout_ns=st.sampled_from([None, 1000]),
    )
    def start(
        self, config: CacheConfig, policy: str, partial: PartialRule, timeout_ns: int | None
    ) -> None:
        self.driver = Driver(config, policy=policy, partial=partial, transfer_timeout_ns=timeout_ns)

    @rule(action=ACTIONS)
    def act(self, action: Action) -> None:
        """Do what is drawn, or what is next if that is impossible now."""
        self.driver.now += 1
        Steps.count += action.apply(self.driver) or any(each.apply(self.driver) for each in NEXT)

    @invariant()
    def check(self) -> None:
        if hasattr(self, "driver"):
            self.driver.check()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.close()
