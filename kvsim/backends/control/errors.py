"""What can go wrong with a connection."""

from __future__ import annotations

from kvsim.errors import TransferError


class ChannelError(TransferError):
    """A connection that cannot be used any more, or could not be made."""


class ChannelClosedError(ChannelError):
    """The other end has closed the connection, or its process has ended."""


class AuthenticationError(ChannelError):
    """The other end does not know the key."""
