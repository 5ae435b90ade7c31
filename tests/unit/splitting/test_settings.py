"""What a split run can be told, and what it says of nonsense."""

from __future__ import annotations

from typing import Any

import pytest

import kvsim
from kvsim.errors import UserError
from kvsim.presets import find_hardware
from kvsim.splitting import SplitSettings
from kvsim.topology import NETWORKS, NetworkConfig
from tests.unit.stories import three_prompts


def test_a_number_is_the_speed_of_a_card_in_gigabytes() -> None:
    network = SplitSettings(link="12.5").network
    assert network.bytes_per_second == 12_500_000_000
    assert SplitSettings(link=12.5).network == network
    assert network.latency_ns == NETWORKS["ib-400g"].latency_ns


def test_a_network_of_ones_own_is_taken_as_it_is() -> None:
    network = NetworkConfig(name="mine", bytes_per_second=1, latency_ns=0, overhead_ns=0)
    assert SplitSettings(link=network).network is network


def test_one_size_is_for_both_sides() -> None:
    assert SplitSettings(tp="4:2").sizes == (4, 2)
    assert SplitSettings(tp=2).sizes == (2, 2)
    assert SplitSettings().sizes == (None, None)


def test_a_machine_with_fewer_gpus_says_so() -> None:
    machine = find_hardware("h200-8x")
    assert SplitSettings().machine(machine, None) is machine
    smaller = SplitSettings().machine(machine, 2)
    assert (smaller.num_gpus, smaller.name) == (2, "h200-8x, 2 GPUs")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"prefill": 0}, "prefill must be an integer of at least 1, not 0"),
        ({"decode": "two"}, "decode must be an integer of at least 1, not 'two'"),
        ({"tp": "4:2:1"}, "tp must be two sizes, as '4:2' for prefill and decode, or one, not"),
        ({"tp": "four"}, "tp must be two sizes"),
        ({"tp": "0:2"}, "tp must be an integer of at least 1, not 0"),
        ({"tp": "4:3"}, "cannot be divided among 3 GPUs"),
        ({"link": "ib-400"}, "unknown network 'ib-400'. Did you mean 'ib-400g'?"),
        ({"link": 0}, "link must be the name of a network or GB/s a card, above 0"),
        ({"link": "nan"}, "not 'nan'"),
        ({"send": "later"}, "unknown send 'later'. Known: at_end, layerwise."),
        ({"on_send_failure": "cry"}, "unknown on_send_failure 'cry'"),
        ({"routing": "random"}, "unknown routing 'random'"),
        ({"send_timeout_ns": 0}, "send_timeout_ns must be an integer of at least 1, not 0"),
        ({"max_receiving": -1}, "max_receiving must be an integer of at least 1, not -1"),
        ({"backend": "paddle"}, "backend 'paddle' knows one instance only: it cannot split a run"),
        ({"instant": True}, "instant means without time"),
        ({"policy": "belady", "decode": 2}, "knows the future of one instance, not of several"),
        ({"gpu_block": 3}, "unknown setting 'gpu_block'. Did you mean 'gpu_blocks'?"),
        ({"gpu_blocks": 1}, "no request of story finished: 3 refused"),
    ],
)
def test_what_cannot_be_gets_one_line(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as raised:
        kvsim.split(three_prompts(), **settings)
    message = str(raised.value)
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("field", "value", "least"),
    [
        ("bytes_per_second", 0, 1),
        ("latency_ns", -1, 0),
        ("overhead_ns", 0.5, 0),
        ("ranks_per_nic", True, 1),
        ("switch_bytes_per_second", 0, 1),
    ],
)
def test_an_impossible_network_is_refused(field: str, value: object, least: int) -> None:
    known: dict[str, Any] = {"bytes_per_second": 1, "latency_ns": 0, "overhead_ns": 0}
    with pytest.raises(UserError, match=rf"{field} of network 'x' .* at least {least}, not"):
        NetworkConfig(name="x", **(known | {field: value}))
