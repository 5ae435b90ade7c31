"""Whoever does not know the key gets no further, on either side."""

from __future__ import annotations

import pytest

from kvsim.backends.control.errors import AuthenticationError
from kvsim.backends.control.handshake import (
    GREETING_BYTES,
    REPLY_BYTES,
    WELCOME_BYTES,
    DiallerHandshake,
    ListenerHandshake,
    SessionKeys,
    new_key,
)


def meet(listener_key: bytes, dialler_key: bytes) -> tuple[SessionKeys, SessionKeys]:
    """Return the keys that both ends come to."""
    listener, dialler = ListenerHandshake(listener_key), DiallerHandshake(dialler_key)
    assert len(listener.greeting) == GREETING_BYTES
    reply = dialler.reply(listener.greeting)
    assert len(reply) == REPLY_BYTES
    welcome, keys = listener.welcome(reply)
    assert len(welcome) == WELCOME_BYTES
    return keys, dialler.keys(welcome)


def test_both_ends_come_to_the_same_keys_one_a_direction_and_new_ones_each_time() -> None:
    key = new_key()
    one, other = meet(key, key)
    assert (one.sending, one.receiving) == (other.receiving, other.sending)
    again, _ = meet(key, key)
    assert len({one.sending, one.receiving, again.sending, again.receiving, key}) == 5


def test_a_dialler_without_the_key_is_refused() -> None:
    with pytest.raises(AuthenticationError, match="does not know the key of this run"):
        meet(new_key(), new_key())


def test_a_listener_without_the_key_is_left() -> None:
    key = new_key()
    dialler = DiallerHandshake(key)
    dialler.reply(ListenerHandshake(new_key()).greeting)
    with pytest.raises(AuthenticationError, match="does not know the key of this run"):
        dialler.keys(bytes(WELCOME_BYTES))


def test_somebody_who_listens_and_is_none_of_ours_gets_no_proof() -> None:
    with pytest.raises(AuthenticationError, match="does not speak kvsim's protocol"):
        DiallerHandshake(new_key()).reply(b"220 mail.example" + bytes(GREETING_BYTES - 16))


def test_a_reply_that_was_overheard_is_worth_nothing_on_another_connection() -> None:
    key = new_key()
    reply = DiallerHandshake(key).reply(ListenerHandshake(key).greeting)
    with pytest.raises(AuthenticationError):
        ListenerHandshake(key).welcome(reply)


def test_a_proof_of_one_side_is_none_of_the_other() -> None:
    """Nobody gets in by sending the listener's own proof back."""
    key = new_key()
    listener, dialler = ListenerHandshake(key), DiallerHandshake(key)
    reply = dialler.reply(listener.greeting)
    with pytest.raises(AuthenticationError):
        dialler.keys(reply[-WELCOME_BYTES:])


def test_keys_are_not_shown() -> None:
    assert "sending" not in repr(SessionKeys(sending=b"secret", receiving=b"secret"))
