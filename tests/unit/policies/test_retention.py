"""Retention around a policy: what a request says its blocks are worth, and for how long."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.core import manager as manager_module
from kvsim.core.ports import AccessInfo, BlockRetention, RemoveReason
from kvsim.core.retention import access_info, block_retention, check_ranges
from kvsim.errors import ConfigError, UserError
from kvsim.policies import POLICIES, policy_factory
from kvsim.policies.lru import LRU
from kvsim.policies.retention import RetentionPolicy, has_retention, with_retention
from kvsim.testing import check_policy
from kvsim.trace.retaining import parse_retain, retain_blocks
from kvsim.types import NEVER, RetentionRange
from tests.unit.policies.context import NUM_NODES, access, new_context, peel_of, victims_of
from tests.unit.stories import trace_of

if TYPE_CHECKING:
    from kvsim.core.attempt import Attempt
    from kvsim.core.ports import EvictionPolicy, PolicyContext

LOW, HIGH = (10, NEVER), (80, NEVER)


def said(index: int, *prompt: tuple[int, int]) -> AccessInfo:
    """Return an access that says this of its blocks."""
    return access(index)._replace(retention=BlockRetention(prompt, (35, NEVER)))


def filled(*infos: AccessInfo) -> RetentionPolicy:
    """Return LRU behind retention, with a block of its own for each access: nodes 1, 2, ..."""
    policy = RetentionPolicy(new_context(), LRU)
    for node, info in enumerate(infos, start=1):
        policy.on_insert([node], 0, info)
        policy.on_release([node], info)
        policy.on_evictable(node)
    return policy


def test_the_lowest_priority_goes_first_and_within_it_the_policy_decides() -> None:
    policy = filled(said(0, HIGH), access(1), said(2, LOW), access(3), said(4, LOW))
    assert victims_of(policy, 4, range(1, 6)) == [3, 5, 2, 4]


def test_a_priority_that_is_over_is_the_default() -> None:
    policy = filled(said(0, (80, 10)), access(1), said(2, (0, 10)), access(3))
    nodes = range(1, 5)
    # At time 9 node 3 is worth least; at 10 all are worth the same, and 1 and 3 enter anew.
    assert policy.choose_victims(1, peel_of({}, nodes), 9) == [3]
    later = filled(said(0, (80, 10)), access(1), said(2, (0, 10)), access(3))
    assert later.choose_victims(4, peel_of({}, nodes), 10) == [2, 4, 1, 3]


def test_a_hit_that_says_something_changes_the_priority_and_one_that_does_not_keeps_it() -> None:
    policy = filled(said(0, HIGH), access(1))
    policy.on_hit([1], 0, access(2))
    policy.on_hit([2], 0, said(3, LOW))
    policy.on_hit([1, 2], 0, access(4))
    assert victims_of(policy, 2, [1, 2]) == [2, 1]


def test_a_parent_that_is_worth_less_goes_as_soon_as_it_is_bare() -> None:
    """Node 1 (low) has the child 2 (high); node 3 has the default."""
    policy = RetentionPolicy(new_context(), LRU)
    policy.on_insert([1, 2], 0, said(0, LOW, HIGH))
    policy.on_insert([3], 0, access(1))
    policy.on_evictable(2)
    policy.on_evictable(3)
    assert victims_of(policy, 3, [1, 2, 3], parent={2: 1}) == [3, 2, 1]
    again = RetentionPolicy(new_context(), LRU)
    again.on_insert([1, 2], 0, said(0, LOW, HIGH))
    again.on_insert([3], 0, said(1, (90, NEVER)))
    again.on_evictable(2)
    again.on_evictable(3)
    assert victims_of(again, 3, [1, 2, 3], parent={2: 1}) == [2, 1, 3]


@pytest.mark.parametrize(
    "reason", [RemoveReason.DEMOTED, RemoveReason.SWAPPED, RemoveReason.RETIRED]
)
def test_a_block_takes_its_priority_along_to_the_tier_below(reason: RemoveReason) -> None:
    shared: dict[str, object] = {}
    above = RetentionPolicy(new_context(shared=shared), LRU)
    below = RetentionPolicy(new_context(tier=1, shared=shared), LRU)
    for node, info in ((1, said(0, HIGH)), (2, access(1))):
        above.on_insert([node], 0, info)
        above.on_evictable(node)
    assert victims_of(above, 2, [1, 2]) == [2, 1]
    above.on_remove([2, 1], reason)
    below.on_insert([1, 2], 0, None)  # LRU alone would take 1 first
    for node in (1, 2):
        below.on_evictable(node)
    assert victims_of(below, 2, [1, 2]) == [2, 1]


def test_a_block_keeps_its_priority_above_when_its_copy_below_is_evicted() -> None:
    """Inclusive tiers: node 1 (high) is in both, and node 2 (default) above only."""
    shared: dict[str, object] = {}
    above = RetentionPolicy(new_context(shared=shared), LRU)
    below = RetentionPolicy(new_context(tier=1, shared=shared), LRU)
    for node, info in ((1, said(0, HIGH)), (2, access(1))):
        above.on_insert([node], 0, info)
    below.on_insert([1], 0, None)
    below.on_remove([1], RemoveReason.EVICTED)
    above.on_remove([2, 1], RemoveReason.DEMOTED)
    below.on_insert([1, 2], 0, None)  # LRU alone would take 1 first
    for node in (1, 2):
        below.on_evictable(node)
    assert victims_of(below, 2, [1, 2]) == [2, 1]


def test_a_block_gets_its_priority_in_every_tier_that_has_it() -> None:
    """Node 1 is below, and computed again above by a request that says more; over at 10."""
    shared: dict[str, object] = {}
    above = RetentionPolicy(new_context(shared=shared), LRU)
    below = RetentionPolicy(new_context(tier=1, shared=shared), LRU)
    below.on_insert([1, 2], 0, None)
    for node in (1, 2):
        below.on_evictable(node)
    above.on_insert([1], 0, said(0, (80, 10)))
    assert below.choose_victims(1, peel_of({}, [1, 2]), 5) == [2]
    below.on_remove([2], RemoveReason.EVICTED)
    below.on_insert([2], 0, None)
    below.on_evictable(2)
    above.on_remove([1], RemoveReason.PROMOTED)
    # Both are worth the same by now, and 1 enters its policy after 2.
    assert below.choose_victims(2, peel_of({}, [1, 2]), 10) == [2, 1]


def test_a_policy_made_later_knows_the_new_size() -> None:
    seen: list[tuple[int, int]] = []

    def make(context: PolicyContext) -> EvictionPolicy:
        seen.append((context.capacity_blocks, context.num_nodes))
        return LRU(context)

    context = new_context(capacity=5)
    policy = RetentionPolicy(context, make)
    for listener in context.on_resize:
        listener(9, NUM_NODES + 20)
    policy.on_insert([NUM_NODES - 1], 0, said(0, LOW))
    assert seen == [(5, NUM_NODES), (9, NUM_NODES + 20)]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_keeps_its_contract_behind_retention(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def varied(attempt: Attempt, now: int) -> AccessInfo:
        rng = Random(attempt.request.request_id)
        worth = [
            (rng.choice([0, 35, 80, 100]), rng.choice([NEVER, now + 1, now + 9]))
            for _ in attempt.request.block_keys
        ]
        info = access_info(attempt, now)
        if not rng.randrange(3):
            return info
        return info._replace(retention=BlockRetention(tuple(worth), LOW))

    monkeypatch.setattr(manager_module, "access_info", varied)
    _, make, _ = policy_factory(name)

    def wrapped(context: PolicyContext) -> EvictionPolicy:
        return with_retention(make)(context)

    report = check_policy(wrapped, num_traces=4, waive=("ignores-hits", "cost"))
    assert report.num_victims > 100


# -- what a request says


def test_a_block_has_the_highest_priority_of_its_tokens() -> None:
    """14 tokens in blocks of 4: 0-3, 4-7, 8-11, 12-13.

    Tokens 0-5 have 10, 6-11 have 80 until 107, the rest the default. So block 0 has 10, block 1
    has 80, block 2 has 80, block 3 the default.
    """
    request = trace_of(("abcd", 14)).requests[0]
    kept = (
        RetentionRange(end_token=6, priority=10),
        RetentionRange(first_token=6, end_token=12, priority=80, duration_ns=7),
    )
    found = block_retention(
        replace(request, retention=kept, output_retention=RetentionRange(priority=0)), 4, 100
    )
    assert found.prompt == ((10, NEVER), (80, 107), (80, 107), (35, NEVER))
    assert found.of(3) == (35, NEVER)
    assert found.of(4) == (0, NEVER)
    # A block that a low range covers in part has tokens with the default, which is higher.
    part = block_retention(
        replace(request, retention=(RetentionRange(first_token=1, priority=10),)), 4, 0
    )
    assert part.prompt == ((35, NEVER), (10, NEVER), (10, NEVER), (10, NEVER))


def test_ranges_that_overlap_are_noticed() -> None:
    assert check_ranges([RetentionRange(first_token=4), RetentionRange(end_token=4)]) is None
    overlap = check_ranges([RetentionRange(), RetentionRange(first_token=9)])
    assert overlap == "retention ranges overlap at token 9"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"priority": 101}, "priority of a retention range must be an integer from 0 to 100"),
        ({"priority": True}, "priority of a retention range must be an integer"),
        ({"first_token": -1}, "first_token of a retention range must be an integer of at least 0"),
        ({"first_token": 4, "end_token": 4}, r"must be above its first_token \(4\), not 4"),
        ({"duration_ns": 0}, "duration_ns of a retention range must be an integer of at least 1"),
    ],
)
def test_impossible_ranges_are_refused(fields: dict[str, int], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        RetentionRange(**fields)


# -- a whole run


def test_rules_for_a_whole_run_change_what_is_kept() -> None:
    """Room for 4: LRU keeps the last, and with a high priority the first block of ab stays."""
    trace = trace_of(("ab", 8), ("cd", 8), ("ef", 8), ("ab", 8))

    def hits(retain: str | None, *, instant: bool) -> list[int]:
        result = kvsim.replay(trace, gpu_blocks=4, retain=retain, instant=instant)
        return [each.num_gpu_hit_blocks for each in result.records]

    for instant in (True, False):
        assert hits(None, instant=instant) == [0, 0, 0, 0]
        # First blocks a, c, e stay in turn: when ef comes, b and d go; for ab then b is missing.
        assert hits("tokens=0:4,priority=80", instant=instant) == [0, 0, 0, 1]
        assert hits("tokens=4:,priority=0", instant=instant) == [0, 0, 0, 1]


def test_a_priority_ends_with_its_duration() -> None:
    """Room for 4; ab is kept while cd, ef and gh come and go, as long as it is worth more.

    Once that is over it enters anew, at the eviction for ef, and is the oldest at the one for gh.
    """
    trace = trace_of(("ab", 8), ("cd", 8), ("ef", 8), ("gh", 8), ("ab", 8))
    first, *others = trace.requests
    trace = replace(trace, requests=(replace(first, session_id="s"), *others))

    def hits(retain: str, *, instant: bool) -> list[int]:
        result = kvsim.replay(trace, gpu_blocks=4, retain=retain, instant=instant)
        return [each.num_gpu_hit_blocks for each in result.records]

    for instant in (True, False):
        assert hits("session=s,priority=80,for=60s", instant=instant) == [0, 0, 0, 0, 2]
        assert hits("session=s,priority=80,for=1us", instant=instant) == [0, 0, 0, 0, 0]


def test_rules_hold_for_whom_they_name() -> None:
    first, second = trace_of(("ab", 8), ("cd", 8)).requests
    requests = (replace(first, session_id="s"), replace(second, tenant="t"))
    trace = replace(trace_of(("ab", 8), ("cd", 8)), requests=requests)
    rules = "session=s,priority=9; tenant=t,priority=8,outputs; outputs,priority=7,for=2ms"
    one, two = retain_blocks(trace, rules).requests
    assert one.retention == (RetentionRange(priority=9),)
    assert one.output_retention == RetentionRange(priority=7, duration_ns=2_000_000)
    assert two.retention == ()
    assert two.output_retention == RetentionRange(priority=8)
    assert has_retention([two])
    assert not has_retention(requests)
    with pytest.raises(UserError, match="'tenant=x,priority=1' fits no request of story"):
        retain_blocks(trace, "tenant=x,priority=1")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tokens=0:4", "must say a priority"),
        ("priority=x", "priority must be a whole number"),
        ("priority=1,priority=2", "each once, and not 'priority=2'"),
        ("prio=1", "not 'prio=1'"),
        ("outputs=1,priority=1", "not 'outputs=1'"),
        ("outputs,tokens=0:4,priority=1", "tokens are of the prompt"),
        ("tokens=4,priority=1", "tokens must be FIRST:END"),
        ("tokens=a:4,priority=1", "tokens must be a whole number"),
        ("priority=1,for=5", "for must be a time and its unit"),
        ("priority=101", "from 0 to 100"),
    ],
)
def test_an_impossible_rule_is_one_line(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_retain(text)
