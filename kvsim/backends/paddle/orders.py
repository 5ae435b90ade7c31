"""What the controller tells a rank, and what the rank answers. All of it is plain values.

A rank knows no requests and no tables: an order names blocks, what belongs into them, and times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from kvsim.backends.faults import Fault
    from kvsim.backends.paddle.copier import Rows, Words
    from kvsim.core.ops import Gate, Outcome, Place
    from kvsim.types import OpId


_Item_co = TypeVar("_Item_co", covariant=True)


class Inbox(Protocol[_Item_co]):
    """Where a rank takes its orders from, and the controller what ranks say: a queue's one end."""

    def get(self, block: bool = ..., timeout: float | None = ...) -> _Item_co:  # noqa: FBT001
        """Return the next item, or raise `queue.Empty` if none has come in `timeout` seconds."""


class Blocks(NamedTuple):
    """Whole blocks of the GPU tier: `block_ids[i]` holds the content of `seeds[i]`."""

    block_ids: Rows
    seeds: Words


class Slots(NamedTuple):
    """Single tokens of storage: slot `slots[i]` of block `block_ids[i]`, of the content `seeds[i]`.

    `steps[i]` is the step of the op in which it is written, never falling; all 0 for reads.
    """

    block_ids: Rows
    seeds: Words
    slots: Rows
    steps: Rows


class Attends(NamedTuple):
    """The tables that requests attend to, one after another.

    Table r is `block_ids[starts[r]:starts[r + 1]]`; of a block the first `filled[i]` slots hold a
    token, at least one.
    """

    block_ids: Rows
    seeds: Words
    filled: Rows
    starts: Rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardOrder:
    """Compute: write, layer by layer, what belongs into the blocks, and check what is read.

    `step_ends_ns` has the end of each step, counted from the start. Steps after the first only
    write slots. `num_checked_blocks` are those of `reads`, and those of which it reads a part.
    Of the `peeks`, the blocks that requests attend to while they decode, the first slot of one
    layer is read: all of them in each step would take longer than all the rest, and whoever
    overwrites a block overwrites that slot too, now or in the next layers.
    `attends` is for a real attention step; None: there is none.
    `faults[rank]` is what goes wrong on a rank; empty: nothing does.
    """

    op_id: OpId
    after: tuple[OpId, ...]
    gate: Gate
    deadline_at: int | None
    step_ends_ns: tuple[int, ...]
    writes: Blocks
    slot_writes: Slots
    reads: Blocks
    slot_reads: Slots
    peeks: Blocks
    num_checked_blocks: int
    attends: Attends | None = None
    faults: tuple[Fault | None, ...] = ()

    def fault_of(self, rank: int) -> Fault | None:
        """Return what goes wrong on a rank."""
        return self.faults[rank] if self.faults else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TransferOrder:
    """Copy blocks, layer by layer."""

    op_id: OpId
    after: tuple[OpId, ...]
    gate: Gate
    deadline_at: int | None
    source: Place
    target: Place
    source_ids: Rows
    target_ids: Rows
    faults: tuple[Fault | None, ...] = ()

    def fault_of(self, rank: int) -> Fault | None:
        """Return what goes wrong on a rank."""
        return self.faults[rank] if self.faults else None


OpOrder: TypeAlias = ForwardOrder | TransferOrder
"""An op, as a rank has to carry it out."""


class Stop(NamedTuple):
    """End an op early: at its next step boundary, or between two layers if `at_once`."""

    op_id: OpId
    at_once: bool


class Forget(NamedTuple):
    """No order to come names this op."""

    op_id: OpId


class Close(NamedTuple):
    """Stop working."""


Order: TypeAlias = OpOrder | Stop | Forget | Close


class RankDone(NamedTuple):
    """A rank is through with an op and will not touch its blocks again.

    `rank` is the number of the rank among those of the backend. `outcome` is DONE, FAILED or
    CANCELLED. What an op has read says nothing unless it is DONE on all ranks: its blocks may have
    been taken from it. `layers_finished_at` has the time of each layer that was finished (of a run
    of several steps: of its last); one message an op, since nobody needs them earlier.
    """

    rank: int
    op_id: OpId
    outcome: Outcome
    started_at: int
    finished_at: int
    steps_done: int
    reason: str
    num_wrong_bytes: int
    first_wrong: str
    layers_finished_at: tuple[int, ...] = ()
    copy_ns: int = 0


class RankCrashed(NamedTuple):
    """A rank has stopped working because of a bug."""

    rank: int
    error: BaseException


class RankLost(NamedTuple):
    """A rank cannot be reached any more, or what it says makes no sense.

    `reason` is a line for people that names the rank.
    """

    rank: int
    reason: str


Acknowledgement: TypeAlias = RankDone | RankCrashed | RankLost
