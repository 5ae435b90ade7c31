"""An operator among the clients of the manager's machine: pins, evictions, flushes, sizes.

The model of what must be there: a pinned prefix loses no block unless an op fails or everything
is taken out; what is evicted is what nobody holds, found by walking; after a flush and after new
weights nothing is matched; content says of which weights it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from kvsim.core.ops import Outcome
from kvsim.core.tree import ROOT
from kvsim.events import CacheCleared
from kvsim.testing import Prompt, cache_configs, digest, prompts
from kvsim.types import PartialRule
from tests.property.driver import POLICIES as ALL_POLICIES
from tests.property.driver import Driver
from tests.property.manager_machine import ManagerMachine, Steps
from tests.property.retained import RetainingDriver, retained_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.config import CacheConfig
    from kvsim.types import BlockKey, NodeId

MOST_PINS = 2
LARGEST_TIER = 10
POLICIES = sorted(ALL_POLICIES)


def keys_of(prompt: Prompt, driver: Driver) -> tuple[BlockKey, ...]:
    """Return the keys of the prompt's full blocks."""
    size = driver.config.block_size
    return tuple((prompt.letters[: i + 1], size) for i in range(len(prompt.letters)))


@dataclass(frozen=True, slots=True)
class Pin:
    """A prefix is pinned, or the oldest pin taken back."""

    prompt: Prompt
    is_pinned: bool

    def apply(self, driver: Driver) -> bool:
        """Do it, if it is possible now; whether it was."""
        manager, pins = driver.manager, driver.cache.prefix_pins
        keys = keys_of(self.prompt, driver)
        if self.is_pinned and sum(pin.count for pin in pins.values()) < MOST_PINS:
            assert manager.pin_prefix(keys) == len(manager.match(keys))
            return True
        if not pins:
            return False
        manager.unpin_prefix(next(iter(pins.values())).keys)
        return True


@dataclass(frozen=True, slots=True)
class Evict:
    """A prefix, with all below it, is to go."""

    prompt: Prompt

    def apply(self, driver: Driver) -> bool:
        """Do it; what nobody holds has gone, and nothing else."""
        tree = driver.cache.tree
        keys = keys_of(self.prompt, driver)
        path = tree.match(keys)
        meant = {tree.key_of[v] for v in path}
        if len(path) == len(keys):
            meant |= {k for k, v in tree.index.items() if set(path) <= set(tree.path_to(v))}
        others = [v for k, v in tree.index.items() if k not in meant]
        held = held_nodes(driver).union(*map(tree.path_to, others))
        kept = {tree.key_of[v] for v in held}
        before = set(tree.index)
        came = driver.manager.evict(keys)
        assert before - set(tree.index) == meant - kept
        assert (came.num_gone, came.num_kept) == (len(meant - kept), len(meant & kept))
        return True


@dataclass(frozen=True, slots=True)
class Flush:
    """Everything is to go, if nothing is running."""

    def apply(self, driver: Driver) -> bool:
        """Do it; all or nothing."""
        is_idle = not driver.running and not driver.memory.open and driver.building is None
        before = (digest(driver.manager, without=[driver.mirror]), len(driver.mirror.events))
        assert driver.manager.flush() == is_idle
        if not is_idle:
            after = (digest(driver.manager, without=[driver.mirror]), len(driver.mirror.events))
            assert before == after, "a flush that is refused changed something"
            return False
        assert not driver.cache.tree.index
        for tier in driver.cache.tiers:
            assert driver.manager.num_free_blocks(tier.index) == tier.pool.limit
        return True


@dataclass(frozen=True, slots=True)
class Bump:
    """The weights change, whatever is under way."""

    def apply(self, driver: Driver) -> bool:
        """Do it; nothing is matched any more."""
        if driver.building is not None:
            return False
        version = driver.cache.weight_version
        assert driver.manager.bump_weight_version() == version + 1
        assert not driver.cache.tree.index
        return True


@dataclass(frozen=True, slots=True)
class Resize:
    """A tier gets another size."""

    tier: int
    num_blocks: int

    def apply(self, driver: Driver) -> bool:
        """Do it; what is free beyond the size has gone, and what is new is free."""
        tiers = driver.cache.tiers
        pool = tiers[self.tier % len(tiers)].pool
        free = {block_id for block_id in pool.free if block_id < self.num_blocks}
        quarantined = pool._quarantined.values()  # noqa: SLF001  (they exist, and are not free)
        ids = {*pool.free, *pool.retiring, *range(pool.limit)}.union(*quarantined)
        resized = driver.manager.resize(self.tier % len(tiers), self.num_blocks, driver.now)
        for op in resized.ops:
            driver.memory.start_transfer(op)
        assert pool.limit == self.num_blocks
        assert free | (set(range(self.num_blocks)) - ids) <= {*pool.free, *_targets(driver)}
        assert all(block_id < self.num_blocks for block_id in pool.free)
        assert resized.num_retiring == len(pool.retiring)
        return True


def _targets(driver: Driver) -> set[int]:
    return {block_id for op in driver.memory.open.values() for _, block_id in op.writes}


def held_nodes(driver: Driver) -> set[NodeId]:
    """Return the nodes that somebody holds, an op is at, or that are above such a one."""
    cache = driver.cache
    ends: set[NodeId] = {v for attempt in cache.live.values() for v in attempt.path}
    for transfer in cache.transfers.values():
        ends.update(transfer.nodes, transfer.pins)
    for forward in cache.forwards.values():
        ends.update(forward.pins, *(nodes for _, nodes in forward.fills))
    for pin in cache.prefix_pins.values():
        ends.update(cache.tree.match(pin.keys))
    attached = set(cache.tree.index.values())
    return {v for end in ends & attached for v in cache.tree.path_to(end) if v != ROOT}


Order: TypeAlias = Pin | Evict | Flush | Bump | Resize

PIN = st.builds(Pin, prompts(max_blocks=4), st.sampled_from([True, True, False]))
EVICT = st.builds(Evict, prompts(max_blocks=3))
RESIZE = st.builds(Resize, st.integers(0, 2), st.integers(1, LARGEST_TIER))
ALL_OF_IT = st.builds(Flush) | st.builds(Bump)
# A strategy named twice in one_of counts once, hence the detour.
ORDERS: st.SearchStrategy[Order] = st.sampled_from(
    [PIN] * 3 + [EVICT] * 2 + [RESIZE] * 3 + [ALL_OF_IT] * 2
).flatmap(lambda orders: orders)


class UpkeepMachine(ManagerMachine):
    """The manager's machine with an operator who gives orders at any time.

    In half of its runs requests say how long their blocks are worth keeping.
    """

    @initialize(
        config=cache_configs(),
        policy=st.sampled_from(POLICIES),
        partial=st.sampled_from(PartialRule),
        timeout_ns=st.sampled_from([None, 1000]),
        is_retained=st.booleans(),
    )
    def start(
        self,
        config: CacheConfig,
        policy: str,
        partial: PartialRule,
        timeout_ns: int | None,
        is_retained: bool,
    ) -> None:
        driver = RetainingDriver if is_retained else Driver
        name = retained_policy(policy) if is_retained else policy
        self.driver = driver(config, policy=name, partial=partial, transfer_timeout_ns=timeout_ns)

    @rule(order=ORDERS)
    def order(self, order: Order) -> None:
        """Give an order."""
        self.driver.now += 1
        Steps.count += order.apply(self.driver)

    @invariant()
    def pinned_prefixes_stay(self) -> None:
        """No block of a pinned prefix goes, unless something failed or all was taken out."""
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        num_events = len(driver.mirror.events)
        start, self.num_seen_events = getattr(self, "num_seen_events", 0), num_events
        has_cleared = any(isinstance(e, CacheCleared) for e in driver.mirror.events[start:])
        failed = {i for i, end in driver.memory.outcome_of.items() if end is not Outcome.DONE}
        has_failed = failed != getattr(self, "failed", set())
        there = {
            keys: len(driver.manager.match(keys))
            for keys in (pin.keys for pin in driver.cache.prefix_pins.values())
        }
        if not (has_cleared or has_failed):
            before: dict[Sequence[BlockKey], int] = getattr(self, "there", {})
            for keys, num_blocks in there.items():
                assert num_blocks >= before.get(keys, 0), f"{keys} was pinned and went"
        self.failed, self.there = failed, there
