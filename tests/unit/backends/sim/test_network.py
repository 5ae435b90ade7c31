"""Streams over several hops share each of them fairly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.sim.links import Link
from kvsim.backends.sim.network import Hop, Network, Stream
from kvsim.config import LinkConfig
from kvsim.errors import MisuseError

BYTE_A_NS = 10**9
"""Bytes a second of a hop that passes one byte a nanosecond."""


def ends(network: Network) -> list[tuple[int, int]]:
    """Run the network dry: (time, op id) of every end."""
    found: list[tuple[int, int]] = []
    while (when := network.next_end_at()) is not None:
        found += [(when, stream.op_id) for stream in network.finish(when)]
    return found


def test_a_stream_alone_is_as_fast_as_its_slowest_hop() -> None:
    network = Network()
    path = [network.add_hop("a", 4 * BYTE_A_NS), network.add_hop("b", 2 * BYTE_A_NS)]
    network.enter(1, path, 100, 0)
    assert ends(network) == [(50, 1)]


def test_two_streams_share_a_hop_and_the_rest_takes_all_of_it() -> None:
    # Half each until 20 of the first are through at 40; the second has 80 left, at full speed.
    network = Network()
    hop = network.add_hop("a", BYTE_A_NS)
    network.enter(1, [hop], 20, 0)
    network.enter(2, [hop], 100, 0)
    assert ends(network) == [(40, 1), (120, 2)]


def test_what_one_stream_cannot_use_another_gets() -> None:
    # Out of one card (4 a ns) to two: the card of stream 1 takes 1, so stream 2 has 3.
    network = Network()
    out = network.add_hop("out", 4 * BYTE_A_NS)
    slow, fast = network.add_hop("slow", BYTE_A_NS), network.add_hop("fast", 10 * BYTE_A_NS)
    network.enter(1, [out, slow], 100, 0)
    network.enter(2, [out, fast], 300, 0)
    assert ends(network) == [(100, 1), (100, 2)]


def test_many_senders_to_one_card_share_what_it_takes_in() -> None:
    network = Network()
    inward = network.add_hop("in", 2 * BYTE_A_NS)
    for op_id in range(4):
        network.enter(op_id, [network.add_hop(f"out {op_id}", 2 * BYTE_A_NS), inward], 50, 0)
    assert ends(network) == [(100, op_id) for op_id in range(4)]


def test_a_stream_that_is_taken_off_leaves_its_share() -> None:
    # Half a byte a ns for 10 ns, then one: 5 + 95 ns more.
    network = Network()
    hop = network.add_hop("a", BYTE_A_NS)
    gone = network.enter(1, [hop], 1000, 0)
    network.enter(2, [hop], 100, 0)
    network.leave(gone, 10)
    network.leave(gone, 11)  # no effect
    assert ends(network) == [(105, 2)]
    assert hop.passed_bytes == 105


def test_a_stream_of_no_bytes_ends_where_it_enters() -> None:
    network = Network()
    network.enter(1, [network.add_hop("a", BYTE_A_NS)], 0, 7)
    assert network.next_end_at() == 7
    assert [stream.op_id for stream in network.finish(7)] == [1]


def test_the_curve_says_when_each_layer_was_through() -> None:
    # Alone for 10 ns, then half for 20 ns: 10, 20 bytes at 10, 30; two layers of 10.
    network = Network()
    hop = network.add_hop("a", BYTE_A_NS)
    first = network.enter(1, [hop], 20, 0)
    network.enter(2, [hop], 100, 10)
    assert network.finish(30) == [first]
    assert first.curve().layer_times(2) == (10, 30)


def test_a_path_that_crosses_a_hop_twice_is_misuse() -> None:
    network = Network()
    hop = network.add_hop("loop", BYTE_A_NS)
    with pytest.raises(MisuseError, match="once, not"):
        network.enter(1, [hop, hop], 1, 0)
    with pytest.raises(MisuseError, match="once, not"):
        network.enter(1, [], 1, 0)


def is_max_min(streams: list[Stream]) -> bool:
    """Whether each stream crosses a full hop on which none is faster than it.

    Rates are rounded down, so a hop counts as full with less than a unit a stream to spare.
    """
    used: dict[Hop, list[Stream]] = {}
    for stream in streams:
        for hop in stream.path:
            used.setdefault(hop, []).append(stream)
    full = {
        hop
        for hop, crossing in used.items()
        if hop.units_per_ns - sum(s.rate for s in crossing) < len(crossing) * len(streams)
    }
    assert all(sum(s.rate for s in on) <= hop.units_per_ns for hop, on in used.items())
    return all(
        any(
            hop in full and all(s.rate <= stream.rate + len(streams) for s in used[hop])
            for hop in stream.path
        )
        for stream in streams
    )


@given(data=st.data())
def test_rates_are_max_min_fair_and_every_byte_arrives(data: st.DataObject) -> None:
    network = Network()
    rates = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=5))
    hops = [network.add_hop(str(i), rate * BYTE_A_NS) for i, rate in enumerate(rates)]
    now = 0
    streams: list[Stream] = []
    sizes: list[int] = []
    for op_id in range(data.draw(st.integers(1, 8))):
        path = data.draw(st.lists(st.sampled_from(hops), min_size=1, max_size=3, unique=True))
        sizes.append(data.draw(st.integers(0, 1000)))
        due = network.next_end_at()
        now += data.draw(st.integers(0, 30))
        while due is not None and due <= now:
            network.finish(due)
            due = network.next_end_at()
        streams.append(network.enter(op_id, path, sizes[-1], now))
        assert is_max_min([stream for stream in streams if stream.is_open])
    ends(network)
    assert not any(stream.is_open or stream.left for stream in streams)
    for hop in hops:
        passed = sum(n for s, n in zip(streams, sizes, strict=True) if hop in s.path)
        assert hop.passed_bytes == passed


@given(
    flows=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 500)), min_size=1, max_size=8),
    rate=st.integers(1, 20),
)
def test_one_hop_is_a_fairly_shared_link(flows: list[tuple[int, int]], rate: int) -> None:
    config = LinkConfig(bytes_per_second=rate * BYTE_A_NS, latency_ns=0, overhead_ns=0)
    link, network = Link(config), Network()
    hop = network.add_hop("a", rate * BYTE_A_NS)
    by_link: dict[int, int] = {}
    by_network: dict[int, int] = {}
    now = 0
    for op_id, (gap_ns, num_bytes) in enumerate([*flows, (10**9, 0)]):
        now += gap_ns
        while (at := link.next_end_at()) is not None and at <= now:
            by_link.update({flow.op_id: at for flow in link.finish(at)})
        while (when := network.next_end_at()) is not None and when <= now:
            by_network.update({stream.op_id: when for stream in network.finish(when)})
        link.enter(op_id, num_bytes, now)
        network.enter(op_id, [hop], num_bytes, now)
    assert by_link == by_network
