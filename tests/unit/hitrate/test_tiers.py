from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvsim.errors import ConfigError, UnknownNameError
from kvsim.hitrate import TierCosts, miss_attribution, tier_plane, two_tier_bound
from tests.unit.stories import three_prompts, trace_of

if TYPE_CHECKING:
    from kvsim.trace import Trace


def loop() -> Trace:
    """Return abc, de and abc again: then a, b and c are at 3, 4 and 5 of the LRU stack."""
    return trace_of(("abc", 12), ("de", 8), ("abc", 12))


def hits_of(trace: Trace, mode: str, *sizes: int) -> list[int]:
    """Return the block hits of each tier and of all."""
    plane = tier_plane(trace, mode, tiers=[[size] for size in sizes])  # type: ignore[arg-type]
    return [figures["block"]["hits"] for figures in plane.at(*sizes).values()]


def test_exclusive_tiers_are_cut_out_of_the_stack_one_after_another() -> None:
    assert hits_of(loop(), "exclusive", 3, 1) == [1, 1, 2]  # a; b
    assert hits_of(loop(), "exclusive", 3, 0) == [1, 0, 1]
    assert hits_of(loop(), "exclusive", 3, 1, 9) == [1, 1, 1, 3]  # a; b; c


def test_inclusive_tiers_are_cut_out_of_the_stack_from_its_top() -> None:
    assert hits_of(loop(), "inclusive", 3, 4) == [1, 1, 2]  # a; b, since a is there twice
    assert hits_of(loop(), "inclusive", 4, 3) == [2, 0, 2]  # all of the CPU's is on the GPU too


def test_a_plane_has_every_combination_of_sizes() -> None:
    plane = tier_plane(loop(), gpu=[3, 4], cpu=[0, 2])
    assert plane.sizes == ((3, 0), (3, 2), (4, 0), (4, 2))
    first, second = plane.points()[:2]
    assert (second["gpu"], second["cpu"]) == (3, 2)
    assert set(first) == {"gpu", "cpu", "gpu_hits", "cpu_hits", "hits"}
    rows = plane.frame[plane.frame["definition"] == "block"]
    assert rows[
        ["gpu_blocks", "cpu_blocks", "gpu_hits", "cpu_hits", "hits"]
    ].to_numpy().tolist() == [
        [3, 0, 1, 0, 1],
        [3, 2, 1, 2, 3],
        [4, 0, 2, 0, 2],
        [4, 2, 2, 1, 3],
    ]
    assert plane.frame.attrs["mode"] == "exclusive"
    assert plane.frame.attrs["in_flight"] == "no requests in flight"
    assert json.dumps(plane.to_dict())
    assert "3 + 2" in plane._repr_html_()


def test_tokens_of_a_tier_are_those_of_its_part_of_the_run() -> None:
    # The second prompt hits abc, 10 tokens: with one GPU block a is there (4), b and c below (6).
    # The third hits a on the GPU (4).
    figures = tier_plane(three_prompts(), gpu=[1], cpu=[9]).at(1, 9)
    hits = {tier: each["prefix_token"]["hits"] for tier, each in figures.items()}
    assert hits == {"gpu": 8, "cpu": 6, "all": 14}


def test_sizes_that_make_no_plane_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"either as gpu=\[\.\.\.\] and cpu=\[\.\.\.\], or as"):
        tier_plane(loop())
    with pytest.raises(ConfigError, match="inclusive tiers are two, not 3"):
        tier_plane(loop(), "inclusive", tiers=[[1], [1], [1]])
    with pytest.raises(ConfigError, match="cpu must be a whole number of blocks from 0 to"):
        tier_plane(loop(), gpu=[1], cpu=[-1])
    with pytest.raises(UnknownNameError, match=r"unknown mode 'exclusiv'\. Did you mean"):
        tier_plane(loop(), "exclusiv", [1], [1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="2 sizes are needed, gpu, cpu"):
        tier_plane(loop(), gpu=[1], cpu=[1]).at(1)


def test_the_bound_demotes_what_will_be_hit_if_that_is_cheaper_than_a_miss() -> None:
    # 8 references, 3 known. On 3 GPU blocks the optimum keeps a; with 2 more below b and c too.
    # 5 misses at 10, and 2 blocks go down and up at 1 + 3.
    bound = two_tier_bound(loop(), 3, 2, TierCosts(cpu_hit=1, miss=10, demotion=3))
    assert (bound.counts["block"].gpu, bound.counts["block"].cpu, bound.num_demotions) == (1, 2, 2)
    assert (bound.cost, bound.cost_with_kept_copies) == (58, 52)
    assert bound.cost_per_reference == 58 / 8
    assert bound.frame["hits"].tolist()[0] == 3
    assert json.dumps(bound.to_dict())
    assert "7.2500 a reference" in bound._repr_html_()
    # At 12 for both ways it is better to compute them again.
    dear = two_tier_bound(loop(), 3, 2, TierCosts(cpu_hit=1, miss=10, demotion=11))
    assert (dear.counts["block"].cpu, dear.num_demotions, dear.cost) == (0, 0, 70)


def test_the_bound_says_where_it_does_not_hold() -> None:
    with pytest.raises(
        ConfigError,
        match=r"gpu_blocks must be at least the longest request of trace story, 3 blocks, .* not 2",
    ):
        two_tier_bound(loop(), 2, 9)


@pytest.mark.parametrize(
    ("costs", "problem"),
    [
        ({"miss": -1.0}, "cost of miss must be a finite number of 0 or more, not -1.0"),
        ({"demotion": float("nan")}, "cost of demotion must be a finite number"),
        ({"cpu_hit": 2.0}, r"cost of cpu_hit must be at most that of a miss \(1.0\), not 2.0"),
    ],
)
def test_costs_that_make_no_sense_are_refused(costs: dict[str, float], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        TierCosts(**costs)


def test_each_miss_has_its_cause() -> None:
    # abc, de, abc, and again a with 2 tokens of f. In 4 blocks LRU hits a and b of the second abc;
    # so does the optimum, so c is the capacity's. Then a. Cold are a b c d e; f is a cold tail.
    trace = trace_of(("abc", 12), ("de", 8), ("abc", 12), ("af", 6))
    causes = miss_attribution(trace, "lru", 4)
    assert causes.counts["block"] == {
        "hit": 3, "policy": 0, "capacity": 1, "cold": 5, "partial_tail": 1,
    }  # fmt: skip
    assert causes.counts["prefix_token"] == {
        "hit": 12, "policy": 0, "capacity": 4, "cold": 20, "partial_tail": 2,
    }  # fmt: skip
    # Usable: the last full block of abc, de and abc never is, since one token must be computed.
    # So hits a b, a; c is none; cold are a b d; the rest of the 38 tokens can never be used.
    assert causes.counts["prefix_token_usable"] == {
        "hit": 12, "policy": 0, "capacity": 0, "cold": 12, "partial_tail": 14,
    }  # fmt: skip
    assert causes.frame["share"].sum() == pytest.approx(4)  # four definitions
    assert json.dumps(causes.to_dict())
    assert "30.00%" in causes._repr_html_()  # 3 of 10


def test_a_miss_that_the_optimum_would_not_have_is_the_policys() -> None:
    # In 2 blocks: a, b, c, a. LRU has c and b left; the optimum drops b for c and keeps a.
    trace = trace_of(("a", 4), ("b", 4), ("c", 4), ("a", 4))
    assert miss_attribution(trace, "lru", 2).counts["block"]["policy"] == 1
    assert miss_attribution(trace, "belady", 2).counts["block"]["hit"] == 1
