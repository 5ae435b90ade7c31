"""How two ends find out that the other has the key of the run, before anything of it is believed.

Three messages, each with a MAC that is checked before its body is read::

    A (connects)                         B (listens)
      HELLO   who A is, a number of A's  ->
           <-  WELCOME  who B is, A's number, a number of B's
      PROOF   B's number                 ->

Numbers are random, so that no message is of use a second time. The MACs of the three are under
different labels, so that none can be sent back to where it came from.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Annotated, Final, TypeVar

import msgspec

from kvsim.backends.transports.ports import PeerId
from kvsim.errors import KvsimError

MAC_BYTES: Final = 32
_NONCE_BYTES: Final = 16
_MAX_BODY_BYTES: Final = 1 << 17
MAX_GREETING_BYTES: Final = MAC_BYTES + _MAX_BODY_BYTES

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Nonce = Annotated[bytes, msgspec.Meta(min_length=_NONCE_BYTES, max_length=_NONCE_BYTES)]


class GreetingError(KvsimError, RuntimeError):
    """The other end has not shown that it has the key, or is not who it should be."""


class _Hello(msgspec.Struct, array_like=True, frozen=True):
    instance: _Count
    rank: _Count
    nonce: _Nonce
    address: bytes


class _Welcome(msgspec.Struct, array_like=True, frozen=True):
    instance: _Count
    rank: _Count
    their_nonce: _Nonce
    nonce: _Nonce


class _Proof(msgspec.Struct, array_like=True, frozen=True):
    their_nonce: _Nonce


_Found = TypeVar("_Found")

_HELLO: Final = msgspec.msgpack.Decoder(_Hello)
_WELCOME: Final = msgspec.msgpack.Decoder(_Welcome)
_PROOF: Final = msgspec.msgpack.Decoder(_Proof)


def seal(key: bytes, label: bytes, body: bytes) -> bytes:
    """Return `body` behind its MAC."""
    return hmac.digest(key, label + b"\0" + body, hashlib.sha256) + body


def unseal(key: bytes, label: bytes, message: bytes) -> bytes:
    """Return the body of a message whose MAC is right.

    Raises
    ------
    GreetingError
        If it is not. Nothing of the body has been looked at.
    """
    body = message[MAC_BYTES:]
    mac = hmac.digest(key, label + b"\0" + body, hashlib.sha256)
    if len(message) > MAX_GREETING_BYTES or not hmac.compare_digest(mac, message[:MAC_BYTES]):
        raise GreetingError("the other end does not have the key of this run")
    return body


class Caller:
    """The end that connects.

    Parameters
    ----------
    key
        Of the run.
    me, peer
        Who calls whom.
    address
        Of the caller, for transports whose peers answer at an address of their own.
    """

    def __init__(self, key: bytes, me: PeerId, peer: PeerId, address: bytes = b"") -> None:
        self._key, self._peer = key, peer
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        body = msgspec.msgpack.encode(_Hello(*me, self._nonce, address))
        self.hello: Final = seal(key, b"hello", body)
        self.session: bytes | None = None

    def answer(self, welcome: bytes) -> bytes:
        """Return the PROOF for a WELCOME.

        Raises
        ------
        GreetingError
            If the other end does not have the key, or is not who was called.
        """
        found = _decode(_WELCOME, unseal(self._key, b"welcome", welcome))
        if not hmac.compare_digest(found.their_nonce, self._nonce):
            raise GreetingError("the other end answers a greeting of another time")
        if (found.instance, found.rank) != self._peer:
            other = PeerId(found.instance, found.rank)
            raise GreetingError(f"the other end is {other}, not {self._peer}")
        self.session = _session(self._key, self._nonce, found.nonce)
        return seal(self._key, b"proof", msgspec.msgpack.encode(_Proof(found.nonce)))


class Listener:
    """The end that is called, for one connection.

    Parameters
    ----------
    key
        Of the run.
    me
        Who is called.
    hello
        The first message that came.

    Attributes
    ----------
    peer
        Who calls: to be believed after `check`.
    address
        Of the caller.
    welcome
        To be sent back.
    session
        A key of this connection alone.

    Raises
    ------
    GreetingError
        If the message is not a HELLO under the key.
    """

    def __init__(self, key: bytes, me: PeerId, hello: bytes) -> None:
        found = _decode(_HELLO, unseal(key, b"hello", hello))
        self._key = key
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self.peer: Final = PeerId(found.instance, found.rank)
        self.address: Final = found.address
        body = msgspec.msgpack.encode(_Welcome(*me, found.nonce, self._nonce))
        self.welcome: Final = seal(key, b"welcome", body)
        self.session: Final = _session(key, found.nonce, self._nonce)

    def check(self, proof: bytes) -> None:
        """Raise `GreetingError` if the caller does not answer the number it was given."""
        found = _decode(_PROOF, unseal(self._key, b"proof", proof))
        if not hmac.compare_digest(found.their_nonce, self._nonce):
            raise GreetingError("the caller answers a greeting of another time")


def _session(key: bytes, caller_nonce: bytes, listener_nonce: bytes) -> bytes:
    return hmac.digest(key, b"session\0" + caller_nonce + listener_nonce, hashlib.sha256)


def _decode(decoder: msgspec.msgpack.Decoder[_Found], body: bytes) -> _Found:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        # Of a holder of the key, but not of this release of kvsim.
        raise GreetingError(f"the other end sends what cannot be read: {error}") from error
