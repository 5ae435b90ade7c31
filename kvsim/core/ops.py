"""What the core asks of a backend, and what the backend answers.

`Forward`, `Transfer` and `Cancel` go out; `Completion` and `Settled` come back. All are frozen: a
worker in another process sees the same value. The contract is `kvsim.core.ports.Backend`.

They are named tuples rather than frozen dataclasses because a replay makes eight of them a
request: a Forward takes 0.34 us to make this way and 1.7 us the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from kvsim.types import BlockId, OpId, RequestId, TierIndex


class OpIds:
    """Gives the next op id whenever it is called; shared by all that make ops of one run."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: OpId = 0

    def __call__(self) -> OpId:
        """Return the next op id, from 1 on."""
        self.last += 1
        return self.last


class Gate(StrEnum):
    """How much of the ops named in `after` must be finished before an op may start."""

    LAYER = "layer"
    """Layer l may start when layer l of every op in `after` is finished."""
    OP = "op"
    """Nothing starts before all of every op in `after` is finished."""


class Outcome(StrEnum):
    """How an op ended, on all ranks and layers."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    """The deadline passed; a rank may still be reading or writing. A `Settled` follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A tier of an instance: where one side of a transfer lives."""

    instance: int
    tier: TierIndex


class Slice(NamedTuple):
    """A piece of one prompt, computed by a Forward.

    `block_ids` is the attempt's block table from its first block up to the last one this slice
    writes: the Forward reads all of it and writes what holds tokens
    `first_token <= t < first_token + num_tokens`. A fully matched prompt has one token left to
    compute, whose KV is there already: such a slice has `writes=False`.
    """

    request_id: RequestId
    attempt: int
    first_token: int
    num_tokens: int
    block_ids: tuple[BlockId, ...]
    writes: bool = True


class Member(NamedTuple):
    """A request that starts to decode: its table and the tokens whose KV it holds."""

    request_id: RequestId
    attempt: int
    num_tokens: int
    block_ids: tuple[BlockId, ...]


class Forward(NamedTuple):
    """One batch on one instance, `num_steps` equal steps of it.

    The decoding members are given as a difference to the instance's previous Forward: `joined`,
    `left` (request ids), and `grown` (request id, blocks appended to its table). `num_decodes`
    and `context_tokens` (tokens the decoding members attend to in the first step, together)
    follow from these and are carried so that nobody has to add them up again.
    `num_steps > 1` only when `prefill` is empty.
    """

    op_id: OpId
    instance: int
    num_steps: int
    prefill: tuple[Slice, ...]
    joined: tuple[Member, ...]
    left: tuple[RequestId, ...]
    grown: tuple[tuple[RequestId, tuple[BlockId, ...]], ...]
    num_decodes: int
    context_tokens: int
    after: tuple[OpId, ...] = ()
    gate: Gate = Gate.LAYER
    deadline_at: int | None = None


class Transfer(NamedTuple):
    """A batch of blocks copied from one place to another.

    The block `source_ids[i]` goes to the block `target_ids[i]`. `attempts` names the (request,
    attempt) pairs it serves, none for write-back. `releases_source`: it was issued in order to
    free the source blocks.
    """

    op_id: OpId
    source: Place
    target: Place
    source_ids: tuple[BlockId, ...]
    target_ids: tuple[BlockId, ...]
    attempts: tuple[tuple[RequestId, int], ...] = ()
    after: tuple[OpId, ...] = ()
    gate: Gate = Gate.OP
    releases_source: bool = False
    deadline_at: int | None = None

    @property
    def block_pairs(self) -> tuple[tuple[BlockId, BlockId], ...]:
        """(source block id, target block id) of every block."""
        return tuple(zip(self.source_ids, self.target_ids, strict=True))


class Cancel(NamedTuple):
    """Ask for an op to end early. It has no answer of its own; the op still gives its one."""

    op_id: OpId


Command: TypeAlias = Forward | Transfer | Cancel


class Completion(NamedTuple):
    """The one answer to an op, after all its ranks and layers have settled or timed out.

    Times are nanoseconds on the backend's clock. `steps_done` counts finished steps of a Forward
    (0 for a Transfer). `layers_finished_at` has one entry a layer where the backend was asked to
    record them, else it is empty. `reason` says why an op failed.
    """

    op_id: OpId
    outcome: Outcome
    started_at: int
    finished_at: int
    steps_done: int = 0
    layers_finished_at: tuple[int, ...] = ()
    reason: str = ""


class Settled(NamedTuple):
    """A timed-out op has come to rest on every rank (it answered, was killed or was fenced)."""

    op_id: OpId
    finished_at: int


Answer: TypeAlias = Completion | Settled
