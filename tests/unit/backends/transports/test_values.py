"""Configurations, descriptions, tags, the table: what is refused, and how it is said."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.transports import (
    TRANSPORTS,
    TransportEntry,
    find_transport,
    open_transport,
)
from kvsim.backends.transports.description import decode_description, encode_description
from kvsim.backends.transports.ports import (
    EndpointConfig,
    PeerId,
    TransportError,
)
from kvsim.backends.transports.tags import LayerTag, decode_tag, encode_tag
from kvsim.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from typing import Any

CONFIG = EndpointConfig(peer_id=PeerId(2, 3), key=bytes(32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": b"short"}, r"the key of a run has 32 bytes, not 5"),
        ({"peer_id": PeerId(0, -1)}, "instance and rank count from 0, not rank -1 of instance 0"),
        ({"connect_timeout_ns": 0}, "connect_timeout_ns must be positive, not 0"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CONFIG, **change)


def test_a_key_is_not_shown() -> None:
    assert "key" not in repr(replace(CONFIG, key=b"k" * 32))


def test_a_description_says_who_and_how_much() -> None:
    found = decode_description(
        "ipc", PeerId(2, 3), encode_description("ipc", PeerId(2, 3), 640, b"there")
    )
    assert (found.num_bytes, found.address) == (640, b"there")


@pytest.mark.parametrize(
    ("transport", "peer", "message"),
    [
        ("tcp", PeerId(2, 3), "is of transport 'ipc', not 'tcp'"),
        ("ipc", PeerId(3, 2), "rank 2 of instance 3 is that of rank 3 of instance 2"),
    ],
)
def test_a_description_of_another_is_refused(transport: str, peer: PeerId, message: str) -> None:
    description = encode_description("ipc", PeerId(2, 3), 640, b"there")
    with pytest.raises(ConfigError, match=message):
        decode_description(transport, peer, description)


@given(st.binary(max_size=300))
def test_random_bytes_are_no_description(description: bytes) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        decode_description("ipc", PeerId(2, 3), description)


@pytest.mark.parametrize(
    "body",
    [b"\x91" * 30_000, msgspec.msgpack.encode(["ipc", 2, 3, -1, b""]), b"\xdd\xff\xff\xff\xff"],
    ids=["nested", "negative", "a list that is not there"],
)
def test_hostile_bytes_are_no_description(body: bytes) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        decode_description("ipc", PeerId(2, 3), body)


COUNTS = st.integers(0, 2**62)


@given(COUNTS, COUNTS, st.none() | COUNTS, COUNTS)
def test_a_tag_comes_back_as_it_was(
    request: int, attempt: int, layer: int | None, rank: int
) -> None:
    tag = LayerTag(request, attempt, layer, rank)
    assert decode_tag(encode_tag(tag)) == tag
    assert len(encode_tag(tag)) <= 37  # 1 for the list, and at most 9 for each number


@pytest.mark.parametrize(
    "tag", [b"", b"\x94\x01\x02\x03", b"\x95\x01\x02\x03\x04\x05", b"\x91" * 200, b"\x00" * 300]
)
def test_what_is_no_tag_is_an_error(tag: bytes) -> None:
    with pytest.raises(TransportError, match="a tag"):
        decode_tag(tag)


def test_the_table_names_what_comes_with_kvsim() -> None:
    assert list(TRANSPORTS) == ["ipc", "tcp", "rdma"]
    with pytest.raises(UnknownNameError, match="Did you mean 'tcp'"):
        find_transport("tpc")


def test_what_is_missing_is_named_with_the_way_to_get_it() -> None:
    entry = TransportEntry(
        opener="nowhere:at_all",
        needs=(("zmq",), ("not_here_12", "not_here_13")),
        remedy="pip install it",
    )
    assert entry.find_missing() == (
        "it needs not_here_12 or not_here_13, which is not installed: pip install it"
    )


@pytest.mark.parametrize("name", ["no.such:opener", "kvsim.backends.transports.ipc:nothing"])
def test_an_opener_that_is_not_there_is_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match=f"transport '{name}' cannot be imported"):
        open_transport(name, CONFIG)
