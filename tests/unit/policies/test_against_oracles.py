"""Every policy against the plainest form of it, in a plain cache and under the prefix rule."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.config import CacheConfig
from kvsim.core.instant import replay_instantly
from kvsim.core.manager import CacheManager
from kvsim.hitrate.flat import flat_replay
from kvsim.policies import POLICIES, policy_factory
from kvsim.policies.length_aware import First, LengthAware
from kvsim.trace import Trace, annotate_next_use
from kvsim.types import PartialRule, Request
from tests.unit.policies.oracle_cache import OracleCache
from tests.unit.policies.oracles import ORACLES, DepthFirstOracle

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.policies.registry import PolicyMaker
    from tests.unit.policies.oracles import Oracle

CASES: list[tuple[str | PolicyMaker, Callable[[int], Oracle]]] = [
    *ORACLES.items(),
    (partial(LengthAware, first=First.DEPTH), DepthFirstOracle),
]
EVERY_CASE = pytest.mark.parametrize(
    ("policy", "oracle"), CASES, ids=[*ORACLES, "length-aware, depth first"]
)
# Few letters and short paths: most requests share blocks, hit ghosts and come back.
TRACES = st.lists(
    st.lists(st.sampled_from("aab"), min_size=1, max_size=5).map("".join), min_size=1, max_size=60
)


def trace_of(prompts: list[str]) -> Trace:
    """Return a trace whose blocks are letters; a key is the prompt up to the block."""
    requests = tuple(
        Request(
            request_id=i,
            arrived_at=i,
            block_keys=[prompt[: end + 1] for end in range(len(prompt))],
            num_input_tokens=len(prompt),
            num_output_tokens=1,
        )
        for i, prompt in enumerate(prompts)
    )
    trace = Trace(
        requests=requests, block_size=1, partial=PartialRule.NEVER, name="letters", format="test"
    )
    return annotate_next_use(trace)


def test_every_policy_but_the_random_one_has_an_oracle() -> None:
    assert {*ORACLES, "random"} == set(POLICIES)


@EVERY_CASE
@settings(max_examples=200)
@given(prompts=TRACES, capacity=st.integers(1, 14))
def test_a_plain_cache_hits_what_the_oracle_hits(
    policy: str, oracle: Callable[[int], Oracle], prompts: list[str], capacity: int
) -> None:
    trace = trace_of(prompts)
    plain = OracleCache(oracle(capacity), capacity)
    hits = flat_replay(trace, policy, capacity)
    assert list(hits.block_hits) == [plain.access_flat(request) for request in trace.requests]


@EVERY_CASE
@settings(max_examples=200)
@given(prompts=TRACES, capacity=st.integers(1, 14))
def test_under_the_prefix_rule_a_policy_hits_what_the_oracle_hits(
    policy: str, oracle: Callable[[int], Oracle], prompts: list[str], capacity: int
) -> None:
    trace = trace_of(prompts)
    plain = OracleCache(oracle(capacity), capacity)
    config = CacheConfig(block_size=1, tier_blocks=(capacity,), low_watermark_blocks=0)
    manager = CacheManager(config, policy_factory(policy)[1], rng=Random(0))
    hits = [hit.num_gpu_blocks for hit in replay_instantly(manager, trace.requests)]
    manager.check()
    assert hits == [plain.access_path(request) for request in trace.requests]
