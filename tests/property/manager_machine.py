"""The state machine that makes a driver do anything in any order."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from kvsim.config import CacheConfig
from kvsim.core.ops import Outcome
from kvsim.testing import Prompt
from kvsim.types import PartialRule
from tests.property.driver import POLICIES, Client, Driver

INDEX = st.integers(0, 5)
DONE = Outcome.DONE
FAILURES = [Outcome.FAILED, Outcome.CANCELLED, Outcome.TIMED_OUT]
OUTCOMES = st.sampled_from([DONE] * 5 + FAILURES)
PROMPTS = st.builds(
    Prompt,
    letters=st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=6).map(tuple),
    num_tail_tokens=st.integers(1, 3),
)
CONFIGS = st.builds(
    CacheConfig,
    block_size=st.integers(1, 3),
    tier_blocks=st.tuples(st.integers(1, 8), st.integers(0, 6)),
    swap_batch_blocks=st.integers(1, 4),
    low_watermark_blocks=st.integers(0, 3),
)


class Steps:
    """How many steps the machines of this process have executed."""

    count = 0


class ManagerMachine(RuleBasedStateMachine):
    """Requests come, share, grow, fail, end; ops finish in any order and any way."""

    driver: Driver

    @initialize(
        config=CONFIGS,
        policy=st.sampled_from(sorted(POLICIES)),
        partial=st.sampled_from(PartialRule),
        timeout_ns=st.sampled_from([None, 1000]),
    )
    def start(
        self, config: CacheConfig, policy: str, partial: PartialRule, timeout_ns: int | None
    ) -> None:
        self.driver = Driver(
            config, policy=policy, partial=partial, transfer_timeout_ns=timeout_ns
        )

    def _step(self) -> Driver:
        Steps.count += 1
        self.driver.now += 1
        return self.driver

    @precondition(lambda self: len(self.driver.waiting) + len(self.driver.running) < 6)
    @rule(
        prompt=PROMPTS,
        num_output=st.integers(1, 6),
        reserve=st.integers(0, 2),
        is_admitted=st.booleans(),
    )
    def submit(self, prompt: Prompt, num_output: int, reserve: int, is_admitted: bool) -> None:
        driver = self._step()
        client = driver.submit(self._cut(prompt), num_output_tokens=num_output, reserve=reserve)
        if client.attempt.layout.num_most_blocks > driver.config.tier_blocks[0]:
            driver.waiting.remove(client)  # as a scheduler refuses what can never fit
        elif is_admitted:
            driver.admit(client)

    def _cut(self, prompt: Prompt) -> Prompt:
        """Return as much of the prompt as fits the GPU tier."""
        return Prompt(prompt.letters[: self.driver.config.tier_blocks[0]], prompt.num_tail_tokens)

    @precondition(lambda self: self.driver.waiting)
    @rule(index=INDEX)
    def admit(self, index: int) -> None:
        driver = self._step()
        driver.admit(driver.waiting[index % len(driver.waiting)])

    @precondition(lambda self: self.driver.building is None)
    @rule(prompt=PROMPTS)
    def serve(self, prompt: Prompt) -> None:
        self._step().serve(self._cut(prompt))

    @precondition(lambda self: self.driver.may_build and self.driver.idle)
    @rule(
        indices=st.lists(INDEX, min_size=1, max_size=3),
        num_tokens=st.integers(1, 9),
        num_steps=st.integers(1, 4),
        is_issued=st.sampled_from([True, True, True, False]),
    )
    def compute(
        self, indices: list[int], num_tokens: int, num_steps: int, is_issued: bool
    ) -> None:
        driver = self._step()
        for index in indices:
            if driver.idle:
                driver.join(driver.idle[index % len(driver.idle)], num_tokens)
        if is_issued and driver.building is not None:
            driver.issue(num_steps)

    @precondition(lambda self: self.driver.building is None and self.driver.answerable)
    @rule(index=INDEX, outcome=OUTCOMES, steps_done=st.integers(0, 4))
    def answer(self, index: int, outcome: Outcome, steps_done: int) -> None:
        driver = self._step()
        ops = driver.answerable
        driver.answer(ops[index % len(ops)], outcome, steps_done)

    @precondition(lambda self: self.driver.building is None and self.driver.timed_out)
    @rule(index=INDEX)
    def come_to_rest(self, index: int) -> None:
        driver = self._step()
        driver.come_to_rest(driver.timed_out[index % len(driver.timed_out)])

    @precondition(lambda self: self.driver.idle)
    @rule(
        index=INDEX,
        what=st.sampled_from(["end", "end", "preempt", "publish", "grow"]),
        publishes=st.booleans(),
        number=st.integers(1, 2),
    )
    def disturb(self, index: int, what: str, publishes: bool, number: int) -> None:
        driver = self._step()
        client = driver.idle[index % len(driver.idle)]
        if publishes:
            driver.publish(client)
        if what == "end":
            driver.end(client)
        elif what == "preempt":
            driver.preempt(client, reserve=number)
        elif what == "grow":
            driver.grow(client, number)

    @precondition(lambda self: self.driver.batch and self.driver.building is None)
    @rule(index=INDEX)
    def cancel_in_forward(self, index: int) -> None:
        driver = self._step()
        driver.batch[index % len(driver.batch)].is_cancelled = True

    @rule()
    def write_back_ahead(self) -> None:
        self._step().write_back_ahead()

    @invariant()
    def check(self) -> None:
        if hasattr(self, "driver"):
            self.driver.check()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.close()
