"""Checks of what goes wrong: peers that close, die or stand still, and what is left of an end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.backends.transports.pieces import Pieces
from kvsim.backends.transports.ports import (
    Arrived,
    PeerLost,
    Reason,
    WriteFailed,
)
from kvsim.backends.transports.remote import random_bytes
from kvsim.testing.backends.belongings import belongings
from kvsim.testing.transports.contract import Sentence, require
from kvsim.testing.transports.stage import LONG_NS, NUM_BYTES, SOON_NS, check

if TYPE_CHECKING:
    from kvsim.backends.transports.ports import PeerId
    from kvsim.testing.transports.stage import Side, Stage

_LARGE_BYTES: Final = 8 << 20
"""More than sockets hold: with a peer that stands still, it does not get through."""


def wait_for_loss(side: Side, peer: PeerId) -> None:
    """Wait until a side has been told that a peer is lost."""
    side.wait_for(
        lambda e: isinstance(e, PeerLost) and e.peer == peer,
        Sentence.PEER_LOST,
        f"{peer} is gone, and nobody says so",
    )


def both_sides_hear_of_a_lost_peer(stage: Stage) -> None:
    """Close the side that connected, or the other: its peer is told."""
    one, two = stage.pair()
    two.endpoint.close()
    wait_for_loss(one, two.peer_id)
    three, four = stage.pair()
    three.done(three.write(four.peer_id, [(0, 0, 8)], tag=b"here"))
    three.endpoint.close()
    wait_for_loss(four, three.peer_id)


def a_lost_peer_touches_no_other(stage: Stage) -> None:
    """Lose one of two peers: writes to the other are done, before and after."""
    one, two = stage.pair()
    three = stage.side()
    one.connect(three)
    two.endpoint.close()
    first = one.write(three.peer_id, [(0, 0, NUM_BYTES)])
    wait_for_loss(one, two.peer_id)
    one.done(first)
    one.done(one.write(three.peer_id, [(0, 0, NUM_BYTES)]))
    same = np.array_equal(one.bytes(), three.bytes())
    require(same, Sentence.OTHERS, "bytes for a peer are lost with another peer")


def a_peer_that_comes_back_is_welcome(stage: Stage) -> None:
    """Lose a peer, and connect to a new endpoint of the same rank."""
    one, two = stage.pair()
    two.endpoint.close()
    wait_for_loss(one, two.peer_id)
    again = stage.side(peer_id=two.peer_id)
    one.told.clear()
    one.connect(again)
    one.done(one.write(again.peer_id, [(0, 0, NUM_BYTES)], tag=b"again"))
    same = np.array_equal(one.bytes(), again.bytes())
    require(same, Sentence.OTHERS, "bytes for a peer that came back went somewhere else")


def a_peer_is_replaced_while_it_is_connected(stage: Stage) -> None:
    """Connect with another description of a connected peer: from then on writes go there."""
    one, two = stage.pair()
    again = stage.side(peer_id=two.peer_id)
    before = two.bytes().copy()
    one.told.clear()
    one.connect(again)
    one.done(one.write(again.peer_id, [(0, 0, NUM_BYTES)]))
    same = np.array_equal(before, two.bytes()) and np.array_equal(one.bytes(), again.bytes())
    require(same, Sentence.OTHERS, "bytes for a peer that started anew went to the old one")


def writes_to_a_disconnected_peer_fail(stage: Stage) -> None:
    """Disconnect while writes wait or are under way: they end, and the next connection is new."""
    one, two = stage.side(), stage.side()
    one.endpoint.connect(two.peer_id, two.description)
    waiting = one.write(two.peer_id, [(0, 0, 64)], tag=b"never")
    one.endpoint.disconnect(two.peer_id)
    end = one.settle(waiting)
    require(
        isinstance(end, WriteFailed) and end.reason is Reason.PEER_LOST,
        Sentence.DISCONNECT,
        f"a write to a disconnected peer ended in {end}",
    )
    one.told.clear()
    one.connect(two)
    under_way = one.write(two.peer_id, [(0, 0, NUM_BYTES)])
    one.endpoint.disconnect(two.peer_id)
    one.settle(under_way)
    end = one.settle(one.write(two.peer_id, [(0, 0, 64)]))
    require(isinstance(end, WriteFailed), Sentence.DISCONNECT, "it is connected still")
    one.told.clear()
    one.connect(two)
    one.done(one.write(two.peer_id, [(0, 0, NUM_BYTES)]))


def nothing_is_left_of_an_endpoint(stage: Stage) -> None:
    """Close when idle, in mid-write and while it connects, and count what is left."""
    warm_up = stage.pair()
    for side in warm_up:
        side.close()
    before = belongings()
    one, two = stage.pair()
    one.write(two.peer_id, [(0, 0, NUM_BYTES)] * 20, tag=b"under way")
    three = stage.side()
    two.endpoint.connect(three.peer_id, three.description)
    for side in (one, two, three):
        try:
            side.close()
            side.endpoint.close()
        except Exception as error:
            problem = f"a close raised {type(error).__name__}: {error}"
            require(condition=False, sentence=Sentence.CLOSE_AGAIN, problem=problem)
    left = belongings() - before
    names = ", ".join(sorted(name for name, _ in left))
    require(not left, Sentence.CLOSE, f"left behind: {names}")


def bytes_cross_processes(stage: Stage) -> None:
    """Write both ways between two processes, with tags."""
    one, other = stage.side(), stage.process()
    other.fill(5)
    one.connect(other)
    half = NUM_BYTES // 2
    one.done(one.write(other.peer_id, [(0, half, half)], tag=b"there"))
    require(
        other.read(half, half) == one.bytes()[:half].tobytes(),
        Sentence.WRITE,
        "bytes in another process are not as they should be",
    )
    require(
        other.poll(LONG_NS) == [Arrived(one.peer_id, b"there")],
        Sentence.TAG_AFTER_BYTES,
        "a tag has not come to another process",
    )
    other.connect(one.peer_id, one.description)
    other.poll(LONG_NS)
    other.write(one.peer_id, 1, Pieces.of([(0, half, half)]), timeout_ns=LONG_NS, tag=b"back")
    arrived = Arrived(other.peer_id, b"back")
    one.wait_for(lambda e: e == arrived, Sentence.TAG_AFTER_BYTES, "a tag is missing")
    require(
        one.bytes()[half:].tobytes() == random_bytes(5, NUM_BYTES)[:half],
        Sentence.TAG_AFTER_BYTES,
        "bytes of another process are not as they should be",
    )


def writes_to_a_killed_process_fail(stage: Stage) -> None:
    """Kill a peer in mid-write: told long before the deadline, and other peers go on."""
    one = stage.side(num_bytes=_LARGE_BYTES)
    other, third = stage.process(_LARGE_BYTES), stage.side(num_bytes=_LARGE_BYTES)
    one.connect(other)
    one.connect(third)
    other.freeze()
    ids = [one.write(other.peer_id, [(0, 0, _LARGE_BYTES)], tag=b"x") for _ in range(5)]
    one.look(SOON_NS)
    other.kill()
    for write_id in ids:
        end = one.settle(write_id)
        require(
            isinstance(end, WriteFailed) and end.reason in {Reason.PEER_LOST, Reason.WRITE},
            Sentence.PEER_LOST,
            f"a write to a killed process ended in {end}",
        )
    wait_for_loss(one, other.peer_id)
    one.done(one.write(third.peer_id, [(0, 0, _LARGE_BYTES)]))


def writes_to_a_frozen_process_time_out(stage: Stage) -> None:
    """Stop a peer in mid-write: told at the deadline, not before; then let it go on."""
    one = stage.side(num_bytes=_LARGE_BYTES)
    other, third = stage.process(_LARGE_BYTES), stage.side(num_bytes=_LARGE_BYTES)
    one.connect(other)
    one.connect(third)
    other.freeze()
    due_at = time.monotonic_ns() + SOON_NS
    ids = [
        one.write(other.peer_id, [(0, 0, _LARGE_BYTES)], tag=b"x", timeout_ns=SOON_NS)
        for _ in range(5)
    ]
    one.done(one.write(third.peer_id, [(0, 0, _LARGE_BYTES)]))
    for write_id in ids:
        end = one.end_of(write_id)
        require(
            isinstance(end, WriteFailed) and end.reason is Reason.TIMEOUT,
            Sentence.DEADLINE,
            f"a write to a process that stands still ended in {end}",
        )
        is_early = time.monotonic_ns() < due_at
        require(not is_early, Sentence.DEADLINE, "a write has timed out before its deadline")
    other.thaw()
    for write_id in ids:
        one.settle(write_id)
    one.told.clear()
    one.connect(other)
    one.done(one.write(other.peer_id, [(0, 0, _LARGE_BYTES)], tag=b"again"))
    require(
        other.read(0, NUM_BYTES) == one.bytes()[:NUM_BYTES].tobytes(),
        Sentence.OTHERS,
        "after it stood still, a process gets other bytes than were written",
    )


def a_killed_writer_is_missed(stage: Stage) -> None:
    """Kill the side that writes: the other is told, and what had come stays right."""
    one, other = stage.side(), stage.process()
    other.fill(6)
    other.connect(one.peer_id, one.description)
    other.poll(LONG_NS)
    other.write(one.peer_id, 1, Pieces.of([(0, 0, NUM_BYTES)]), timeout_ns=LONG_NS, tag=b"all")
    arrived = Arrived(other.peer_id, b"all")
    one.wait_for(lambda e: e == arrived, Sentence.TAG_AFTER_BYTES, "a tag is missing")
    other.kill()
    wait_for_loss(one, other.peer_id)
    require(
        one.bytes().tobytes() == random_bytes(6, NUM_BYTES),
        Sentence.PEER_LOST,
        "the bytes of a writer went with it",
    )


def nothing_is_left_of_a_lost_process(stage: Stage) -> None:
    """Kill a peer in mid-write, close, and count what is left."""
    warm_up = stage.pair()
    for side in warm_up:
        side.close()
    before = belongings()
    one, other = stage.side(num_bytes=_LARGE_BYTES), stage.process(_LARGE_BYTES)
    one.connect(other)
    other.freeze()
    write_id = one.write(other.peer_id, [(0, 0, _LARGE_BYTES)] * 3, tag=b"x", timeout_ns=SOON_NS)
    one.end_of(write_id)
    other.kill()
    other.close()
    one.close()
    left = belongings() - before
    names = ", ".join(sorted(name for name, _ in left))
    require(not left, Sentence.CLOSE, f"left behind: {names}")


CHECKS: Final = (
    check(both_sides_hear_of_a_lost_peer, Sentence.PEER_LOST),
    check(a_lost_peer_touches_no_other, Sentence.OTHERS),
    check(a_peer_that_comes_back_is_welcome, Sentence.OTHERS),
    check(a_peer_is_replaced_while_it_is_connected, Sentence.OTHERS),
    check(writes_to_a_disconnected_peer_fail, Sentence.DISCONNECT),
    check(nothing_is_left_of_an_endpoint, Sentence.CLOSE),
    check(bytes_cross_processes, Sentence.WRITE),
    check(writes_to_a_killed_process_fail, Sentence.PEER_LOST),
    check(writes_to_a_frozen_process_time_out, Sentence.DEADLINE),
    check(a_killed_writer_is_missed, Sentence.PEER_LOST),
    check(nothing_is_left_of_a_lost_process, Sentence.CLOSE),
)
