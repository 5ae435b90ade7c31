"""Checks within one process: what arrives, in which order, and what is refused."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.backends.transports import open_transport
from kvsim.backends.transports.pieces import Pieces
from kvsim.backends.transports.ports import (
    KEY_BYTES,
    MAX_DESCRIPTION_BYTES,
    MAX_TAG_BYTES,
    Arrived,
    Connected,
    EndpointConfig,
    PieceError,
    Reason,
    WriteDone,
    WriteFailed,
    WriteSettled,
)
from kvsim.errors import ConfigError, MisuseError
from kvsim.testing.transports.contract import Sentence, require
from kvsim.testing.transports.stage import LONG_NS, NUM_BYTES, SOON_NS, check, refused

if TYPE_CHECKING:
    from kvsim.testing.transports.stage import Side, Stage


def a_description_is_short_and_holds_no_key(stage: Stage) -> None:
    """Look at what travels over the control plane: bounded, and it tells nobody the key."""
    description = stage.side().description
    seen = f"a description has {len(description)} bytes"
    require(0 < len(description) <= MAX_DESCRIPTION_BYTES, Sentence.DESCRIPTION, seen)
    require(stage.key not in description, Sentence.DESCRIPTION, "a description holds the key")


def bytes_land_where_they_belong(stage: Stage) -> None:
    """Write pieces of odd lengths at odd offsets, few and many, and not a byte beside them."""
    one, two = stage.pair()
    rng = np.random.default_rng(7)
    for num_pieces, longest in ((1, NUM_BYTES), (1, 1), (40, 9_000), (900, 700)):
        # Targets in slots of their own, so that they do not overlap.
        slot = NUM_BYTES // num_pieces
        lengths = rng.integers(0, min(longest, slot) + 1, num_pieces)
        sources = [int(rng.integers(0, NUM_BYTES - length + 1)) for length in lengths]
        targets = rng.permutation(num_pieces) * slot
        table = [(s, int(t), int(n)) for s, t, n in zip(sources, targets, lengths, strict=True)]
        expected = two.bytes().copy()
        for source, target, length in table:
            expected[target : target + length] = one.bytes()[source : source + length]
        one.done(one.write(two.peer_id, table))
        wrong = int((two.bytes() != expected).sum())
        require(
            wrong == 0,
            Sentence.WRITE,
            f"a write of {num_pieces} pieces is done, and {wrong} bytes of the region are not as"
            " they should be",
        )


def a_tag_comes_after_its_bytes(stage: Stage) -> None:
    """Look at the memory whenever a tag is told: the bytes of its write are there."""
    one, two = stage.pair()
    step = NUM_BYTES // 16
    tags = {bytes([index]) * MAX_TAG_BYTES: index for index in range(16)}
    for tag, index in tags.items():
        one.write(two.peer_id, [(index * step, index * step, step)], tag=tag)
    for tag, index in tags.items():
        arrived = Arrived(one.peer_id, tag)
        two.wait_for(lambda e, a=arrived: e == a, Sentence.TAG_AFTER_BYTES, "a tag is missing")  # type: ignore[misc]
        part = slice(index * step, (index + 1) * step)
        require(
            np.array_equal(one.bytes()[part], two.bytes()[part]),
            Sentence.TAG_AFTER_BYTES,
            f"tag {index} was told before the bytes of its write were there",
        )


def a_tag_goes_without_bytes(stage: Stage) -> None:
    """Send a word to the peer without bytes, also an empty one."""
    one, two = stage.pair()
    for tag in (b"done", b""):
        one.done(one.write(two.peer_id, [], tag=tag))
        arrived = Arrived(one.peer_id, tag)
        two.wait_for(lambda e, a=arrived: e == a, Sentence.TAG_ALONE, "a tag is missing")  # type: ignore[misc]


def a_write_has_one_end(stage: Stage) -> None:
    """Write much, with and without tags: each write ends once, each tag is told once."""
    one, two = stage.pair()
    size = NUM_BYTES // 200
    ids = [
        one.write(
            two.peer_id, [(i * size, i * size, size)], tag=None if i % 3 else i.to_bytes(4, "big")
        )
        for i in range(200)
    ]
    for write_id in ids:
        one.done(write_id)
    ask(one, two)
    ends = [e.write_id for e in one.told if isinstance(e, WriteDone | WriteFailed)]
    own = sorted(each for each in ends if each in ids)  # the last one asked
    require(own == ids, Sentence.ONE_END, "not every write has one end")
    tags = [e.tag for e in two.told if isinstance(e, Arrived)]
    expected = [i.to_bytes(4, "big") for i in range(0, 200, 3)]
    require(sorted(tags) == expected, Sentence.ONE_END, "not every tag was told once")


def ask(one: Side, two: Side) -> None:
    """Wait for what may still come: a write that begins after all else and takes its way."""
    one.endpoint.flush(two.peer_id)
    one.done(one.write(two.peer_id, [], tag=b"ask"))
    arrived = Arrived(one.peer_id, b"ask")
    two.wait_for(lambda e: e == arrived, Sentence.TAG_ALONE, "a tag is missing")
    two.told.remove(arrived)
    one.look()


def whoever_waits_is_notified(stage: Stage) -> None:
    """Wait for the notice, and only then look: at an end, at a tag, and at a connection."""
    one, two = stage.side(), stage.side()
    one.endpoint.connect(two.peer_id, two.description)
    for turn in range(3):
        expected: list[tuple[Side, str]] = [(one, "Connected")]
        if turn:
            one.write(two.peer_id, [(0, 0, 64)], tag=b"look")
            expected = [(one, "WriteDone"), (two, "Arrived")]
        for side, name in expected:
            told: list[str] = []
            while name not in told:
                require(side.wait_for_notice(), Sentence.NOTIFY, f"nobody was told of a {name}")
                told += [type(event).__name__ for event in side.look()]


def nothing_to_write_is_done(stage: Stage) -> None:
    """Write no pieces, or empty ones, and no tag: done, also to a peer that nobody knows."""
    one, two = stage.side(), stage.side()
    for table in ([], [(5, 5, 0), (0, 0, 0)], [(NUM_BYTES, NUM_BYTES, 0)]):
        write_id = one.write(two.peer_id, table)
        require(
            one.look() == [WriteDone(write_id)],
            Sentence.EMPTY,
            f"a write of {len(table)} empty pieces is not done at once",
        )


def a_write_waits_for_its_connection(stage: Stage) -> None:
    """Write right after `connect`: it is done once the connection is there."""
    one, two = stage.side(), stage.side()
    one.endpoint.connect(two.peer_id, two.description)
    write_id = one.write(two.peer_id, [(0, 8, 64)], tag=b"first")
    end = one.end_of(write_id)
    require(isinstance(end, WriteDone), Sentence.WAITS, f"it ended before its connection: {end}")


def a_write_to_nobody_fails(stage: Stage) -> None:
    """Write without a `connect`, and after one that failed."""
    one, two, gone = stage.side(connect_timeout_ns=SOON_NS), stage.side(), stage.side()
    gone.endpoint.close()
    one.endpoint.connect(gone.peer_id, gone.description)
    one.wait_for(
        lambda e: type(e).__name__ == "ConnectFailed", Sentence.CONNECT, "no ConnectFailed"
    )
    for peer in (two, gone):
        end = one.end_of(one.write(peer.peer_id, [(0, 0, 64)]))
        require(
            isinstance(end, WriteFailed) and end.reason is Reason.CONNECT and end.is_settled,
            Sentence.NOT_CONNECTED,
            f"a write without a connection ended in {end}",
        )


def what_is_out_of_range_is_refused(stage: Stage) -> None:
    """Write beyond either region: that stops the whole write, before a byte of it."""
    one, two = stage.pair()
    before = two.bytes().copy()
    good = (0, 0, 100)
    beyond = [
        (NUM_BYTES - 5, 200, 6),
        (200, NUM_BYTES - 5, 6),
        (NUM_BYTES + 1, 0, 1),
        (0, 2**62, 2**62),
    ]
    for bad in beyond:
        with refused(PieceError, Sentence.RANGE, f"a piece {bad} of regions of {NUM_BYTES} bytes"):
            one.write(two.peer_id, [good, bad], tag=b"bad")
    ask(one, two)
    require(np.array_equal(before, two.bytes()), Sentence.RANGE, "a refused write has written")
    require(not two.told, Sentence.RANGE, f"a refused write is told: {two.told}")


def misuse_is_refused(stage: Stage) -> None:
    """Use ids that were used, long tags, and calls before `register` and after `close`."""
    one, two = stage.pair()
    far = time.monotonic_ns() + LONG_NS
    pieces = Pieces.of([(0, 0, 8)])
    one.done(one.write(two.peer_id, [(0, 0, 8)]))
    before = two.bytes().copy()
    with refused(MisuseError, Sentence.MISUSE, "a write with an id of before"):
        one.endpoint.write(two.peer_id, 1, Pieces.of([(9, 64, 8)]), deadline_at=far)
    with refused(MisuseError, Sentence.MISUSE, "a tag that is too long"):
        one.write(two.peer_id, [(9, 64, 8)], tag=b"x" * (MAX_TAG_BYTES + 1))
    ask(one, two)
    require(np.array_equal(before, two.bytes()), Sentence.MISUSE, "a refused write has written")
    with refused(MisuseError, Sentence.MISUSE, "a second register"):
        one.endpoint.register(one.memory.region, memory_file=one.memory.file)
    config = EndpointConfig(peer_id=one.peer_id, key=stage.key)
    fresh = open_transport(stage.transport, config)
    with refused(MisuseError, Sentence.MISUSE, "a write before register"):
        fresh.write(two.peer_id, 0, pieces, deadline_at=far)
    fresh.close()
    one.endpoint.close()
    with refused(MisuseError, Sentence.MISUSE, "a write after close"):
        one.endpoint.write(two.peer_id, 10**9, pieces, deadline_at=far)


def a_connection_is_made_once(stage: Stage) -> None:
    """Connect while a connection is under way, and when it is there."""
    one, two = stage.side(), stage.side()
    for _ in range(2):
        one.endpoint.connect(two.peer_id, two.description)
    expected = Connected(two.peer_id)
    one.wait_for(lambda e: e == expected, Sentence.CONNECT, "no Connected")
    ask(one, two)
    seen = one.told.count(expected)
    require(seen == 1, Sentence.CONNECT, f"{seen} answers to a connection under way")
    one.endpoint.connect(two.peer_id, two.description)
    require(
        one.look() == [expected], Sentence.CONNECTED_ALREADY, "no answer from what is remembered"
    )
    ask(one, two)


def a_wrong_description_is_refused(stage: Stage) -> None:
    """Connect with a description of another peer, of nothing, cut short, or too long."""
    one, two = stage.side(), stage.side()
    good = two.description
    for what, peer, description in (
        ("a description of another peer", one.peer_id, good),
        ("an empty description", two.peer_id, b""),
        ("half a description", two.peer_id, good[: len(good) // 2]),
        ("random bytes", two.peer_id, b"\x93" * 2_000),
        ("a long description", two.peer_id, good + b"\0" * MAX_DESCRIPTION_BYTES),
    ):
        with refused(ConfigError, Sentence.WRONG_DESCRIPTION, what):
            one.endpoint.connect(peer, description)


def without_the_key_nobody_gets_in(stage: Stage) -> None:
    """Connect with another key: an address is not enough, and others go on."""
    one, two = stage.pair()
    stranger = stage.side(key=secrets.token_bytes(KEY_BYTES), connect_timeout_ns=SOON_NS)
    before = two.bytes().copy()
    stranger.endpoint.connect(two.peer_id, two.description)
    write_id = stranger.write(two.peer_id, [(0, 0, NUM_BYTES)], tag=b"let me in")
    end = stranger.end_of(write_id)
    require(isinstance(end, WriteFailed), Sentence.KEY, "a stranger's write is done")
    ask(one, two)
    require(np.array_equal(before, two.bytes()), Sentence.KEY, "a stranger has written")
    require(not two.told, Sentence.KEY, f"a stranger is told of: {two.told}")


def a_flush_holds_later_writes_back(stage: Stage) -> None:
    """Send a tag behind a flush: it comes after the bytes of all writes before it."""
    one, two = stage.pair()
    for turn in range(3):
        one.bytes()[:] = turn + 1
        step = NUM_BYTES // 8
        ids = [one.write(two.peer_id, [(i * step, i * step, step)]) for i in range(8)]
        one.endpoint.flush(two.peer_id)
        last = one.write(two.peer_id, [], tag=bytes([turn]))
        one.done(last)
        ended = [e.write_id for e in one.told if isinstance(e, WriteDone)]
        require(
            set(ids) <= set(ended[: ended.index(last)]),
            Sentence.FLUSH,
            "a write behind a flush has ended before those before it",
        )
        arrived = Arrived(one.peer_id, bytes([turn]))
        two.wait_for(lambda e, a=arrived: e == a, Sentence.FLUSH, "a tag is missing")  # type: ignore[misc]
        require((two.bytes() == turn + 1).all(), Sentence.FLUSH, "bytes before a flush are missing")


def a_cancelled_write_ends_once(stage: Stage) -> None:
    """Cancel before the connection is there, under way, behind a flush, and after the end."""
    one, two = stage.side(), stage.side()
    one.endpoint.connect(two.peer_id, two.description)
    waiting = one.write(two.peer_id, [(0, 0, 64)], tag=b"never")
    one.endpoint.cancel(waiting)
    end = one.settle(waiting)
    require(
        isinstance(end, WriteFailed) and end.reason is Reason.CANCELLED,
        Sentence.CANCEL,
        f"a write that waited for its connection and was cancelled ended in {end}",
    )
    under_way = one.write(two.peer_id, [(0, 0, NUM_BYTES)])
    one.endpoint.flush(two.peer_id)
    behind = one.write(two.peer_id, [], tag=b"behind")
    for write_id in (behind, under_way, under_way, 12345):
        one.endpoint.cancel(write_id)
    one.settle(under_way)
    one.settle(behind)
    ask(one, two)
    for write_id in (waiting, under_way, behind):
        mine = [
            e
            for e in one.told
            if isinstance(e, WriteDone | WriteFailed | WriteSettled) and e.write_id == write_id
        ]
        first = mine[0]
        expected = 2 if isinstance(first, WriteFailed) and not first.is_settled else 1
        require(len(mine) == expected, Sentence.ONE_END, f"a cancelled write ended in {mine}")
    tags = [e.tag for e in two.told if isinstance(e, Arrived)]
    require(b"never" not in tags, Sentence.CANCEL, "a write that was never begun has arrived")


CHECKS: Final = (
    check(a_description_is_short_and_holds_no_key, Sentence.DESCRIPTION),
    check(bytes_land_where_they_belong, Sentence.WRITE),
    check(a_tag_comes_after_its_bytes, Sentence.TAG_AFTER_BYTES),
    check(a_tag_goes_without_bytes, Sentence.TAG_ALONE),
    check(a_write_has_one_end, Sentence.ONE_END),
    check(whoever_waits_is_notified, Sentence.NOTIFY),
    check(nothing_to_write_is_done, Sentence.EMPTY),
    check(a_write_waits_for_its_connection, Sentence.WAITS),
    check(a_write_to_nobody_fails, Sentence.NOT_CONNECTED),
    check(what_is_out_of_range_is_refused, Sentence.RANGE),
    check(misuse_is_refused, Sentence.MISUSE),
    check(a_connection_is_made_once, Sentence.CONNECT),
    check(a_wrong_description_is_refused, Sentence.WRONG_DESCRIPTION),
    check(without_the_key_nobody_gets_in, Sentence.KEY),
    check(a_flush_holds_later_writes_back, Sentence.FLUSH),
    check(a_cancelled_write_ends_once, Sentence.CANCEL),
)
