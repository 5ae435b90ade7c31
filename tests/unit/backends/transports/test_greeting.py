"""Only a holder of the key is believed, and only here and now."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.transports.greeting import Caller, GreetingError, Listener, seal, unseal
from kvsim.backends.transports.ports import PeerId

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
ALICE, BOB, EVE = PeerId(0, 1), PeerId(1, 0), PeerId(7, 7)


def test_two_ends_with_the_key_meet_and_share_a_session() -> None:
    caller = Caller(KEY, ALICE, BOB, b"where Alice is")
    listener = Listener(KEY, BOB, caller.hello)
    listener.check(caller.answer(listener.welcome))
    assert (listener.peer, listener.address) == (ALICE, b"where Alice is")
    assert caller.session == listener.session


def test_a_caller_without_the_key_is_not_read() -> None:
    with pytest.raises(GreetingError, match="does not have the key"):
        Listener(KEY, BOB, Caller(OTHER_KEY, ALICE, BOB).hello)


def test_a_listener_without_the_key_is_not_believed() -> None:
    caller = Caller(KEY, ALICE, BOB)
    listener = Listener(OTHER_KEY, BOB, Caller(OTHER_KEY, ALICE, BOB).hello)
    with pytest.raises(GreetingError, match="does not have the key"):
        caller.answer(listener.welcome)


def test_whoever_answers_must_be_who_was_called() -> None:
    caller = Caller(KEY, ALICE, BOB)
    with pytest.raises(GreetingError, match="is rank 7 of instance 7, not rank 0 of instance 1"):
        caller.answer(Listener(KEY, EVE, caller.hello).welcome)


def test_a_greeting_played_back_is_of_another_time() -> None:
    caller = Caller(KEY, ALICE, BOB)
    first = Listener(KEY, BOB, caller.hello)
    proof = caller.answer(first.welcome)
    second = Listener(KEY, BOB, caller.hello)  # heard on the wire, and sent again
    with pytest.raises(GreetingError, match="another time"):
        second.check(proof)
    with pytest.raises(GreetingError, match="another time"):
        Caller(KEY, ALICE, BOB).answer(first.welcome)


def test_a_message_cannot_be_sent_back_to_where_it_came_from() -> None:
    hello = Caller(KEY, ALICE, BOB).hello
    with pytest.raises(GreetingError):
        Caller(KEY, BOB, ALICE).answer(hello)


@given(st.binary(max_size=200))
def test_random_bytes_are_nobody(message: bytes) -> None:
    with pytest.raises(GreetingError):
        Listener(KEY, BOB, message)


@given(st.binary(max_size=200))
def test_what_a_holder_of_the_key_says_is_checked_as_well(body: bytes) -> None:
    # No random bytes of this length are a greeting: its number alone has 16 bytes.
    with pytest.raises(GreetingError, match="cannot be read"):
        Listener(KEY, BOB, seal(KEY, b"hello", b"\xc1" + body))


@given(st.binary(min_size=1, max_size=64), st.integers(0, 95))
def test_a_bit_that_changes_is_seen(body: bytes, place: int) -> None:
    message = bytearray(seal(KEY, b"label", body))
    message[place % len(message)] ^= 1
    with pytest.raises(GreetingError):
        unseal(KEY, b"label", bytes(message))
