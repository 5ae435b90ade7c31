"""How tiers work together, as a replay is told and as its result tells."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import kvsim
from kvsim.backends import open_backend
from kvsim.backends.setup import BackendSetup
from kvsim.config import FaultConfig, LinkConfig, Preempt, TierInclusion, WritePolicy
from kvsim.core.ops import Place, Transfer
from kvsim.cost import LinearCost
from kvsim.errors import UserError
from kvsim.replay_config import ReplayConfig

if TYPE_CHECKING:
    from kvsim.core.ops import Answer

SMALL = {"limit": 300, "gpu_blocks": 250, "cpu_blocks": 120}


def replay(**settings: Any) -> kvsim.ReplayResult:  # noqa: ANN401  (settings are of any type)
    return kvsim.replay("sample:chat", **{**SMALL, **settings})


def test_the_settings_reach_the_part_they_are_about() -> None:
    config = ReplayConfig(
        gpu_blocks=4,
        cpu_blocks=5,
        disk_blocks=6,
        tier_inclusion="inclusive",
        write_policy="selective",
        write_through_hits=3,
        share_in_flight=False,
        preempt="swap",
        disk_bytes_per_second=7,
        disk_latency_ns=8,
    )
    cache = config.cache(block_size=1)
    assert cache.tier_blocks == (4, 5, 6)
    assert (cache.tier_inclusion, cache.write_policy, cache.hits_to_write_through) == (
        TierInclusion.INCLUSIVE,
        WritePolicy.SELECTIVE,
        3,
    )
    assert not cache.share_in_flight
    assert config.scheduler().preempt is Preempt.SWAP
    assert (config.disk_link.bytes_per_second, config.disk_link.latency_ns) == (7, 8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cpu_blocks": 0, "disk_blocks": 9}, "disk_blocks need a CPU tier"),
        ({"cpu_blocks": 0, "disk_gib": 9.0}, "disk_blocks need a CPU tier"),
        ({"disk_blocks": 9, "disk_gib": 1.0}, "disk_blocks and disk_gib exclude each other"),
        ({"disk_blocks": -1}, "disk_blocks must be an integer of at least 0, not -1"),
        ({"disk_latency_ns": 5}, "disk_latency_ns is for a third tier: give disk_blocks"),
        ({"disk_bytes_per_second": 0}, "disk_bytes_per_second must be an integer of at least 1"),
        ({"cpu_blocks": 0, "preempt": "swap"}, "preempt 'swap' needs a CPU tier"),
        ({"preempt": "wap"}, "unknown preempt 'wap'"),
        ({"tier_inclusion": "both"}, "unknown tier_inclusion 'both'"),
        ({"write_policy": "throgh"}, "Did you mean 'through'?"),
        ({"write_policy": "through"}, "'exclusive' forbids that: make it 'inclusive'"),
        ({"write_through_hits": 2}, "write_through_hits is for write_policy 'selective'"),
        ({"share_in_flight": "no"}, "share_in_flight must be true or false, not 'no'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        replay(**settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_third_tier_has_figures_beside_the_others() -> None:
    result = replay(disk_blocks=2000)
    summary = result.summary()
    assert list(result.tiers) == ["gpu", "cpu", "disk"]
    assert result.tiers["disk"]["capacity_blocks"] == 2000
    by_tier = [tier["hits"]["block"]["hits"] for tier in result.tiers.values()]
    assert min(by_tier) > 0
    assert sum(by_tier) == result.hits["block"]["hits"]
    assert result.hit_heads == ("hits", "GPU", "CPU", "disk", "of", "rate")
    assert all(len(row) == len(result.hit_heads) for row in result.hit_rows())
    frame = result.requests
    assert int(frame["num_disk_hit_blocks"].sum()) == by_tier[2]
    hit_tokens = int(frame["num_hit_tokens"].sum())
    assert hit_tokens == result.hits["prefix_token"]["hits"]
    assert {*result.transfers["source"]} | {*result.transfers["target"]} == {"gpu", "cpu", "disk"}
    assert set(result.swaps or ()) == {"swap_in", "swap_out", "disk_in", "disk_out"}
    assert "2,000 disk blocks" in dict(result.fact_rows())["capacity"]
    assert result.plot_hits().get_legend_handles_labels()[1][:3] == ["GPU", "CPU", "disk"]
    assert summary["tiers"] == result.tiers


def test_without_a_third_tier_nothing_names_it() -> None:
    result = replay()
    assert list(result.tiers) == ["gpu", "cpu"]
    assert result.hit_heads == ("hits", "GPU", "CPU", "of", "rate")
    assert set(result.swaps or ()) == {"swap_in", "swap_out"}


def test_blocks_in_flight_are_hits_or_duplicates() -> None:
    # The first ten requests of the sample, all at once: they are computed in one batch, so what
    # they have in common is in flight for all but the first.
    sample = kvsim.sample()
    burst = replace(
        sample, requests=tuple(replace(each, arrived_at=0) for each in sample.requests[:10])
    )
    shared, alone = (
        kvsim.replay(burst, gpu_blocks=1000, token_budget=100_000, share_in_flight=shares)
        for shares in (True, False)
    )
    num_in_flight = shared.tiers["gpu"]["in_flight_hit_blocks"]
    assert num_in_flight == alone.num_duplicate_blocks > 0
    assert shared.num_duplicate_blocks == alone.tiers["gpu"]["in_flight_hit_blocks"] == 0
    assert shared.hits["block"]["hits"] - alone.hits["block"]["hits"] == num_in_flight


@pytest.mark.parametrize(
    ("source", "target", "took_ns"), [(0, 1, 10), (1, 0, 10), (1, 2, 120), (2, 0, 120)]
)
def test_the_third_tier_has_a_link_of_its_own(source: int, target: int, took_ns: int) -> None:
    # A block of 10 bytes: 10 ns over the host's link; 100 ns of latency and 20 ns over the disk's.
    opened = open_backend(
        "sim",
        BackendSetup(
            requests=(),
            block_size=1,
            tier_blocks=(1, 1, 1),
            cost=LinearCost(step_ns=1, token_ns=1, attention_ns=0, block_bytes=10, num_layers=1),
            host_link=LinkConfig(bytes_per_second=10**9, latency_ns=0, overhead_ns=0),
            disk_link=LinkConfig(bytes_per_second=10**9 // 2, latency_ns=100, overhead_ns=0),
            num_ranks=1,
            faults=FaultConfig(),
            seed=0,
        ),
    )
    opened.backend.submit(
        Transfer(
            op_id=1,
            source=Place(instance=0, tier=source),
            target=Place(instance=0, tier=target),
            source_ids=(0,),
            target_ids=(0,),
        )
    )
    answers: list[Answer] = list(opened.backend.wait(None))
    assert [answer.finished_at for answer in answers] == [took_ns]
