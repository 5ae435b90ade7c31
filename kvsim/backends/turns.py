"""The file of a recording: what an engine was told and what it decided, turn by turn.

A line of text names the format and its version. Frames follow, each of them four bytes with the
length of its body (big-endian), the body (see `kvsim.backends.turn_codec`), and four bytes with the
CRC-32 of all bodies so far. The first frame is the header, then comes one for each request, one
for each turn, and the end. The same run gives the same bytes.

Source: the CRC-32 is that of ISO 3309, as in zlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar
from zlib import crc32

from kvsim.backends.turn_codec import (
    BadValueError,
    Turn,
    decode_header,
    decode_request,
    decode_turn_or_end,
    encode,
    request_fields,
    shown,
    tagged,
)
from kvsim.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from kvsim.backends.turn_codec import End, Failure, Header
    from kvsim.core.ops import Answer, Command
    from kvsim.events import Event
    from kvsim.types import Request

FORMAT: Final = 1
"""Version of the format that is written, and the only one that is read."""

LARGEST_FRAME_BYTES: Final = 1 << 26
"""Bound of a body. The longest turn of Mooncake's traces takes 10 kB; a file that claims more than
this is damaged, and must not make the reader take all memory."""

_MAGIC: Final = b"kvsim-turns "
_LONGEST_FIRST_LINE: Final = 32

_Frame = TypeVar("_Frame")


class RecordingError(UserError):
    """A recording that cannot be read, or a run that cannot be recorded.

    Parameters
    ----------
    problem
        What is wrong, the value seen, and what would be right.
    path, frame, offset
        Where: the file, the frame counted from 0 (the header), and the byte it begins at.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: Path | str,
        frame: int | None = None,
        offset: int | None = None,
    ) -> None:
        where = "" if frame is None else f"frame {frame}, "
        where += "" if offset is None else f"byte {offset}: "
        super().__init__(f"{path}: {where}{problem}")
        self.problem, self.path, self.frame, self.offset = problem, str(path), frame, offset


class TurnWriter:
    """Writes a recording to a stream; keeps nothing of what is written.

    Parameters
    ----------
    stream
        Where the bytes go.
    path
        For messages.
    header, requests
        What the run was given. They are written at once.

    Attributes
    ----------
    num_turns, num_bytes
        Written so far.
    is_broken
        Whether something could not be written, so that the recording lacks it.

    Raises
    ------
    RecordingError
        Here and from each method: if the stream does not take the bytes, or a value has no place
        in the format, such as a block key that is a float.
    ConfigError
        If msgspec is not installed.
    """

    def __init__(
        self, stream: BinaryIO, path: Path, header: Header, requests: Iterable[Request]
    ) -> None:
        self._stream = stream
        self._path = path
        self._crc = 0
        self._num_frames = 0
        self.num_turns = 0
        self.num_bytes = 0
        self.is_broken = False
        self._put(b"%s%d\n" % (_MAGIC, FORMAT))
        self._write("header", header)
        for request in requests:
            self._write("request", self._fields(request))

    def turn(
        self,
        now: int,
        commands: Iterable[Command],
        answers: Iterable[Answer] | None,
        events: Iterable[Event],
    ) -> None:
        """Write one turn; see `Turn`."""
        told = None if answers is None else list(map(tagged, answers))
        self._write("turn", (now, list(map(tagged, commands)), told, list(map(tagged, events))))
        self.num_turns += 1

    def end(self, failure: Failure | None) -> None:
        """Write the end; nothing may follow."""
        self._write("end", (self.num_turns, failure))

    def _fields(self, request: Request) -> tuple[object, ...]:
        try:
            return request_fields(request)
        except BadValueError as error:
            raise RecordingError(f"cannot be recorded: {error}", path=self._path) from error

    def _write(self, kind: str, values: Iterable[object]) -> None:
        self.is_broken = True
        try:
            body = encode((kind, *values))
            if len(body) > LARGEST_FRAME_BYTES:
                raise BadValueError(f"{len(body)} bytes, at most {LARGEST_FRAME_BYTES} are allowed")
        except BadValueError as error:
            raise RecordingError(
                f"frame {self._num_frames} ({kind}) cannot be recorded: {error}", path=self._path
            ) from error
        self._crc = crc32(body, self._crc)
        self._put(b"".join((len(body).to_bytes(4), body, self._crc.to_bytes(4))))
        self._num_frames += 1
        self.is_broken = False

    def _put(self, data: bytes) -> None:
        try:
            self._stream.write(data)
        except OSError as error:
            raise RecordingError(
                f"cannot be written: {error.strerror or error}", path=self._path
            ) from error
        self.num_bytes += len(data)


class TurnReader:
    """Reads a recording from a stream. Iterating gives its turns, once, each read when asked for.

    Parameters
    ----------
    stream
        At the beginning of the recording.
    path
        For messages.

    Attributes
    ----------
    path
        As given.
    header, requests
        What the run was given.
    end
        How the run ended; None until all turns have been read.

    Raises
    ------
    RecordingError
        Here and while iterating: if this is not a recording, of another version, damaged or cut
        short.
    ConfigError
        If msgspec is not installed.
    """

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream = stream
        self.path = path
        self._crc = 0
        self._frame_index = -1
        self._began_at = 0
        self._offset = 0
        self._read_first_line()
        self.header = self._frame(decode_header)
        self.requests = tuple(self._frame(decode_request) for _ in range(self.header.num_requests))
        self.end: End | None = None

    def __iter__(self) -> Iterator[Turn]:
        """Yield the turns."""
        num_turns = 0
        is_open = False  # a turn whose answers did not come, after which there is but the end
        while isinstance(frame := self._frame(decode_turn_or_end), Turn):
            if is_open:
                raise self._error("the turn before has no answers, so this must be the end")
            is_open = frame.answers is None
            num_turns += 1
            yield frame
        if frame.num_turns != num_turns:
            raise self._error(f"{num_turns} turns came before the end, not {frame.num_turns}")
        if is_open and frame.failure is None:
            raise self._error("the last turn has no answers, so the run must have failed")
        if self._stream.read(1):
            raise RecordingError(
                "more bytes after the end of the recording", path=self.path, offset=self._offset
            )
        self.end = frame

    def _read_first_line(self) -> None:
        line = self._stream.readline(_LONGEST_FIRST_LINE)
        wanted = (_MAGIC + b"%d\n" % FORMAT).decode().rstrip()
        version = line.removeprefix(_MAGIC).removesuffix(b"\n")
        if not line.startswith(_MAGIC) or not line.endswith(b"\n") or not version.isdigit():
            seen = shown(line) if line else "nothing"
            raise RecordingError(
                f"not a recording: it must begin with {wanted!r}, not {seen}", path=self.path
            )
        if version != b"%d" % FORMAT:
            raise RecordingError(
                f"a recording in format {version.decode()}; this kvsim reads format {FORMAT}",
                path=self.path,
            )
        self._offset = len(line)

    def _frame(self, decode: Callable[[bytes], _Frame]) -> _Frame:
        self._frame_index += 1
        self._began_at = self._offset
        size = int.from_bytes(self._read(4))
        if size > LARGEST_FRAME_BYTES:
            raise self._error(f"{size} bytes long, at most {LARGEST_FRAME_BYTES} are allowed")
        body = self._read(size)
        self._crc = crc32(body, self._crc)
        told = int.from_bytes(self._read(4))
        if told != self._crc:
            raise self._error(
                f"damaged: the checksum is {told:08x}, of what was read it is {self._crc:08x}"
            )
        try:
            return decode(body)
        except BadValueError as error:
            raise self._error(str(error)) from error

    def _read(self, num_bytes: int) -> bytes:
        data = self._stream.read(num_bytes)
        if len(data) < num_bytes:
            raise self._error(
                f"cut short: {num_bytes} bytes must follow byte {self._offset}, not {len(data)}"
            )
        self._offset += num_bytes
        return data

    def _error(self, problem: str) -> RecordingError:
        return RecordingError(
            problem, path=self.path, frame=self._frame_index, offset=self._began_at
        )
