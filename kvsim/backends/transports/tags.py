"""What a notification says: which layer of which request has come, and from which rank."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kvsim.backends.transports.ports import MAX_TAG_BYTES, TransportError

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class LayerTag(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A layer of an attempt of a request, from one rank of the sender.

    Each names its sender and its attempt, so that ranks do not count for each other, one that
    comes twice counts once, and one of an earlier attempt counts for nothing.

    Parameters
    ----------
    request, attempt
        Of what the bytes belong to.
    layer
        Which of its layers is complete; None: all of them are, on this rank.
    rank
        Of the sender.
    """

    request: _Count
    attempt: _Count
    layer: _Count | None
    rank: _Count


_DECODER = msgspec.msgpack.Decoder(LayerTag)


def encode_tag(tag: LayerTag) -> bytes:
    """Return a tag as bytes: at most 37 of them."""
    return msgspec.msgpack.encode(tag)


def decode_tag(tag: bytes) -> LayerTag:
    """Return what a tag says.

    Raises
    ------
    TransportError
        If it is not one of `encode_tag`.
    """
    if len(tag) > MAX_TAG_BYTES:
        raise TransportError(f"a tag of {len(tag)} bytes is longer than any")
    try:
        return _DECODER.decode(tag)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TransportError(f"a tag cannot be read: {error}") from error
