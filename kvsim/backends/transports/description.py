"""The description of an endpoint: what travels over the control plane to those that connect."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kvsim.backends.transports.ports import MAX_DESCRIPTION_BYTES, PeerId
from kvsim.errors import ConfigError

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Description(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Where an endpoint is, and how much memory it has.

    `address` is for the transport alone.
    """

    transport: Annotated[str, msgspec.Meta(max_length=64)]
    instance: _Count
    rank: _Count
    num_bytes: _Count
    address: Annotated[bytes, msgspec.Meta(max_length=MAX_DESCRIPTION_BYTES)]


_DECODER = msgspec.msgpack.Decoder(Description)


def encode_description(transport: str, peer: PeerId, num_bytes: int, address: bytes) -> bytes:
    """Return the description of an endpoint as bytes."""
    return msgspec.msgpack.encode(
        Description(transport, peer.instance, peer.rank, num_bytes, address)
    )


def decode_description(transport: str, peer: PeerId, description: bytes) -> Description:
    """Return what a description says.

    Raises
    ------
    ConfigError
        If it is none, or of another transport or peer than these.
    """
    where = f"the description of {peer}"
    if len(description) > MAX_DESCRIPTION_BYTES:
        raise ConfigError(f"{where} has {len(description)} bytes, more than any has")
    try:
        found = _DECODER.decode(description)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{where} cannot be read: {error}") from error
    if found.transport != transport:
        raise ConfigError(f"{where} is of transport {found.transport!r}, not {transport!r}")
    if (found.instance, found.rank) != peer:
        raise ConfigError(f"{where} is that of {PeerId(found.instance, found.rank)}")
    return found
