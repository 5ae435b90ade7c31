"""Frames: a length, a seal, and what they carry. Bytes in, bytes out; no socket in sight.

A seal covers the position of a frame in its connection and direction, so a frame that was changed,
left out, sent again or taken from another connection does not pass. Nothing of a frame is looked
at before its seal has been checked, but for its length, which is bounded.

Source: keyed BLAKE2b as a message authentication code, RFC 7693, section 2.9.
"""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest
from struct import Struct
from typing import Final

from kvsim.backends.control.errors import ChannelError

MAX_FRAME_BYTES: Final = 1 << 26
"""Default bound of what a frame carries: far above a step over a million blocks."""

_HEADER: Final = Struct("<I16s")
_SEQUENCE: Final = Struct("<Q")
_SEAL_BYTES: Final = 16


class FrameWriter:
    """Seals what is sent in one direction of a connection.

    Parameters
    ----------
    key
        Of this direction, 16 to 64 bytes.
    max_bytes
        What a frame carries at most.
    """

    __slots__ = ("_key", "_num_sealed", "max_bytes")

    def __init__(self, key: bytes, *, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._key = key
        self._num_sealed = 0
        self.max_bytes = max_bytes

    def seal(self, payload: bytes) -> bytes:
        """Return the next frame.

        Raises
        ------
        ChannelError
            If the payload is too long for a frame.
        """
        if len(payload) > self.max_bytes:
            raise ChannelError(
                f"a message of {len(payload):,} bytes; at most {self.max_bytes:,} go into a frame"
            )
        seal = _seal(self._key, self._num_sealed, payload)
        self._num_sealed += 1
        return _HEADER.pack(len(payload), seal) + payload


class FrameReader:
    """Opens what comes in one direction of a connection, in whatever pieces it comes.

    The parameters are those of the `FrameWriter` at the other end.
    """

    __slots__ = ("_buffer", "_key", "_max_bytes", "_num_opened")

    def __init__(self, key: bytes, *, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._key = key
        self._max_bytes = max_bytes
        self._num_opened = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take more bytes; return what the frames carry that are complete by now.

        Raises
        ------
        ChannelError
            If a frame is too long, or its seal is wrong. The connection is good for nothing then.
        """
        buffer, payloads, start = self._buffer, [], 0
        buffer += data
        while len(buffer) - start >= _HEADER.size:
            num_bytes, seal = _HEADER.unpack_from(buffer, start)
            if num_bytes > self._max_bytes:
                raise ChannelError(
                    f"a frame of {num_bytes:,} bytes was announced; at most {self._max_bytes:,}"
                    " are taken"
                )
            first = start + _HEADER.size
            if len(buffer) < first + num_bytes:
                break
            payload = bytes(memoryview(buffer)[first : first + num_bytes])
            if not compare_digest(seal, _seal(self._key, self._num_opened, payload)):
                raise ChannelError(
                    f"frame {self._num_opened} has a wrong seal: it was changed, or sent twice"
                )
            self._num_opened += 1
            payloads.append(payload)
            start = first + num_bytes
        del buffer[:start]
        return payloads


def _seal(key: bytes, index: int, payload: bytes) -> bytes:
    seal = blake2b(_SEQUENCE.pack(index), key=key, digest_size=_SEAL_BYTES, person=b"kvsim frame")
    seal.update(payload)
    return seal.digest()
