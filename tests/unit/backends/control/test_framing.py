"""Frames come out as they went in, or not at all."""

from __future__ import annotations

import pytest

from kvsim.backends.control.errors import ChannelError
from kvsim.backends.control.framing import FrameReader, FrameWriter

KEY, OTHER = b"k" * 32, b"o" * 32
HEADER_BYTES = 4 + 16


def frames(*payloads: bytes, key: bytes = KEY) -> list[bytes]:
    writer = FrameWriter(key)
    return [writer.seal(each) for each in payloads]


def test_frames_may_come_in_any_pieces() -> None:
    stream = b"".join(frames(b"one", b"", b"three" * 1000))
    for size in (1, 7, HEADER_BYTES, len(stream)):
        reader, out = FrameReader(KEY), []
        for at in range(0, len(stream), size):
            out += reader.feed(stream[at : at + size])
        assert out == [b"one", b"", b"three" * 1000]


@pytest.mark.parametrize("position", [4, 19, HEADER_BYTES, HEADER_BYTES + 2])
def test_a_changed_bit_is_found_in_seal_and_payload(position: int) -> None:
    frame = bytearray(frames(b"one")[0])
    frame[position] ^= 1
    with pytest.raises(ChannelError, match="frame 0 has a wrong seal"):
        FrameReader(KEY).feed(bytes(frame))


def test_a_frame_that_is_sent_twice_left_out_or_out_of_order_is_found() -> None:
    one, two, three = frames(b"one", b"two", b"three")
    for stream in (one + one, one + three, two + one):
        with pytest.raises(ChannelError, match="has a wrong seal"):
            FrameReader(KEY).feed(stream)
    assert FrameReader(KEY).feed(one + two + three) == [b"one", b"two", b"three"]


def test_a_frame_of_another_connection_is_found() -> None:
    with pytest.raises(ChannelError, match="frame 0 has a wrong seal"):
        FrameReader(KEY).feed(frames(b"one", key=OTHER)[0])


def test_a_frame_that_is_too_long_is_refused_before_it_has_come() -> None:
    reader = FrameReader(KEY, max_bytes=10)
    with pytest.raises(ChannelError, match=r"a frame of 11 bytes was announced; at most 10"):
        reader.feed(frames(b"12345678901")[0][:HEADER_BYTES])
    assert FrameReader(KEY, max_bytes=10).feed(frames(b"1234567890")[0]) == [b"1234567890"]


def test_a_payload_that_is_too_long_is_not_sent() -> None:
    writer = FrameWriter(KEY, max_bytes=10)
    with pytest.raises(ChannelError, match=r"a message of 11 bytes; at most 10"):
        writer.seal(b"12345678901")
    # And does not count: what follows is frame 0.
    assert FrameReader(KEY).feed(writer.seal(b"fits")) == [b"fits"]
