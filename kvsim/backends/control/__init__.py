"""The control plane: short messages between processes of one run, and the processes themselves.

`Listener` and `dial` connect two ends that know the key of the run; a `Channel` carries frames of
typed messages, sealed one by one; `start_child` starts a process that is told the key on its
standard input, and ends with whoever started it. It knows nothing of caches: whoever uses it brings
the types of its messages.
"""

from __future__ import annotations

from kvsim.backends.control.channel import Channel, sleep_on
from kvsim.backends.control.codec import Codec
from kvsim.backends.control.endpoints import Listener, dial, receive_one
from kvsim.backends.control.errors import AuthenticationError, ChannelClosedError, ChannelError
from kvsim.backends.control.handshake import new_key
from kvsim.backends.control.process import Child, Invitation, start_child, take_invitation

__all__ = [
    "AuthenticationError",
    "Channel",
    "ChannelClosedError",
    "ChannelError",
    "Child",
    "Codec",
    "Invitation",
    "Listener",
    "dial",
    "new_key",
    "receive_one",
    "sleep_on",
    "start_child",
    "take_invitation",
]
