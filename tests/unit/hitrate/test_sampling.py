from __future__ import annotations

import json
import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvsim
from kvsim.errors import ConfigError
from kvsim.hitrate import replay_curve, sampled_replay
from kvsim.hitrate.paths import number_nodes
from kvsim.hitrate.sampling import KNOWN_ERRORS, _draw
from kvsim.policies import policy_names
from kvsim.testing import PerBlockLRU
from kvsim.trace import Trace, annotate_next_use
from tests.property.lab import traces
from tests.unit.policies.context import new_context
from tests.unit.stories import trace_of

CAPACITIES = [500, 2_000]


@pytest.mark.parametrize("policy", policy_names())
@settings(max_examples=20)
@given(trace=traces(), capacity=st.integers(1, 12))
def test_a_sample_of_everything_is_exact(policy: str, trace: Trace, capacity: int) -> None:
    sample = sampled_replay(trace, policy, [capacity], 1.0)
    exact = replay_curve(trace, policy, [capacity])
    assert sample.num_sampled_blocks == sample.num_blocks
    for name, counts in exact.counts[0].items():
        assert sample.rates[0][name] == pytest.approx(counts.figure()["rate"])


@given(trace=traces(), rate=st.floats(0.05, 0.9), seed=st.integers(0, 99))
def test_a_kept_block_hangs_below_its_nearest_kept_ancestor(
    trace: Trace, rate: float, seed: int
) -> None:
    trace = annotate_next_use(trace)
    sample = _draw(number_nodes(trace), trace.requests, rate, Random(seed))
    kept = set(sample.nodes.key_of[1:])
    for request, path, depths, info in zip(
        trace.requests, sample.nodes.paths, sample.depths, sample.infos, strict=True
    ):
        keys = [sample.nodes.key_of[node] for node in path]
        assert keys == [key for key in request.block_keys if key in kept]
        assert keys == [request.block_keys[depth] for depth in depths]
        assert [sample.nodes.parent[node] for node in path] == [0, *path][: len(path)]
        assert info.next_use_at == [request.next_use_at[d] for d in depths]  # type: ignore[index]


def test_the_draw_takes_every_tenth_block_of_a_path() -> None:
    # One path of 1,000 blocks, asked for once: the phase passes 1 every tenth block. With 1,000
    # references a block with more than one of them would be hot.
    letters = [chr(1000 + i) for i in range(1000)]
    trace = trace_of(("".join(letters), 4000))
    sample = _draw(number_nodes(trace), trace.requests, 0.1, Random(0))
    gaps = {b - a for a, b in zip(sample.depths[0], sample.depths[0][1:], strict=False)}
    assert len(sample.depths[0]) == 100
    assert gaps <= {9, 10, 11}  # the phase is a float


def test_a_hot_block_is_always_kept() -> None:
    # "s" is the first block of each prompt; all others occur once.
    trace = trace_of(*((f"s{chr(1000 + i)}", 8) for i in range(600)))
    for seed in range(5):
        sample = sampled_replay(trace, "lru", [100], 0.1, seed=seed)
        assert sample.num_hot_blocks == 1
        # 599 of 1,200 references hit, all of them "s": no draw changes that.
        assert sample.rates[0]["block"] == 599 / 1200


def test_an_estimate_is_near_the_truth_and_says_how_near_it_should_be() -> None:
    trace = kvsim.sample()
    exact = replay_curve(trace, "lru", CAPACITIES)
    sample = sampled_replay(trace, "lru", CAPACITIES, 0.2, seed=1)
    assert sample.num_sampled_blocks == pytest.approx(0.2 * sample.num_blocks, rel=0.1)
    for estimated, counts in zip(sample.rates, exact.counts, strict=True):
        for name, rate in estimated.items():
            assert rate == pytest.approx(counts[name].figure()["rate"], abs=0.02)
    assert sample.frame["expected_error"].unique().tolist() == [0.001]  # 0.10 points
    assert sample.frame.attrs["sampling_rate"] == 0.2
    assert (
        "mean error measured at rate 0.1: 0.09 points on one trace, 0.1 on another"
        in sample._repr_html_()
    )
    assert json.dumps(sample.to_dict(), allow_nan=False)


def test_a_policy_that_was_never_measured_says_so() -> None:
    sample = sampled_replay(trace_of(("ab", 8), ("ab", 8)), PerBlockLRU, [2], 0.5)
    assert math.isnan(sample.expected_error)
    assert sample.note.startswith("the error of sampling is not known for PerBlockLRU")
    assert json.dumps(sample.to_dict(), allow_nan=False)


def test_a_biased_policy_says_so() -> None:
    assert KNOWN_ERRORS["s3fifo"].is_biased
    assert not KNOWN_ERRORS["lru"].is_biased


def test_the_same_seed_draws_the_same_sample() -> None:
    first, again, other = (
        sampled_replay(kvsim.sample(), "fifo", [500], 0.1, seed=seed) for seed in (1, 1, 2)
    )
    assert first.rates == again.rates != other.rates


@pytest.mark.parametrize("rate", [0, -0.1, 1.1, float("nan"), True, "0.1"])
def test_a_rate_that_is_no_share_is_refused(rate: object) -> None:
    with pytest.raises(ConfigError, match="rate must be a share of the blocks above 0 and up to 1"):
        sampled_replay(kvsim.sample(), "lru", [500], rate)  # type: ignore[arg-type]


def test_one_object_cannot_be_sampled() -> None:
    with pytest.raises(ConfigError, match="must be a class or a name to be sampled"):
        sampled_replay(trace_of(("a", 4)), PerBlockLRU(new_context()), [2])
