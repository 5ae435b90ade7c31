"""How a name, a class, a function or an object becomes a policy."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from kvsim.config import CacheConfig
from kvsim.core.manager import CacheManager
from kvsim.errors import ConfigError, UnknownNameError
from kvsim.policies import POLICIES, policy_factory, policy_names
from kvsim.policies.adapter import PerBlockAdapter
from kvsim.policies.lru import LRU, Stamp
from kvsim.testing import PerBlockLRU
from tests.unit.policies.context import new_context

if TYPE_CHECKING:
    from kvsim.core.ports import PolicyContext


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_name_makes_its_policy(name: str) -> None:
    known_as, factory, _ = policy_factory(name)
    assert known_as == name
    assert isinstance(factory(new_context()), POLICIES[name])  # type: ignore[arg-type]


def test_the_names_are_sorted() -> None:
    assert policy_names() == sorted(policy_names())
    assert set(POLICIES) <= set(policy_names())


def test_only_belady_needs_the_future() -> None:
    assert {name for name in POLICIES if policy_factory(name)[2]} == {"belady"}


def test_a_misspelt_name_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown policy 'lur'\. Did you mean 'lru'\?"):
        policy_factory("lur")


def test_an_unknown_name_is_answered_with_all_that_are_known() -> None:
    with pytest.raises(UnknownNameError, match=f"Known: {', '.join(policy_names())}"):
        policy_factory("zzz")


def test_a_class_is_known_by_its_name() -> None:
    name, factory, _ = policy_factory(LRU)
    assert name == "LRU"
    assert isinstance(factory(new_context()), LRU)


def test_a_function_may_make_the_policy() -> None:
    def lru_at_admission(context: PolicyContext) -> LRU:
        return LRU(context, stamp=Stamp.ADMIT)

    name, factory, _ = policy_factory(lru_at_admission)
    assert name == "lru_at_admission"
    assert isinstance(factory(new_context()), LRU)


def test_a_partial_has_the_name_of_its_type() -> None:
    name, factory, _ = policy_factory(partial(LRU, stamp=Stamp.ADMIT))
    assert name == "partial"
    assert isinstance(factory(new_context()), LRU)


def test_a_per_block_policy_is_adapted() -> None:
    _, factory, _ = policy_factory(PerBlockLRU)
    assert isinstance(factory(new_context()), PerBlockAdapter)


def test_one_object_serves_one_tier() -> None:
    policy = LRU(new_context())
    name, factory, _ = policy_factory(policy)
    assert name == "LRU"
    assert factory(new_context()) is policy
    with pytest.raises(ConfigError, match="one LRU object cannot order the GPU and the CPU tier"):
        factory(new_context(tier=1))


def test_one_object_for_two_tiers_is_refused_before_anything_runs() -> None:
    policy = PerBlockLRU(new_context())
    config = CacheConfig(block_size=1, tier_blocks=(4, 4))
    with pytest.raises(ConfigError, match="must be a class or a name when there are two tiers"):
        CacheManager(config, policy_factory(policy)[1], rng=Random(0))


def test_what_chooses_no_victims_is_no_policy() -> None:
    class Nothing:
        def __init__(self, context: PolicyContext) -> None:
            del context

    _, factory, _ = policy_factory(Nothing)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="policy Nothing has neither choose_victims"):
        factory(new_context())
