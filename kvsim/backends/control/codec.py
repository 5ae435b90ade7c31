"""Messages to bytes and back: MessagePack, of declared types and no others.

Source: the MessagePack format (for the header of an array), https://github.com/msgpack/msgpack.
"""

from __future__ import annotations

from struct import pack
from typing import Any, Final, Generic, TypeVar

import msgspec

from kvsim.backends.control.errors import ChannelError

_MAX_SMALL: Final = 15  # items of an array whose header is one byte
_MAX_MEDIUM: Final = (1 << 16) - 1

In = TypeVar("In")
"""What comes in."""


class Codec(Generic[In]):
    """Writes any message, and reads those of one type: a tagged `msgspec.Struct` or several.

    Parameters
    ----------
    kind
        The type of what comes in.
    """

    __slots__ = ("_decoder", "_encoder")

    def __init__(self, kind: Any) -> None:  # noqa: ANN401  (a union of types has no type)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[list[In]] = msgspec.msgpack.Decoder(list[kind])

    def encode(self, message: object) -> bytes:
        """Return one message as bytes."""
        return self._encoder.encode(message)

    def decode(self, payload: bytes) -> list[In]:
        """Return the messages of a frame.

        Raises
        ------
        ChannelError
            If they are not what is expected.
        """
        try:
            return self._decoder.decode(payload)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ChannelError(f"a message that cannot be read: {error}") from error


def joined(messages: list[bytes]) -> bytes:
    """Return what a frame of several messages carries: an array of them."""
    num = len(messages)
    if num <= _MAX_SMALL:
        header = bytes([0x90 | num])
    elif num <= _MAX_MEDIUM:
        header = pack(">BH", 0xDC, num)
    else:
        header = pack(">BI", 0xDD, num)
    return b"".join((header, *messages))
