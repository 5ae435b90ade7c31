"""The file of a recording: what is written comes back, and nothing else is taken for one."""

from __future__ import annotations

from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim import events as ev
from kvsim.backends.turn_codec import Turn, encode, tagged
from kvsim.backends.turns import LARGEST_FRAME_BYTES, RecordingError, TurnReader, TurnWriter
from kvsim.core import ops
from tests.unit.recordings import read, record_story

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

from tests.unit.backends.turn_values import FIRST_LINE, HEADER, PATH, scalars, texts, turns, written


def framed(*bodies: bytes) -> bytes:
    """Return a file of these frames, with the right checksums."""
    data, crc = FIRST_LINE, 0
    for body in bodies:
        crc = crc32(body, crc)
        data += len(body).to_bytes(4) + body + crc.to_bytes(4)
    return data


def frames_of(data: bytes) -> list[bytes]:
    """Return the frames of a file as they are, lengths and checksums included."""
    frames = []
    rest = data.removeprefix(FIRST_LINE)
    while rest:
        size = 4 + int.from_bytes(rest[:4]) + 4
        frames.append(rest[:size])
        rest = rest[size:]
    return frames


def body(*values: object) -> bytes:
    return msgspec.msgpack.encode(values)


def header_body(num_requests: int = 0) -> bytes:
    return encode(("header", *HEADER._replace(num_requests=num_requests)))


def complaint(data: bytes) -> str:
    """Return the one line that reading `data` ends with."""
    with pytest.raises(RecordingError) as caught:
        read(data, PATH)
    message = str(caught.value)
    assert message.startswith("run.turns: ")
    assert "\n" not in message
    return message.removeprefix("run.turns: ")


def test_the_bytes_are_those_of_the_documentation() -> None:
    # 0x95: an array of 5; 0xa4: a text of 4 bytes; 0xc0: nil; small numbers are themselves.
    turn = b"\x95\xa4turn\x05\x91\x92\xa6Cancel\x03\x91\x93\xa7Settled\x03\x07\x90"
    end = b"\x93\xa3end\x01\xc0"
    header = b"\x99\xa6header\xa50.1.0\x80\xa1t\xa1f\xc0\x04\xa5count\x00"
    run = [Turn(5, (ops.Cancel(3),), (ops.Settled(3, 7),), ())]
    assert written(run=run) == framed(header, turn, end)
    assert framed(end)[14:] == b"\x00\x00\x00\x07" + end + crc32(end).to_bytes(4)


def test_a_turn_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    data = record_story(tmp_path / "a").read_bytes()
    size = len(FIRST_LINE) + sum(map(len, frames_of(data)[:5]))  # header, 3 requests, 1 turn
    reader = TurnReader(BytesIO(data[:size]), PATH)
    turns = iter(reader)
    assert next(turns).now == 0
    assert reader.end is None
    with pytest.raises(RecordingError, match="cut short"):
        next(turns)


def test_a_turn_is_written_when_it_is_given() -> None:
    stream = BytesIO()
    writer = TurnWriter(stream, PATH, HEADER, ())
    sizes = [len(stream.getvalue())]
    for _ in range(3):
        writer.turn(0, (), (), ())
        sizes.append(len(stream.getvalue()))
    # 0x95, "turn" in 5 bytes, 0, three empty arrays: 10 bytes, and 8 for length and checksum.
    assert [after - before for before, after in pairwise(sizes)] == [18, 18, 18]


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    data = record_story(tmp_path / "a").read_bytes()
    assert len(read(data, PATH)) == 8
    for size in range(len(data)):
        wanted = "not a recording: " if size < len(FIRST_LINE) else "cut short: "
        assert wanted in complaint(data[:size]), size


def test_a_changed_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    data = record_story(tmp_path / "a").read_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        assert complaint(bytes(changed)), place


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda frames: [*frames[:5], *frames[6:]], id="one left out"),
        pytest.param(lambda frames: [*frames[:6], frames[5], *frames[6:]], id="one twice"),
        pytest.param(lambda f: [*f[:5], f[6], f[5], *f[7:]], id="two swapped"),
        pytest.param(lambda frames: [*frames[:5], frames[-1]], id="an early end"),
    ],
)
def test_frames_that_are_whole_but_not_in_their_place_are_noticed(
    tmp_path: Path, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    frames = frames_of(record_story(tmp_path / "a").read_bytes())
    assert "damaged: the checksum is " in complaint(FIRST_LINE + b"".join(change(frames)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a recording: it must begin with 'kvsim-turns 1', not nothing"),
        (b'{"timestamp": 0}\n', "not a recording: it must begin with 'kvsim-turns 1', not b'{"),
        (b"kvsim-turns 1", "not a recording: "),
        (b"kvsim-turns x\n", "not a recording: "),
        (b"kvsim-turns " + b"1" * 99, "not a recording: "),
        (b"kvsim-turns 2\n", "a recording in format 2; this kvsim reads format 1"),
        (FIRST_LINE, "frame 0, byte 14: cut short: 4 bytes must follow byte 14, not 0"),
        (
            FIRST_LINE + b"\xff" * 9,
            "frame 0, byte 14: 4294967295 bytes long, at most 67108864 are allowed",
        ),
        (framed(body("header")), "frame 0, byte 14: Expected `array` of at least length 9, got 1"),
        (framed(body("turn", 1)), "frame 0, byte 14: Expected `array` of at least length 9"),
        (framed(header_body() + b"x"), "frame 0, byte 14: MessagePack data is malformed"),
        (
            framed(header_body(1), body("end", 0, None)),
            # 14 bytes for the line, 4 + 28 + 4 for the header
            "frame 1, byte 50: Expected `array` of at least length 13, got 3",
        ),
        (framed(header_body(), body("turn", 0.5, [], [], [])), ": Expected `int`, got `float`"),
        (framed(header_body(), body("turn", True, [], [], [])), ": Expected `int`, got `bool`"),
        (framed(header_body(), body("turn", 0, [["Cancel"]], [], [])), "at least length 2"),
        (framed(header_body(), body("turn", 0, [["Cancel", 1, 2]], [], [])), "at most length 1"),
        (framed(header_body(), body("turn", 0, [["Settled", 1, 2]], [], [])), "'Settled' - at"),
        (framed(header_body(), body("turn", 0, [["Cancel", "1"]], [], [])), "at `$[2][0][1]`"),
        (framed(header_body(), body("turn", 0, [], [], 7)), "Expected `array`, got `int`"),
        (
            framed(header_body(), body("turn", 0, [], [], [["BlocksStored", 0, [1.5], [1]]])),
            "a block key must be an integer, text, bytes, or an array of these, not 1.5",
        ),
        (
            framed(
                header_body(), body("turn", 0, [], [], [["BlocksRemoved", 0, [1], "eaten"]])
            ),
            "Invalid enum value 'eaten'",
        ),
        (framed(header_body(), body("end", 1, None)), "0 turns came before the end, not 1"),
        (
            framed(header_body(), body("turn", 0, [], None, []), body("end", 1, None)),
            "the last turn has no answers, so the run must have failed",
        ),
        (
            framed(header_body(), *[body("turn", 0, [], None, [])] * 2),
            "frame 2, byte 68: the turn before has no answers, so this must be the end",
        ),
        (framed(header_body(), body("end", 0, None)) + b"x", "byte 65: more bytes after"),
        (
            framed(header_body(1), body("request", 0, 0, 7, 1, 1, None, 0, None, None, [], 0, 0)),
            "Expected `array`, got `int` - at `$[3]`",
        ),
        (framed(header_body(), b"\xdd\xff\xff\xff\xff"), "Input data was truncated"),
        (framed(header_body(), b"\x95\xa4turn\x05\x90\x90" + b"\x91" * 9999), "Expected"),
        (
            framed(header_body(1), b"\x9d\xa7request\x00\x00\x91" + b"\x91" * 9999),
            "values are nested too deeply",
        ),
    ],
)  # fmt: skip
def test_what_is_no_recording_is_told_where_and_why(data: bytes, message: str) -> None:
    assert message in complaint(data)


@given(st.lists(st.binary(max_size=40), max_size=4), st.binary(max_size=20))
def test_bytes_of_any_kind_are_refused_in_one_line(bodies: list[bytes], rest: bytes) -> None:
    complaint(framed(*bodies) + rest)
    complaint(framed(header_body(), *bodies) + rest)
    complaint(rest)


plain = st.recursive(
    scalars | st.binary(max_size=3) | st.sampled_from(["Cancel", "Completion", "turn", "done"]),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(texts, each, max_size=2),
    max_leaves=8,
)


@given(turns, st.data())
def test_a_value_of_any_kind_in_any_place_is_read_or_refused(
    turn: Turn, data: st.DataObject
) -> None:
    parts = [list(map(tagged, part)) for part in (turn.commands, turn.answers or (), turn.events)]
    frame = msgspec.msgpack.decode(msgspec.msgpack.encode(["turn", turn.now, *parts]))
    inside = frame
    while inside and data.draw(st.booleans()):
        deeper = [each for each in inside if isinstance(each, list)]
        if not deeper:
            break
        inside = data.draw(st.sampled_from(deeper))
    if inside:
        inside[data.draw(st.integers(0, len(inside) - 1))] = data.draw(plain)
    changed = framed(header_body(), msgspec.msgpack.encode(frame), body("end", 1, None))
    try:
        back = read(changed, PATH)
    except RecordingError:
        return
    # What was read is what the file says: it gives the same bytes again.
    assert written(run=back) == changed


def test_a_frame_longer_than_the_bound_is_not_written() -> None:
    turn = Turn(0, (), (), (ev.RequestEnded(0, 0, "x" * LARGEST_FRAME_BYTES),))
    with pytest.raises(RecordingError, match=r"frame 1 \(turn\) cannot be recorded: 6710\d+ bytes"):
        written(run=[turn])


class FullDisk(BytesIO):
    def write(self, data: object) -> int:
        raise OSError(28, "No space left on device")


def test_a_stream_that_takes_nothing_is_told() -> None:
    with pytest.raises(RecordingError, match="cannot be written: No space left on device"):
        TurnWriter(FullDisk(), PATH, HEADER, ())
