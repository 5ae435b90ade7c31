"""Links: fair sharing, latency, duplex, and when layers pass; to the nanosecond."""

from __future__ import annotations

import pytest

from kvsim.backends.sim.links import Link
from kvsim.config import LinkConfig
from kvsim.errors import ConfigError
from tests.unit.backends.sim.commands import (
    CPU,
    GPU,
    ONE_BYTE_A_NS,
    REMOTE_GPU,
    backend,
    cancel,
    rows,
    transfer,
)


def test_one_flow_has_the_whole_link() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100))
    assert rows(simulator) == [(0, "done", 0, 100)]


def test_two_flows_share_fairly() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100))
    simulator.submit(transfer(1, 200))
    # Half a byte a ns each until 0 has passed at 200; then 1 has 100 bytes left, alone.
    assert rows(simulator) == [(0, "done", 0, 200), (1, "done", 0, 300)]


def test_three_equal_flows_end_together_ordered_by_id() -> None:
    simulator = backend()
    for op_id in (2, 0, 1):
        simulator.submit(transfer(op_id, 100))
    answers = simulator.wait(None)
    assert [(answer.op_id, answer.finished_at) for answer in answers] == [
        (0, 300),
        (1, 300),
        (2, 300),
    ]


def test_a_flow_that_comes_later_takes_its_share_from_then_on() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100))
    assert simulator.wait(40) == ()
    simulator.submit(transfer(1, 100))
    # 0 has 60 left, at half speed: 40 + 120. Then 1 has had 60 and passes the other 40 alone.
    assert rows(simulator) == [(0, "done", 0, 160), (1, "done", 40, 200)]


def test_a_cancelled_flow_leaves_its_share_to_the_others() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100))
    simulator.submit(transfer(1, 100))
    assert simulator.wait(50) == ()
    simulator.submit(cancel(0))
    # 1 has passed 25 of 100 bytes.
    assert rows(simulator) == [(0, "cancelled", 0, 50), (1, "done", 0, 125)]


def test_a_flow_waits_for_latency_and_overhead_before_it_takes_bandwidth() -> None:
    simulator = backend(links=LinkConfig(bytes_per_second=10**9, latency_ns=7, overhead_ns=3))
    simulator.submit(transfer(0, 30))
    assert simulator.wait(20) == ()
    simulator.submit(transfer(1, 30))
    # 0 flows from 10 and is alone until 30, where it has 10 left: 50. 1 flows from 30, has passed
    # 10 at 50, and passes the other 20 alone.
    assert rows(simulator) == [(0, "done", 0, 50), (1, "done", 20, 70)]


def test_both_directions_of_a_full_duplex_link_have_the_whole_bandwidth() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100, source=GPU, target=CPU))
    simulator.submit(transfer(1, 100, source=CPU, target=GPU))
    assert rows(simulator) == [(0, "done", 0, 100), (1, "done", 0, 100)]


def test_both_directions_of_a_half_duplex_link_share() -> None:
    half = LinkConfig(bytes_per_second=10**9, latency_ns=0, overhead_ns=0, full_duplex=False)
    simulator = backend(links=half)
    simulator.submit(transfer(0, 100, source=GPU, target=CPU))
    simulator.submit(transfer(1, 100, source=CPU, target=GPU))
    assert rows(simulator) == [(0, "done", 0, 200), (1, "done", 0, 200)]


def test_each_pair_of_tiers_and_of_instances_has_its_own_link() -> None:
    slow = LinkConfig(bytes_per_second=5 * 10**8, latency_ns=0, overhead_ns=0)
    simulator = backend(links={(0, 1): ONE_BYTE_A_NS, (0, 0): slow})
    simulator.submit(transfer(0, 100, source=GPU, target=CPU))
    simulator.submit(transfer(1, 100, source=CPU, target=GPU))  # named one way: serves both
    simulator.submit(transfer(2, 100, source=GPU, target=REMOTE_GPU))
    simulator.submit(transfer(3, 50, source=REMOTE_GPU, target=GPU))
    assert rows(simulator) == [
        (0, "done", 0, 100),
        (1, "done", 0, 100),
        (3, "done", 0, 100),
        (2, "done", 0, 200),
    ]


def test_a_link_that_is_not_configured_is_named() -> None:
    simulator = backend(links={(0, 1): ONE_BYTE_A_NS})
    with pytest.raises(ConfigError, match=r"no link from tier 0 to tier 0; .* for \[\(0, 1\)\]"):
        simulator.submit(transfer(0, 1, source=GPU, target=REMOTE_GPU))


def test_the_two_directions_of_a_half_duplex_link_must_agree() -> None:
    half = LinkConfig(bytes_per_second=10**9, latency_ns=0, overhead_ns=0, full_duplex=False)
    with pytest.raises(ConfigError, match="half duplex, so both directions"):
        backend(links={(0, 1): half, (1, 0): ONE_BYTE_A_NS})


def test_a_transfer_of_no_bytes_takes_the_latency() -> None:
    simulator = backend(links=LinkConfig(bytes_per_second=10**9, latency_ns=7, overhead_ns=3))
    simulator.submit(transfer(0, 0))
    assert rows(simulator) == [(0, "done", 0, 10)]


def test_a_transfer_ends_at_the_next_whole_nanosecond() -> None:
    simulator = backend(links=LinkConfig(bytes_per_second=3 * 10**9, latency_ns=0, overhead_ns=0))
    simulator.submit(transfer(0, 100))  # 33.3 ns
    assert rows(simulator) == [(0, "done", 0, 34)]


def test_a_layer_has_passed_when_its_share_of_the_bytes_has() -> None:
    simulator = backend(record_layers=True)
    simulator.submit(transfer(0, 102))
    (answer,) = simulator.wait(None)
    # Quarters of 102 bytes: 25.5, 51, 76.5, 102, rounded up.
    assert answer.layers_finished_at == (26, 51, 77, 102)  # type: ignore[union-attr]


def test_layers_pass_more_slowly_while_the_link_is_shared() -> None:
    simulator = backend(record_layers=True)
    simulator.submit(transfer(0, 100))
    assert simulator.wait(40) == ()
    simulator.submit(transfer(1, 10))
    (short,) = simulator.wait(None)
    (long,) = simulator.wait(None)
    # 0 alone until 40; shared until 60, where 1 has passed its 10 bytes and 0 has passed 50;
    # alone again. 25 bytes at 25; 50 at 60; 75 at 85; 100 at 110.
    assert long.layers_finished_at == (25, 60, 85, 110)  # type: ignore[union-attr]
    # 2.5, 5, 7.5 and 10 bytes at half speed from 40.
    assert short.layers_finished_at == (45, 50, 55, 60)  # type: ignore[union-attr]


def test_sixteen_flows_share_without_a_remainder() -> None:
    simulator = backend()
    for op_id in range(16):
        simulator.submit(transfer(op_id, op_id + 1))
    # Flow k (from 0) leaves when 16 - j flows share for j = 0..k, a byte each: 16, 31, 45, ...
    expected, at = [], 0
    for op_id in range(16):
        at += 16 - op_id
        expected.append((op_id, "done", 0, at))
    assert rows(simulator) == expected


def test_thirds_of_a_byte_are_not_lost() -> None:
    simulator = backend()
    for op_id in (0, 1, 2):
        simulator.submit(transfer(op_id, 5))
    simulator.wait(1)
    for op_id in (3, 4, 5):
        simulator.submit(transfer(op_id, 10))
    # 0 to 2 have passed a third of a byte at 1; six share until their other 4 2/3 have, 28 ns
    # later. Then 3 to 5 have passed 4 2/3 of 10 and share for 3 * 5 1/3 = 16 ns.
    assert [finish for _, _, _, finish in rows(simulator)] == [29, 29, 29, 45, 45, 45]


def test_a_cancelled_transfer_leaves_nothing_to_wait_for() -> None:
    simulator = backend()
    simulator.submit(transfer(0, 100))
    simulator.wait(10)
    simulator.submit(cancel(0))
    assert rows(simulator) == [(0, "cancelled", 0, 10)]
    assert simulator.now() == 10


def test_a_link_that_is_never_idle_forgets_what_no_flow_reaches_back_to() -> None:
    link = Link(ONE_BYTE_A_NS)
    previous = link.enter(0, 10**9, 0)
    for at in range(1, 20_000):
        flow = link.enter(at, 10**9, at)
        link.leave(previous, at)
        previous = flow
        if at == 12_000:
            witness = link.enter(-1, 8_000, at)
    link.leave(previous, 20_000)
    assert len(link._history_at) < 10_000  # noqa: SLF001
    # The witness had half of the link from 12,000 to 20,000, and has all of it since.
    assert link.next_end_at() == 24_000
    assert link.finish(24_000) == [witness]
    assert link.curve(witness).layer_times(4) == (16_000, 20_000, 22_000, 24_000)
