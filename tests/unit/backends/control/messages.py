"""Messages for the tests of the control plane."""

from __future__ import annotations

import msgspec

from kvsim.backends.control import Codec


class Note(msgspec.Struct, frozen=True, array_like=True, tag="note"):
    """Some text."""

    text: str


class Count(msgspec.Struct, frozen=True, array_like=True, tag="count"):
    """A number."""

    number: int


def codec() -> Codec[Note | Count]:
    """Return a codec of both."""
    return Codec(Note | Count)
