"""What sending costs, in exact nanoseconds: see `split_stage` for what things take.

With L layers of compute time c and transfer time t each, sending layer by layer exposes t where
t <= c and L * t - (L - 1) * c otherwise; all at the end, L * t.
"""

from __future__ import annotations

import pytest

from kvsim.analysis.split_records import split_record_of
from kvsim.config import LinkConfig, SchedulerConfig, SendMode, SplitConfig
from kvsim.core.ops import Completion, Forward, Gate
from kvsim.cost import LinearCost
from tests.unit.core.split_stage import DECODE, PREFILL, Cluster
from tests.unit.core.stage import ask

AT_END = SplitConfig(send=SendMode.AT_END)


def sent(
    *, block_bytes: int, num_layers: int = 5, latency_ns: int = 0, split: SplitConfig | None = None
) -> Cluster:
    """Return a run of one prompt of 5 blocks, 20 ns of compute, on a link of one byte a ns."""
    cost = LinearCost(
        step_ns=0, token_ns=1, attention_ns=0, block_bytes=block_bytes, num_layers=num_layers
    )
    link = LinkConfig(bytes_per_second=10**9, latency_ns=latency_ns, overhead_ns=0)
    return Cluster([ask(0, range(20), num_output_tokens=3)], split=split).play(cost=cost, link=link)


@pytest.mark.parametrize(
    ("block_bytes", "exposed_ns"),
    [
        # 5 layers of 4 ns. 5 blocks of b bytes: each layer takes b ns to send.
        (1, 1),  # t = 1 <= 4: the last layer
        (4, 4),  # t = c
        (5, 5 * 5 - 4 * 4),  # 9
        (10, 5 * 10 - 4 * 4),  # 34
        (40, 5 * 40 - 4 * 4),  # 184
    ],
)
def test_sending_layer_by_layer_exposes_the_last_layer_or_what_outlasts_compute(
    block_bytes: int, exposed_ns: int
) -> None:
    cluster = sent(block_bytes=block_bytes)
    handoff = cluster.ended[0]
    assert (handoff.queue_ns, handoff.prefill_ns) == (0, 20)
    assert handoff.exposed_ns == exposed_ns
    # The send is under way from the end of the first layer, at 4.
    assert handoff.hidden_ns == 16
    assert handoff.first_token_at == 20
    assert handoff.decode_started_at == 20 + exposed_ns


@pytest.mark.parametrize(("block_bytes", "exposed_ns"), [(1, 1 + 7), (10, 34 + 7)])
def test_the_latency_of_the_link_is_exposed_once(block_bytes: int, exposed_ns: int) -> None:
    assert sent(block_bytes=block_bytes, latency_ns=7).ended[0].exposed_ns == exposed_ns


@pytest.mark.parametrize("num_layers", [1, 2, 4, 10])
def test_more_layers_hide_more(num_layers: int) -> None:
    # 20 ns of compute and 20 of sending: t = c = 20 / L.
    handoff = sent(block_bytes=4, num_layers=num_layers).ended[0]
    assert handoff.exposed_ns == 20 // num_layers


@pytest.mark.parametrize("block_bytes", [1, 4, 10])
def test_sending_at_the_end_exposes_all_of_it(block_bytes: int) -> None:
    cluster = sent(block_bytes=block_bytes, split=AT_END)
    handoff = cluster.ended[0]
    assert handoff.exposed_ns == 5 * block_bytes
    assert handoff.hidden_ns == 0
    assert [send.gate for send in cluster.sends] == [Gate.OP]


def test_of_a_chunked_prompt_only_the_last_chunk_is_exposed() -> None:
    # Chunks of 8, 8 and 4 tokens end at 8, 16 and 20: 2, 2 and 1 blocks of 3 bytes. The sends of
    # 6 ns, behind layers at 1.6 and 9.6, end at most 6 * 1/5 after their chunks or 6 after their
    # first layers: 9.2 and 17.2. The last begins at 16.8, at once; one layer of 0.8 ns computes
    # slower than its 0.6 ns are sent, so it ends 0.6 after 20, in whole nanoseconds 1.
    cost = LinearCost(step_ns=0, token_ns=1, attention_ns=0, block_bytes=3, num_layers=5)
    scheduler = SchedulerConfig(token_budget=8, max_running=4, decode_reserve_blocks=0)
    cluster = Cluster([ask(0, range(20), num_output_tokens=2)], scheduler=scheduler).play(cost=cost)
    assert [len(send.source_ids) for send in cluster.sends] == [2, 2, 1]
    assert cluster.ended[0].exposed_ns == 1


def test_a_slow_link_queues_the_chunks_of_a_prompt() -> None:
    # 100 ns a block. The sends of 2, 2 and 1 blocks enter the link at 2 (1.6, rounded up), 10 and
    # 17 and share it until all 500 ns of sending have passed: 502.
    cost = LinearCost(step_ns=0, token_ns=1, attention_ns=0, block_bytes=100, num_layers=5)
    scheduler = SchedulerConfig(token_budget=8, max_running=4, decode_reserve_blocks=0)
    cluster = Cluster([ask(0, range(20), num_output_tokens=2)], scheduler=scheduler).play(cost=cost)
    record = split_record_of(cluster.ended[0])
    assert record.arrived_at == 502
    assert record.exposed_ns == 482
    assert record.hidden_ns == 18


def test_two_requests_of_one_batch_share_the_link() -> None:
    # 8 tokens each: one Forward of 16 ns, layers of 3.2. Each sends 2 blocks of 10 ns:
    # alone 4 ns a layer, together 8. Both enter at 4 (3.2, rounded up) and have half of the link:
    # 40 ns for both. L * t - (L - 1) * c = 5 * 8 - 4 * 3.2 = 27.2 after 16, in whole ns 28.
    cluster = Cluster(
        [
            ask(0, range(8), num_output_tokens=2),
            ask(1, range(20, 28), num_output_tokens=2),
        ]
    ).play()
    assert [each.exposed_ns for each in cluster.ended.values()] == [28, 28]


def test_requests_to_two_decode_instances_have_a_link_each() -> None:
    # As above, but each link carries 4 ns a layer: 5 * 4 - 4 * 3.2 = 7.2 after 16.
    cluster = Cluster(
        [
            ask(0, range(8), num_output_tokens=2),
            ask(1, range(20, 28), num_output_tokens=2),
        ],
        roles=(PREFILL, DECODE, DECODE),
    ).play()
    assert [each.decode.number for each in cluster.ended.values() if each.decode] == [1, 2]
    assert [each.exposed_ns for each in cluster.ended.values()] == [8, 8]


def test_what_prefill_has_cached_is_sent_before_it_computes() -> None:
    # Request 0 leaves 4 blocks on both instances. 1 shares them, and is sent to another decode
    # instance, which has nothing: the 4 cached blocks go at 100, when it starts, the 5th behind
    # its layers (4 ns of compute).
    cluster = Cluster(
        [
            ask(0, range(16), num_output_tokens=200),
            ask(1, range(20), num_output_tokens=2, at=100),
        ],
        roles=(PREFILL, DECODE, DECODE),
        gpu=80,
    ).play()
    first, second, third = cluster.sends
    assert [len(send.source_ids) for send in (first, second, third)] == [4, 4, 1]
    assert second.after == ()
    started = {a.op_id: a.started_at for a in cluster.answers if isinstance(a, Completion)}
    assert started[second.op_id] == 100
    # Both share the link from 101 on: 50 bytes in all, from 100 on.
    assert cluster.ended[1].arrived_at == 150
    assert cluster.ended[1].prefill_ns == 4


def test_no_layer_is_sent_before_it_is_computed() -> None:
    cluster = sent(block_bytes=10)
    layers = {a.op_id: a.layers_finished_at for a in cluster.answers if isinstance(a, Completion)}
    (send,) = cluster.sends
    (prefill,) = (op for op in cluster.forwards if isinstance(op, Forward) and op.prefill)
    # Computed at 4, 8, 12, 16, 20; each layer takes 10 to send.
    assert layers[prefill.op_id] == (4, 8, 12, 16, 20)
    assert layers[send.op_id] == (14, 24, 34, 44, 54)
