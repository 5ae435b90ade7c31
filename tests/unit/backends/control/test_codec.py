"""Only the declared messages are read; whatever else comes is an error of one kind."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.control import ChannelError
from kvsim.backends.control.codec import joined
from tests.unit.backends.control.messages import Count, Note, codec

DEEP = b"\x91" * 100_000  # an array in an array in an array


@pytest.mark.parametrize("num", [0, 1, 15, 16, 65_535, 65_536])
def test_messages_come_out_as_they_went_in(num: int) -> None:
    messages: list[Note | Count] = [Count(i) if i % 2 else Note(str(i)) for i in range(num)]
    assert codec().decode(joined([codec().encode(each) for each in messages])) == messages


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",  # never used in MessagePack
        DEEP,
        msgspec.msgpack.encode(7),
        msgspec.msgpack.encode([["command", "rm"]]),  # a tag that nobody declared
        msgspec.msgpack.encode([["count", "seven"]]),
        msgspec.msgpack.encode([["count", 1 << 64 - 1]])[:-1],
        msgspec.msgpack.encode([["count", 1]]) + b"\0",
        b"\x91\x92\xa4note\xa2\xff\xfe",  # no UTF-8
        b"\xdd\xff\xff\xff\xff",  # an array of 4 billion
    ],
)
def test_anything_else_is_an_error_of_one_kind(payload: bytes) -> None:
    with pytest.raises(ChannelError, match="a message that cannot be read"):
        codec().decode(payload)


@given(st.binary(max_size=200))
def test_random_bytes_are_messages_or_that_error(payload: bytes) -> None:
    try:
        messages = codec().decode(payload)
    except ChannelError:
        return
    assert all(isinstance(each, Note | Count) for each in messages)
