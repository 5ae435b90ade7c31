"""Ranks of one instance send to ranks of another, over cards that they share.

A byte takes 1 ns on every card; a token takes 1 ns to compute; there are four layers.
"""

from __future__ import annotations

import pytest

from kvsim.backends.sim import SimBackend
from kvsim.backends.sim.fabric import FabricSetup
from kvsim.config import LinkConfig
from kvsim.core.ops import Completion, Gate, Place, Transfer
from kvsim.core.sharding import KVLayout
from kvsim.cost import LinearCost
from kvsim.topology import NetworkConfig
from tests.unit.backends.sim.commands import (
    CPU,
    GPU,
    ONE_BYTE_A_NS,
    REMOTE_GPU,
    cancel,
    forward,
    rows,
    transfer,
)

THIRD = Place(instance=2, tier=0)


def network(
    *,
    rate: int = 1,
    latency_ns: int = 0,
    overhead_ns: int = 0,
    ranks_per_nic: int = 1,
    switch: int | None = None,
    shares_host_link: bool = False,
) -> NetworkConfig:
    return NetworkConfig(
        name="test",
        bytes_per_second=rate * 10**9,
        latency_ns=latency_ns,
        overhead_ns=overhead_ns,
        ranks_per_nic=ranks_per_nic,
        switch_bytes_per_second=None if switch is None else switch * 10**9,
        shares_host_link=shares_host_link,
    )


def send(
    op_id: int,
    source: Place,
    target: Place,
    num_blocks: int = 10,
    *,
    after: tuple[int, ...] = (),
    gate: Gate = Gate.OP,
) -> Transfer:
    return transfer(op_id, num_blocks, source=source, target=target, after=after, gate=gate)


def cluster(
    config: NetworkConfig, *ranks: int, host_link: LinkConfig = ONE_BYTE_A_NS
) -> SimBackend:
    """Return a simulator of one instance for each number of ranks, of a model with 4 heads.

    A block has 4 bytes a rank divided by its ranks: 4, 2 or 1 bytes on 1, 2 or 4 ranks.
    """
    return SimBackend(
        [LinearCost(token_ns=1, num_layers=4, block_bytes=4 // n) for n in ranks],
        links=ONE_BYTE_A_NS,
        fabric=FabricSetup(
            network=config,
            layouts={
                i: KVLayout(num_ranks=n, num_kv_heads=4, num_layers=4) for i, n in enumerate(ranks)
            },
            host_links=dict.fromkeys(range(len(ranks)), host_link),
        ),
    )


def test_rank_sends_to_rank_side_by_side() -> None:
    # 10 blocks of 2 bytes on each of two ranks, each over a card of its own.
    simulator = cluster(network(), 2, 2)
    simulator.submit(send(0, GPU, REMOTE_GPU))
    assert rows(simulator) == [(0, "done", 0, 20)]
    assert [(hop.name, hop.passed_bytes) for hop in simulator.wires] == [
        ("out of instance 0, card 0", 20),
        ("into instance 1, card 0", 20),
        ("out of instance 0, card 1", 20),
        ("into instance 1, card 1", 20),
    ]


def test_ranks_behind_one_card_share_it() -> None:
    simulator = cluster(network(ranks_per_nic=2), 2, 2)
    simulator.submit(send(0, GPU, REMOTE_GPU))
    assert rows(simulator) == [(0, "done", 0, 40)]


def test_four_ranks_that_send_to_one_wait_for_its_card() -> None:
    # 4 x 10 bytes out of four cards, 40 bytes into one.
    simulator = cluster(network(), 4, 1)
    simulator.submit(send(0, GPU, REMOTE_GPU))
    assert rows(simulator) == [(0, "done", 0, 40)]


def test_one_rank_sends_each_of_four_its_heads() -> None:
    simulator = cluster(network(), 1, 4)
    simulator.submit(send(0, GPU, REMOTE_GPU))
    assert rows(simulator) == [(0, "done", 0, 40)]
    assert sum(hop.passed_bytes for hop in simulator.wires) == 40 + 4 * 10


def test_latency_and_overhead_come_once() -> None:
    simulator = cluster(network(latency_ns=5, overhead_ns=7), 1, 1)
    simulator.submit(send(0, GPU, REMOTE_GPU))
    assert rows(simulator) == [(0, "done", 0, 52)]


def test_two_prefill_instances_share_the_card_of_one_decode_instance() -> None:
    simulator = cluster(network(), 1, 1, 1)
    simulator.submit(send(0, GPU, THIRD))
    simulator.submit(send(1, REMOTE_GPU, THIRD))
    assert rows(simulator) == [(0, "done", 0, 80), (1, "done", 0, 80)]


def test_a_switch_limits_all_pairs_together() -> None:
    # Two pairs with cards of their own, 40 bytes each, through a switch that passes one byte a ns.
    simulator = cluster(network(switch=1), 1, 1, 1, 1)
    simulator.submit(send(0, Place(instance=0, tier=0), Place(instance=1, tier=0)))
    simulator.submit(send(1, Place(instance=2, tier=0), Place(instance=3, tier=0)))
    assert rows(simulator) == [(0, "done", 0, 80), (1, "done", 0, 80)]


def test_sends_compete_with_swaps_where_they_share_the_host_link() -> None:
    # 40 bytes out to the other instance and 40 bytes down to host memory over the same lanes.
    simulator = cluster(network(shares_host_link=True), 1, 1)
    simulator.submit(send(0, GPU, REMOTE_GPU))
    simulator.submit(send(1, GPU, CPU))
    assert rows(simulator) == [(0, "done", 0, 80), (1, "done", 0, 80)]


def test_copies_up_do_not_hinder_sends_over_a_full_duplex_host_link() -> None:
    simulator = cluster(network(shares_host_link=True), 1, 1)
    simulator.submit(send(0, GPU, REMOTE_GPU))
    simulator.submit(send(1, CPU, GPU))
    assert rows(simulator) == [(0, "done", 0, 40), (1, "done", 0, 40)]


def test_a_half_duplex_host_link_is_shared_by_both_directions() -> None:
    link = LinkConfig(bytes_per_second=10**9, latency_ns=0, overhead_ns=0, full_duplex=False)
    simulator = cluster(network(shares_host_link=True), 1, 1, host_link=link)
    simulator.submit(send(0, GPU, REMOTE_GPU))
    simulator.submit(send(1, CPU, GPU))
    assert rows(simulator) == [(0, "done", 0, 80), (1, "done", 0, 80)]


def test_swaps_have_the_host_link_to_themselves_otherwise() -> None:
    simulator = cluster(network(), 1, 1)
    simulator.submit(send(0, GPU, REMOTE_GPU))
    simulator.submit(send(1, GPU, CPU))
    assert rows(simulator) == [(0, "done", 0, 40), (1, "done", 0, 40)]


@pytest.mark.parametrize(
    ("num_tokens", "exposed_ns"),
    [
        (80, 10),  # a layer computes in 20 and is sent in 10: only the last is seen
        (40, 10),  # just as fast
        (20, 25),  # computes in 5: 4 * 10 - 3 * 5
    ],
)
def test_a_send_layer_by_layer_hides_behind_the_computation(
    num_tokens: int, exposed_ns: int
) -> None:
    # 4 layers of compute time c and transfer time t: exposed is t if t <= c, else 4 t - 3 c.
    simulator = cluster(network(), 1, 1)
    simulator.submit(forward(0, num_tokens))
    simulator.submit(send(1, GPU, REMOTE_GPU, after=(0,), gate=Gate.LAYER))
    assert rows(simulator) == [
        (0, "done", 0, num_tokens),
        (1, "done", num_tokens // 4, num_tokens + exposed_ns),
    ]


def test_a_send_at_the_end_is_seen_in_full() -> None:
    simulator = cluster(network(), 1, 1)
    simulator.submit(forward(0, 80))
    simulator.submit(send(1, GPU, REMOTE_GPU, after=(0,), gate=Gate.OP))
    assert rows(simulator) == [(0, "done", 0, 80), (1, "done", 80, 120)]


def test_a_send_that_is_cancelled_leaves_the_wires() -> None:
    simulator = cluster(network(), 2, 2)
    simulator.submit(send(0, GPU, REMOTE_GPU, 1000))
    simulator.submit(send(1, GPU, REMOTE_GPU))
    assert simulator.wait(10) == ()
    simulator.submit(cancel(0))
    # By 10 each stream of op 1 has had 5 of its 20 bytes; the rest takes 15 ns alone.
    assert rows(simulator) == [(0, "cancelled", 0, 10), (1, "done", 0, 25)]


def test_layers_are_through_when_they_are_on_every_rank() -> None:
    # 40 bytes into one rank over a card of its own: layers of 10 bytes at 10, 20, 30, 40.
    simulator = SimBackend(
        LinearCost(token_ns=1, num_layers=4, block_bytes=4),
        links=ONE_BYTE_A_NS,
        fabric=FabricSetup(
            network=network(),
            layouts=dict.fromkeys(range(2), KVLayout(num_ranks=1, num_kv_heads=1, num_layers=4)),
            host_links={},
        ),
        record_layers=True,
    )
    simulator.submit(send(0, GPU, REMOTE_GPU))
    (answer,) = simulator.wait(None)
    assert isinstance(answer, Completion)
    assert answer.layers_finished_at == (10, 20, 30, 40)
