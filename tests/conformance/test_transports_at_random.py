"""Random writes, cancels, short deadlines and connections that go and come, over each medium."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from kvsim.backends.transports import TRANSPORTS, find_transport
from kvsim.backends.transports.ports import (
    Arrived,
    Connected,
    ConnectFailed,
    PeerLost,
    WriteDone,
    WriteFailed,
    WriteSettled,
)
from kvsim.testing.transports.contract import Sentence
from kvsim.testing.transports.stage import LONG_NS, NUM_BYTES, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.backends.transports.memory import Bytes
    from kvsim.testing.transports.stage import Side

SLOT_BYTES: Final = 4096
NUM_SLOTS: Final = NUM_BYTES // SLOT_BYTES  # 256: each write has slots of its own


def play(name: str, seed: int, num_writes: int) -> Counter[str]:
    """Write to two peers at random; check every promise; return how writes have ended."""
    rng = random.Random(seed)
    with ExitStack() as closing:
        stage = Stage(name, 30.0, closing)
        one, *peers = (stage.side() for _ in range(3))
        blank = {peer.peer_id: peer.bytes().copy() for peer in peers}
        for peer in peers:
            one.connect(peer)
        slots = [(peer, slot) for peer in peers for slot in range(0, NUM_SLOTS, 2)]
        rng.shuffle(slots)
        written = {}
        for peer, slot in slots[:num_writes]:
            start = slot * SLOT_BYTES
            lengths = [rng.randrange(0, SLOT_BYTES) for _ in range(2)]
            pieces = [(start + i, start + i * SLOT_BYTES, lengths[i]) for i in range(2)]
            timeout_ns = rng.choice([LONG_NS, LONG_NS, LONG_NS, rng.randrange(1, 10**6)])
            tag = rng.choice([None, slot.to_bytes(2, "big")])
            write_id = one.write(peer.peer_id, pieces, tag=tag, timeout_ns=timeout_ns)
            written[write_id] = (peer, pieces, tag)
            match rng.randrange(12):
                case 0:
                    one.endpoint.cancel(rng.choice(list(written)))
                case 1:
                    one.endpoint.flush(peer.peer_id)
                case 2:
                    one.look()
                case 3:
                    one.endpoint.disconnect(peer.peer_id)
                    one.endpoint.connect(peer.peer_id, peer.description)
        ends = {write_id: one.settle(write_id) for write_id in written}
        for peer in peers:  # what comes, has come
            one.endpoint.connect(peer.peer_id, peer.description)
            one.endpoint.flush(peer.peer_id)
            one.done(one.write(peer.peer_id, [], tag=b"end"))
            last = Arrived(one.peer_id, b"end")
            peer.wait_for(lambda e, a=last: e == a, Sentence.TAG_ALONE, "the last tag is missing")  # type: ignore[misc]
        check_ends(one.told, written.keys())
        for write_id, (peer, pieces, tag) in written.items():
            is_done = isinstance(ends[write_id], WriteDone)
            check_bytes(one, peer, blank[peer.peer_id], pieces, is_done=is_done)
            if is_done and tag is not None:
                assert peer.told.count(Arrived(one.peer_id, tag)) == 1
        return Counter(
            end.reason.value if isinstance(end, WriteFailed) else "done" for end in ends.values()
        )


def check_bytes(
    one: Side, peer: Side, blank: Bytes, pieces: list[tuple[int, int, int]], *, is_done: bool
) -> None:
    """Of a write that is done all is there; of another each byte is, or is not: nothing else."""
    for source, target, length in pieces:
        found = peer.bytes()[target : target + length].tobytes()
        sent = one.bytes()[source : source + length].tobytes()
        before = blank[target : target + length].tobytes()
        assert found == sent or not is_done
        assert all(a in {b, c} for a, b, c in zip(found, sent, before, strict=True))


def check_ends(told: Sequence[object], write_ids: object) -> None:
    """Each write has one end, and one settlement if that was not the last word."""
    ends = Counter(e.write_id for e in told if isinstance(e, WriteDone | WriteFailed))
    assert set(ends.values()) == {1}
    settled = Counter(e.write_id for e in told if isinstance(e, WriteSettled))
    open_ends = Counter(e.write_id for e in told if isinstance(e, WriteFailed) and not e.is_settled)
    assert settled == open_ends
    kinds = WriteDone | WriteFailed | WriteSettled | Connected | ConnectFailed | PeerLost
    assert [e for e in told if not isinstance(e, kinds)] == []


@pytest.mark.parametrize("name", list(TRANSPORTS))
@pytest.mark.parametrize(
    ("seed", "num_writes"),
    [
        (0, 60),
        *(
            pytest.param(seed, 256, marks=pytest.mark.thorough, id=f"{seed}-256")
            for seed in range(1, 21)
        ),
    ],
)
def test_whatever_is_asked_each_write_has_its_end_and_each_byte_its_place(
    name: str, seed: int, num_writes: int
) -> None:
    missing = find_transport(name).find_missing()
    if missing is not None:
        pytest.skip(f"{name}: {missing}")
    ends = play(name, seed, num_writes)
    assert ends["done"]
