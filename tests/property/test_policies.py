"""What holds of all policies: none beats the optimum, and two runs are one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

from hypothesis import given
from hypothesis import strategies as st

import kvsim
from kvsim.config import CacheConfig
from kvsim.core.instant import replay_instantly
from kvsim.core.manager import CacheManager
from kvsim.hitrate.flat import flat_replay
from kvsim.policies import POLICIES, policy_factory
from tests.unit.policies.test_against_oracles import trace_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kvsim.trace import Trace

ROOT = Path(__file__).parents[2]
OTHERS = sorted(set(POLICIES) - {"belady"})
TRACES = st.lists(
    st.lists(st.sampled_from("aab"), min_size=1, max_size=4).map("".join), min_size=1, max_size=25
)
TIERS = [(1_000, 0), (600, 400)]


def num_hits(trace: Trace, policy: str, capacity: int) -> int:
    """Return the hits under the prefix rule; what is longer than the cache is refused."""
    config = CacheConfig(block_size=1, tier_blocks=(capacity,), low_watermark_blocks=0)
    manager = CacheManager(config, policy_factory(policy)[1], rng=Random(0))
    hits = sum(hit.num_gpu_blocks for hit in replay_instantly(manager, trace.requests))
    manager.check()
    return hits


@given(prompts=TRACES)
def test_no_policy_hits_more_than_the_optimum_at_any_capacity(prompts: list[str]) -> None:
    for capacity in range(1, trace_of(prompts).num_unique_blocks + 1):
        # The optimum waits for each request that wants a block, also for one that is refused.
        trace = trace_of([prompt for prompt in prompts if len(prompt) <= capacity])
        most = num_hits(trace, "belady", capacity)
        found = {policy: num_hits(trace, policy, capacity) for policy in OTHERS}
        assert {policy: hits for policy, hits in found.items() if hits > most} == {}


@given(prompts=TRACES)
def test_no_policy_hits_more_than_the_optimum_in_a_plain_cache(prompts: list[str]) -> None:
    trace = trace_of(prompts)
    for capacity in range(1, trace.num_unique_blocks + 1):
        most = flat_replay(trace, "belady", capacity).num_block_hits
        found = {each: flat_replay(trace, each, capacity).num_block_hits for each in OTHERS}
        assert {policy: hits for policy, hits in found.items() if hits > most} == {}


def figures(policy: str) -> list[object]:
    """Return what replays of the sample come to: one and two tiers, timed and without time."""
    return [
        json.loads(
            kvsim.replay(
                "sample:chat",
                policy=policy,
                gpu_blocks=gpu,
                cpu_blocks=cpu,
                instant=instant,
                limit=50,
            ).to_json()
        )["hits"]
        for gpu, cpu in TIERS
        for instant in (True, False)
    ]


SCRIPT = """
import json, sys
sys.path.insert(0, {root!r})
from kvsim.policies import POLICIES
from tests.property.test_policies import figures
print(json.dumps({{policy: figures(policy) for policy in sorted(POLICIES)}}))
"""


def test_every_policy_replays_the_same_whatever_the_hash_seed() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT.format(root=str(ROOT))],
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    hits = json.loads(outputs[0])
    assert set(hits) == set(POLICIES)
    # Not all alike, else nothing would be shown.
    assert len({json.dumps(each) for each in hits.values()}) > len(POLICIES) // 2
