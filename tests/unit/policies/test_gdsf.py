"""GDSF; in these contexts the block at a depth costs depth + 1."""

from __future__ import annotations

from kvsim.core.ports import RemoveReason
from kvsim.policies.gdsf import GDSF
from tests.unit.policies.context import access, new_context, victims_of
from tests.unit.policies.play import Play


def test_of_blocks_used_equally_often_the_cheapest_goes() -> None:
    policy = GDSF(new_context())
    for node, depth in ((1, 4), (2, 0), (3, 2)):
        policy.on_insert([node], depth, access(node))
        policy.on_release([node], access(node))
        policy.on_evictable(node)
    assert victims_of(policy, 3, [1, 2, 3]) == [2, 3, 1]


def test_uses_multiply_the_cost() -> None:
    # 1 at depth 1 is worth 2; 2 at depth 0 is used three times and worth 3.
    policy = GDSF(new_context())
    for node, depth in ((1, 1), (2, 0)):
        policy.on_insert([node], depth, access(node))
        policy.on_release([node], access(node))
        policy.on_evictable(node)
    Play(policy).hit(2, 2)
    assert victims_of(policy, 1, [1, 2]) == [1]


def test_the_past_fades_as_victims_leave() -> None:
    # 1 is worth 3 and never used again. 2, worth 1, leaves: the age is 1; so 3 is worth 1 + 1,
    # leaves at age 2; 4 is worth 3 like 1, whose last use is older: 1 goes.
    play = Play(GDSF(new_context()))
    play.enter(1)
    play.hit(1, 1)
    for node in (2, 3):
        play.enter(node)
        assert play.evict() == [node]
    play.enter(4)
    assert play.evict() == [1]


def test_the_cost_of_a_depth_is_asked_for_once() -> None:
    asked: list[int] = []

    def recompute_ns(depth: int) -> int:
        asked.append(depth)
        return depth

    context = new_context()
    policy = GDSF(
        type(context)(
            tier=0,
            capacity_blocks=4,
            num_nodes=9,
            key_of=context.key_of,
            rng=context.rng,
            recompute_ns=recompute_ns,
        )
    )
    for node in (1, 2):
        policy.on_insert([node], 3, access(node))
        policy.on_release([node], access(node))
    assert asked == [3]


def test_a_demoted_block_keeps_its_uses_and_its_depth() -> None:
    # 1 is used twice at depth 1 and worth 4, 2 once at depth 2 and worth 3: 2 goes, though it came
    # down last.
    shared: dict[str, object] = {}
    above, below = (GDSF(new_context(tier=tier, shared=shared)) for tier in (0, 1))
    above.on_insert([1], 1, access(1))
    above.on_hit([1], 1, access(2))
    above.on_insert([2], 2, access(2))
    above.on_release([1, 2], access(2))
    above.on_remove([2, 1], RemoveReason.DEMOTED)
    below.on_insert([1, 2], 0, None)
    for node in (1, 2):
        below.on_evictable(node)
    assert victims_of(below, 2, [1, 2]) == [2, 1]
