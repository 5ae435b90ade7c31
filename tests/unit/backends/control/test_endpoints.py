"""Connections on this machine: who gets one, what goes through it, how it ends."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from kvsim.backends.control import (
    AuthenticationError,
    Channel,
    ChannelClosedError,
    ChannelError,
    Listener,
    dial,
    new_key,
    receive_one,
    sleep_on,
)
from tests.unit.backends.control.messages import Count, Note, codec

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = new_key()
Message = Note | Count


@contextmanager
def listening(
    *, is_local: bool = True, handshake_s: float = 60.0, max_frame_bytes: int = 1 << 20
) -> Iterator[Listener[Message]]:
    listener = Listener(
        KEY, codec(), is_local=is_local, handshake_s=handshake_s, max_frame_bytes=max_frame_bytes
    )
    try:
        yield listener
    finally:
        listener.close()


def accept(listener: Listener[Message]) -> Channel[Message]:
    """Wait for one connection."""
    until = monotonic() + 60
    while not (channels := listener.accept()):
        assert monotonic() < until
        sleep_on(listener.waiting(), timeout_s=60)
    (channel,) = channels
    return channel


@contextmanager
def connected(
    listener: Listener[Message], *, max_frame_bytes: int = 1 << 20
) -> Iterator[tuple[Channel[Message], Channel[Message]]]:
    """Give the two ends of a connection, the listener's first."""
    dialled: list[Channel[Message]] = []

    def call() -> None:
        dialled.append(dial(listener.address, KEY, codec(), max_frame_bytes=max_frame_bytes))

    thread = threading.Thread(target=call)
    thread.start()
    ours = accept(listener)
    thread.join()
    try:
        yield ours, dialled[0]
    finally:
        ours.close()
        dialled[0].close()


def take(channel: Channel[Message], num: int = 1) -> list[Message]:
    """Wait for so many messages."""
    taken: list[Message] = []
    while len(taken) < num:
        taken += receive_one(channel, until=monotonic() + 60)
    return taken


@pytest.mark.parametrize("is_local", [True, False])
def test_messages_go_both_ways_those_of_a_turn_together(*, is_local: bool) -> None:
    with listening(is_local=is_local) as listener, connected(listener) as (ours, theirs):
        assert ours.receive() == []
        for i in range(3):
            ours.send(Count(i))
        assert theirs.receive() == []  # not before the flush
        ours.flush()
        assert take(theirs, 3) == [Count(0), Count(1), Count(2)]
        theirs.send(Note("back"))
        theirs.flush()
        assert take(ours) == [Note("back")]
        assert not ours.has_unsent
    assert listener.num_refused == 0


def test_it_listens_on_this_machine_only_and_leaves_no_file() -> None:
    with listening() as local, listening() as other, listening(is_local=False) as loopback:
        assert local.address.startswith("unix:kvsim-")  # a name without a file
        assert loopback.address.startswith("tcp:127.0.0.1:")
        assert local.address != other.address


def test_one_message_encoded_once_goes_to_every_channel() -> None:
    with listening() as listener, connected(listener) as (a, b), connected(listener) as (c, d):
        encoded = a.encode(Note("all"))
        for channel in (a, c):
            channel.post(encoded)
            channel.flush()
        assert take(b) == take(d) == [Note("all")]


def test_a_flush_never_waits_for_an_end_that_does_not_read() -> None:
    with listening() as listener, connected(listener) as (ours, theirs):
        sent = [Note("x" * 100_000) for _ in range(50)]  # far more than the system buffers
        for each in sent:
            ours.send(each)
        ours.flush()
        assert ours.has_unsent
        taken: list[Message] = []
        while len(taken) < len(sent):
            taken += theirs.receive()
            ours.flush()
        assert taken == sent


def test_a_turn_that_is_too_long_for_a_frame_takes_several() -> None:
    with (
        listening(max_frame_bytes=100) as listener,
        connected(listener, max_frame_bytes=100) as (ours, theirs),
    ):
        sent: list[Message] = [Note("x" * 40) for _ in range(20)]
        for each in sent:
            ours.send(each)
        ours.flush()
        assert take(theirs, 20) == sent
        ours.send(Note("x" * 101))
        with pytest.raises(ChannelError, match="at most 100 go into a frame"):
            ours.flush()


def test_what_was_sent_before_the_end_is_not_lost() -> None:
    with listening() as listener, connected(listener) as (ours, theirs):
        theirs.send(Note("last words"))
        theirs.flush()
        theirs.close()
        theirs.close()
        assert take(ours) == [Note("last words")]
        for _ in range(2):
            with pytest.raises(ChannelClosedError):
                ours.receive()
        ours.send(Note("anybody?"))
        with pytest.raises(ChannelClosedError):
            ours.flush()


def test_an_end_that_says_nothing_is_not_waited_for_longer_than_asked() -> None:
    with (
        listening() as listener,
        connected(listener) as (ours, _),
        pytest.raises(ChannelError, match="has not answered in time"),
    ):
        receive_one(ours, until=monotonic())


def test_a_caller_with_another_key_is_refused_and_the_next_one_taken() -> None:
    with listening() as listener:
        refusals: list[str] = []

        def call() -> None:
            with pytest.raises(AuthenticationError) as caught:
                dial(listener.address, new_key(), codec())
            refusals.append(str(caught.value))

        thread = threading.Thread(target=call)
        thread.start()
        while not listener.num_refused:
            sleep_on(listener.waiting(), timeout_s=60)
            assert listener.accept() == []
        thread.join()
        assert refusals == ["the listener does not take our key"]
        with connected(listener) as (ours, theirs):
            theirs.send(Note("the right one"))
            theirs.flush()
            assert take(ours) == [Note("the right one")]


def stranger(listener: Listener[Message]) -> socket.socket:
    """Connect without a word."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect("\0" + listener.address.removeprefix("unix:"))
    return sock


def test_strangers_who_say_nothing_or_nonsense_hold_nobody_up() -> None:
    with listening(handshake_s=0.0) as listener:
        silent, loud, gone = (stranger(listener) for _ in range(3))
        loud.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        gone.close()
        while listener.num_refused < 3:
            listener.accept()
        silent.close()
        loud.close()
    with listening() as listener, stranger(listener), connected(listener) as (ours, theirs):
        ours.send(Count(1))
        ours.flush()
        assert take(theirs) == [Count(1)]


def test_a_listener_that_is_none_of_ours_gets_no_proof() -> None:
    with socket.socket(socket.AF_INET) as fake:
        fake.bind(("127.0.0.1", 0))
        fake.listen()
        seen: list[bytes] = []

        def serve() -> None:
            sock, _ = fake.accept()
            with sock:
                sock.sendall(b"220 mail.example ESMTP ready" + bytes(20))
                seen.append(sock.recv(100))

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(AuthenticationError, match="does not speak kvsim's protocol"):
            dial(f"tcp:127.0.0.1:{fake.getsockname()[1]}", KEY, codec())
        thread.join()
        assert seen == [b""]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("unix:kvsim-nobody", "no connection to unix:kvsim-nobody"),
        ("udp:127.0.0.1:5", "address must be unix:NAME or tcp:HOST:PORT, not 'udp:127.0.0.1:5'"),
        ("tcp:127.0.0.1:port", "address must be"),
        ("unix:", "address must be"),
    ],
)
def test_an_address_where_nobody_is_or_that_is_none_is_one_line(address: str, message: str) -> None:
    with pytest.raises(ChannelError, match=message):
        dial(address, KEY, codec())


def test_a_sleep_ends_when_something_comes_and_takes_many_descriptors() -> None:
    left, right = socket.socketpair()
    with left, right:
        sleep_on((left,), timeout_s=0.001)
        right.send(b"x")
        sleep_on((left,), (right,), timeout_s=None)
