"""Two ends of a new connection show each other that they know the key. Bytes in, bytes out.

```text
listener                                         dialler
  greeting, nonce a  ───────────────────────────>
                     <───────────────────────────  nonce b, proof "dials" of (a, b)
  proof "listens" of (a, b)  ───────────────────>
```

Every part has a fixed length, so nothing is parsed. Each direction then gets a key of its own, of
the shared one and both nonces: what was overheard on one connection is worth nothing on another.

Source: challenge and response by HMAC-SHA256, RFC 2104.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from secrets import token_bytes
from typing import Final

from kvsim.backends.control.errors import AuthenticationError

KEY_BYTES: Final = 32
_GREETING: Final = b"kvsim control 1\n"
_NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = 32
GREETING_BYTES: Final = len(_GREETING) + _NONCE_BYTES
REPLY_BYTES: Final = _NONCE_BYTES + _PROOF_BYTES
WELCOME_BYTES: Final = _PROOF_BYTES


def new_key() -> bytes:
    """Return a random key; a run makes one and keeps it to itself."""
    return token_bytes(KEY_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SessionKeys:
    """The keys of the two directions of one connection."""

    sending: bytes
    receiving: bytes


class ListenerHandshake:
    """The listener's side.

    Parameters
    ----------
    key
        What the other end must know.

    Attributes
    ----------
    greeting
        What to send first; `REPLY_BYTES` bytes come back.
    """

    __slots__ = ("_key", "_nonce", "greeting")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._nonce = token_bytes(_NONCE_BYTES)
        self.greeting = _GREETING + self._nonce

    def welcome(self, reply: bytes) -> tuple[bytes, SessionKeys]:
        """Check a reply; return what to send back, and the keys of the connection.

        Raises
        ------
        AuthenticationError
            If whoever replied does not know the key.
        """
        nonces = self._nonce + reply[:_NONCE_BYTES]
        _check(reply[_NONCE_BYTES:], self._key, b"dials", nonces)
        keys = SessionKeys(
            sending=_derive(self._key, b"to dialler", nonces),
            receiving=_derive(self._key, b"to listener", nonces),
        )
        return _derive(self._key, b"listens", nonces), keys


class DiallerHandshake:
    """The side of whoever connects.

    Parameters
    ----------
    key
        What the other end must know.
    """

    __slots__ = ("_key", "_nonces")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._nonces = b""

    def reply(self, greeting: bytes) -> bytes:
        """Return what to send back for a greeting; `WELCOME_BYTES` bytes come back.

        Raises
        ------
        AuthenticationError
            If the other end is no listener of ours.
        """
        if not greeting.startswith(_GREETING):
            raise AuthenticationError("whoever listens there does not speak kvsim's protocol")
        nonce = token_bytes(_NONCE_BYTES)
        self._nonces = greeting[len(_GREETING) :] + nonce
        return nonce + _derive(self._key, b"dials", self._nonces)

    def keys(self, welcome: bytes) -> SessionKeys:
        """Check a welcome; return the keys of the connection.

        Raises
        ------
        AuthenticationError
            If the listener does not know the key.
        """
        _check(welcome, self._key, b"listens", self._nonces)
        return SessionKeys(
            sending=_derive(self._key, b"to listener", self._nonces),
            receiving=_derive(self._key, b"to dialler", self._nonces),
        )


def _check(proof: bytes, key: bytes, role: bytes, nonces: bytes) -> None:
    if not hmac.compare_digest(proof, _derive(key, role, nonces)):
        raise AuthenticationError("the other end does not know the key of this run")


def _derive(key: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key, role + b"\0" + nonces, "sha256")
