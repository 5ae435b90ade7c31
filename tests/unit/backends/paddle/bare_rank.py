"""A worker process on memory of numpy's (so there in no time), that misbehaves as it is told.

`python -m tests.unit.backends.paddle.bare_rank [MODE [RANK]]`: the mode is that of all ranks, or of
one. Whatever it does, it does to itself: the controller is the one under test.
"""

from __future__ import annotations

import resource
import sys
import threading
from time import monotonic_ns, sleep
from typing import TYPE_CHECKING

from kvsim.backends.control import Codec, dial, new_key, take_invitation
from kvsim.backends.control.framing import FrameWriter
from kvsim.backends.paddle import rank_main
from kvsim.backends.paddle.copier import DONE, CopyError, HostCopier
from kvsim.backends.paddle.memory import RankMemory
from kvsim.backends.paddle.orders import RankDone
from kvsim.backends.paddle.wire import HelloMessage, ToWorker
from kvsim.core.ops import Place
from tests.unit.backends.paddle.bits import Arena

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.paddle.allotment import RankPlan
    from kvsim.backends.paddle.copier import Copy, Rows
    from kvsim.backends.paddle.orders import Acknowledgement
    from kvsim.backends.region import Region

NUM_GOOD = 5  # acknowledgements, frames or copies before a fault


class BadCopier:
    """Copies, but for every fifth copy from pool to pool, which goes wrong in its way."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._copier = HostCopier()
        self._num_copies = 0

    def copy(
        self,
        source: Region,
        source_rows: Rows | None,
        target: Region,
        target_rows: Rows | None,
        *,
        num_rows: int,
        row_bytes: int,
    ) -> None:
        """Copy."""
        self.start(source, source_rows, target, target_rows, num_rows=num_rows, row_bytes=row_bytes)

    def start(
        self,
        source: Region,
        source_rows: Rows | None,
        target: Region,
        target_rows: Rows | None,
        *,
        num_rows: int,
        row_bytes: int,
    ) -> Copy:
        """Copy, or go wrong."""
        if source_rows is not None and target_rows is not None:
            self._num_copies += 1
            if not self._num_copies % NUM_GOOD:
                self._go_wrong()
        self._copier.copy(
            source, source_rows, target, target_rows, num_rows=num_rows, row_bytes=row_bytes
        )

        return DONE

    def drain(self) -> None:
        """Do nothing: all that is copied is copied at once."""

    def close(self) -> None:
        """Do nothing."""

    def _go_wrong(self) -> None:
        if self._mode == "fails":
            raise CopyError("the copy failed (as the test wants it)")
        if self._mode == "bug":
            raise ZeroDivisionError("a bug")
        if self._mode == "slow":
            sleep(0.05)
        if self._mode == "stuck":
            threading.Event().wait()


class ClaimingMemory(RankMemory):
    """Says that its pools are as they were asked for, whatever they are."""

    claimed: dict[Place, int]

    @property
    def num_blocks(self) -> dict[Place, int]:
        """What was asked for."""
        return self.claimed


def new_memory(mode: str, plan: RankPlan) -> RankMemory:
    """Make the pools of a rank out of numpy's memory."""
    if mode == "no-memory":
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        Arena(64 << 30)
    divisor = 4 if mode in {"small", "claims"} else 1
    sizes = {place: num // divisor for place, num in plan.sizes.items()}
    memory = ClaimingMemory(
        rank=plan.worker.rank,
        shape=plan.shape,
        gpu=Place(instance=plan.worker.instance, tier=0),
        pools={place: Arena(num * plan.shape.block_bytes) for place, num in sizes.items()},
        copier=BadCopier(mode),
    )
    memory.claimed = plan.sizes if mode == "claims" else sizes
    return memory


def spoil_frames(change: Callable[[bytes], bytes]) -> None:
    """Change every frame that is sent after the first few."""
    seal, num_sealed = FrameWriter.seal, 0

    def spoiled(self: FrameWriter, payload: bytes) -> bytes:
        nonlocal num_sealed
        num_sealed += 1
        frame = seal(self, payload)
        return change(frame) if num_sealed > NUM_GOOD else frame

    FrameWriter.seal = spoiled  # type: ignore[method-assign]


def spoil_acknowledgements(change: Callable[[RankDone], list[RankDone]]) -> None:
    """Change every acknowledgement after the first few."""
    tell, num_told = rank_main.Port.tell, 0

    def spoiled(self: rank_main.Port, said: Acknowledgement) -> None:
        nonlocal num_told
        num_told += 1
        is_spoiled = isinstance(said, RankDone) and num_told > NUM_GOOD
        for each in change(said) if is_spoiled and isinstance(said, RankDone) else [said]:
            tell(self, each)

    rank_main.Port.tell = spoiled  # type: ignore[method-assign]


def spoil_encoding() -> None:
    """Send what is no message, well sealed."""
    encode, num_encoded = Codec.encode, 0

    def spoiled(self: Codec[ToWorker], message: object) -> bytes:
        nonlocal num_encoded
        num_encoded += 1
        return b"\xc1" if num_encoded > NUM_GOOD else encode(self, message)

    Codec.encode = spoiled  # type: ignore[method-assign, assignment]


def misbehave_at_start(mode: str) -> None:
    """Never get as far as to be ready."""
    if mode == "dies":
        sys.exit("no such library")
    invitation = take_invitation()
    codec: Codec[ToWorker] = Codec(ToWorker)
    if mode == "wrong-key":
        dial(invitation.address, new_key(), codec)
    if mode == "other-clock":
        channel = dial(invitation.address, invitation.key, codec)
        channel.send(HelloMessage(invitation.index, monotonic_ns() + 3_600 * 10**9))
        channel.flush()
    threading.Event().wait()  # "silent", and after the above


def main() -> None:
    """Work, in the way that the command line says."""
    mode, which = (*sys.argv[1:], *("", "all")[len(sys.argv) - 1 :])
    if mode in {"dies", "wrong-key", "other-clock", "silent"}:
        misbehave_at_start(mode)
    elif mode == "corrupted":
        spoil_frames(lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]))
    elif mode == "frame-twice":
        spoil_frames(lambda frame: frame + frame)
    elif mode == "twice":
        spoil_acknowledgements(lambda said: [said, said])
    elif mode == "unasked":
        spoil_acknowledgements(lambda said: [said._replace(op_id=said.op_id + 1000)])
    elif mode == "other-rank":
        spoil_acknowledgements(lambda said: [said._replace(rank=said.rank + 1)])
    elif mode == "garbage":
        spoil_encoding()
    rank_main.serve(
        lambda plan: new_memory(mode if which in {"all", str(plan.worker.rank)} else "", plan)
    )


if __name__ == "__main__":
    main()
