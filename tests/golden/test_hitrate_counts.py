"""The lab on two public traces, against `hit_counts.json` (see `test_hit_counts.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsim.hitrate import (
    lru_curve,
    opt_curve,
    replay,
    replay_curve,
    sampled_replay,
    tier_plane,
    two_tier_bound,
)
from kvsim.policies.lru import LRU
from kvsim.testing import PerBlockLRU
from tests.golden.test_hit_counts import CAPACITIES, GOLDENS, NAMES, hits_of, trace_named

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.hitrate import HitCurve

BOTH = pytest.mark.parametrize("name", NAMES)


def blocks(curve: HitCurve) -> dict[str, int]:
    """Return the block hits by capacity, keyed as the goldens are."""
    return {str(c): curve.at(c)["block"]["hits"] for c in curve.capacities}


@BOTH
def test_one_pass_has_the_hits_of_every_capacity(name: str, public_traces: Path) -> None:
    curve = lru_curve(trace_named(public_traces, name), CAPACITIES)
    assert blocks(curve) == GOLDENS[name]["leaf_lru_blocks"]
    facts = {"refs": curve.infinite["block"].total, "requests": curve.basis.num_requests}
    assert facts.items() <= GOLDENS[name].items()


@BOTH
@pytest.mark.parametrize("policy", ["lru", LRU])
def test_a_replay_of_lru_has_the_same_hits(policy: object, name: str, public_traces: Path) -> None:
    curve = replay_curve(trace_named(public_traces, name), policy, CAPACITIES)  # type: ignore[arg-type]
    assert blocks(curve) == GOLDENS[name]["leaf_lru_blocks"]


@BOTH
@pytest.mark.parametrize("residency", ["resident", "bypass"])
def test_the_optimum_has_the_most_hits(residency: str, name: str, public_traces: Path) -> None:
    curve = opt_curve(trace_named(public_traces, name), CAPACITIES, residency)  # type: ignore[arg-type]
    assert blocks(curve) == GOLDENS[name][f"opt_{residency}_blocks"]


@BOTH
def test_tokens_of_the_second_half_are_counted_exactly(name: str, public_traces: Path) -> None:
    # The goldens' rules: half of the requests are warm-up, and a partial last block has its tokens.
    trace, golden = trace_named(public_traces, name), GOLDENS[name]["last_half_tokens"]
    curve = lru_curve(trace, warmup=0.5)
    assert curve.infinite["prefix_token"].total == golden["measured_tokens"]
    assert curve.infinite["prefix_token"].gpu == golden["ceiling"]
    for capacity, hits in golden["lru"].items():
        assert curve.at(int(capacity))["prefix_token"]["hits"] == hits
    best = opt_curve(trace, map(int, golden["opt_bypass"]), "bypass", warmup=0.5)
    for capacity, hits in golden["opt_bypass"].items():
        assert best.at(int(capacity))["prefix_token"]["hits"] == hits


@BOTH
def test_an_infinite_cache_has_the_published_rates(name: str, public_traces: Path) -> None:
    # To five digits, by a separate program from before this one existed.
    expected = {
        "conversation": {"block": 0.36641, "prefix_token": 0.37362, "prefix_token_usable": 0.37338},
        "synthetic": {"block": 0.63960, "prefix_token": 0.65124, "prefix_token_usable": 0.65043},
    }[name]
    infinite = lru_curve(trace_named(public_traces, name)).infinite
    for definition, rate in expected.items():
        assert infinite[definition].figure()["rate"] == pytest.approx(rate, abs=5e-6)


@BOTH
def test_a_plane_is_cut_out_of_the_curve(name: str, public_traces: Path) -> None:
    golden = GOLDENS[name]["leaf_lru_blocks"]
    trace = trace_named(public_traces, name)
    near, far = golden["10000"], golden["30000"]
    for mode, cpu in (("exclusive", 20_000), ("inclusive", 30_000)):
        figures = tier_plane(trace, mode, [10_000], [cpu]).at(10_000, cpu)  # type: ignore[arg-type]
        hits = {tier: each["block"]["hits"] for tier, each in figures.items()}
        assert hits == {"gpu": near, "cpu": far - near, "all": far}


THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize(
    ("name", "gpu", "cpu"),
    [
        ("synthetic", 1_000, 9_000),
        ("synthetic", 3_000, 7_000),
        pytest.param("conversation", 1_000, 9_000, marks=THOROUGH),
        pytest.param("conversation", 3_000, 7_000, marks=THOROUGH),
        pytest.param("conversation", 10_000, 20_000, marks=THOROUGH),
    ],
)
def test_the_manager_is_within_a_thousandth_of_the_plane_and_never_above(
    name: str, gpu: int, cpu: int, public_traces: Path
) -> None:
    trace = trace_named(public_traces, name)
    plane = tier_plane(trace, gpu=[gpu], cpu=[cpu]).at(gpu, cpu)
    on_gpu, on_cpu = hits_of(trace, "lru", gpu, cpu)
    assert on_gpu == plane["gpu"]["block"]["hits"]
    short = plane["cpu"]["block"]["hits"] - on_cpu
    assert 0 <= short <= plane["all"]["block"]["total"] / 1000


@BOTH
def test_the_bound_of_two_tiers_has_the_published_costs(name: str, public_traces: Path) -> None:
    # A CPU hit costs 0.1, a miss 1, a demotion nothing.
    expected = {
        "conversation": {(1_000, 9_000): 0.6523, (3_000, 7_000): 0.6411, (10_000, 20_000): 0.6336},
        "synthetic": {(1_000, 9_000): 0.4175, (3_000, 7_000): 0.4000, (10_000, 20_000): 0.3626},
    }[name]
    trace = trace_named(public_traces, name)
    for sizes, cost in expected.items():
        assert two_tier_bound(trace, *sizes).cost_per_reference == pytest.approx(cost, abs=5e-5)


@BOTH
def test_a_sample_of_lru_has_the_error_that_it_names(name: str, public_traces: Path) -> None:
    # The mean of four capacities and two seeds; twice as much is allowed for so few.
    trace = trace_named(public_traces, name)
    exact = lru_curve(trace, CAPACITIES)
    errors, expected = [], 0.0
    for seed in range(2):
        sample = sampled_replay(trace, "lru", CAPACITIES, 0.1, seed=seed)
        expected = sample.expected_error
        errors += [
            abs(rates["block"] - counts["block"].figure()["rate"])
            for rates, counts in zip(sample.rates, exact.counts, strict=True)
        ]
    assert 0 < sum(errors) / len(errors) <= 2 * expected


@THOROUGH
@BOTH
def test_the_per_block_form_has_the_same_hits(name: str, public_traces: Path) -> None:
    # One capacity: the example policy looks through all evictable blocks for each victim.
    trace = trace_named(public_traces, name)
    found = replay(trace, PerBlockLRU, 30_000 if name == "conversation" else 10_000)
    golden = GOLDENS[name]["leaf_lru_blocks"][str(found.capacity)]
    assert found.hits["block"]["hits"] == golden
