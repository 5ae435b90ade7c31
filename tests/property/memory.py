"""A model of the memory that the ops touch: what each block holds, and who may be at it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kvsim.core.ops import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.core.attempt import Attempt
    from kvsim.core.ops import Place, Transfer
    from kvsim.types import BlockId, BlockKey, OpId

    Address: TypeAlias = tuple[int, BlockId]

TIERS_AN_INSTANCE = 4


def place_of(place: Place) -> int:
    """Return the number of a tier of an instance; of instance 0 it is that of the tier."""
    return place.instance * TIERS_AN_INSTANCE + place.tier


class Content(NamedTuple):
    """What a block holds: the key and the weights it was written for, and how many slots are."""

    key: BlockKey
    num_slots: int
    weight_version: int = 0


@dataclass(slots=True)
class Piece:
    """One attempt's share of a Forward: it computes `num_tokens` tokens from `first_token` on.

    `place` is the GPU of its instance.
    """

    attempt: Attempt
    first_token: int
    num_tokens: int
    table: tuple[BlockId, ...] = ()
    is_decode: bool = False
    writes: bool = True
    place: int = 0


@dataclass(slots=True)
class OpenOp:
    """An op that has not settled. `pieces` for a Forward, `transfer` for a Transfer."""

    op_id: OpId
    reads: set[Address]
    writes: set[Address]
    after: tuple[OpId, ...] = ()
    transfer: Transfer | None = None
    tags: dict[Address, Content | None] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    num_steps: int = 1
    is_timed_out: bool = False


def position_of(attempt: Attempt, token: int) -> int:
    """Return the slot of a token, counted from the first block of the table."""
    layout = attempt.layout
    if token < layout.num_input_tokens:
        return token
    return layout.base + token - layout.num_input_tokens


def expected_content(attempt: Attempt, num_tokens: int) -> list[Content]:
    """Return what the blocks of the attempt hold once its first `num_tokens` tokens are there."""
    size = attempt.layout.block_size
    slots: dict[int, int] = {}
    for token in range(num_tokens):
        block, slot = divmod(position_of(attempt, token), size)
        slots[block] = slot + 1
    request = attempt.request
    keys = [
        request.block_keys[i] if i < len(request.block_keys) else ("output", request.request_id, i)
        for i in slots
    ]
    version = attempt.weight_version
    return [Content(key, n, version) for key, n in zip(keys, slots.values(), strict=True)]


def num_full_slots(key: BlockKey, block_size: int) -> int:
    """Return how many slots a full block of this key has (a counted partial block has fewer)."""
    assert isinstance(key, tuple)
    return block_size if key[0] == "output" else key[1]


class Memory:
    """Block contents of every tier, and the open ops with what they read and write."""

    def __init__(self) -> None:
        self.content: dict[Address, Content] = {}
        self.open: dict[OpId, OpenOp] = {}
        self.outcome_of: dict[OpId, Outcome] = {}

    def start(self, op: OpenOp) -> None:
        """Issue an op. What it writes is garbage from now on; nobody else may be at it."""
        for other in self.open.values():
            clash = op.writes & (other.reads | other.writes)
            assert not clash, f"op {op.op_id} writes {clash}, which op {other.op_id} is using"
            clash = op.reads & other.writes
            allowed = other.op_id in op.after and not other.is_timed_out
            assert not clash or allowed, (
                f"op {op.op_id} reads {clash}, which op {other.op_id} writes, and does not wait"
            )
        self.open[op.op_id] = op
        if op.transfer is not None:
            # What an op before it still writes is not there yet.
            coming = set().union(*(self.open[b].writes for b in op.after if b in self.open))
            op.tags = {each: self.content.get(each) for each in op.reads - coming}
            for address in op.writes:
                self.content.pop(address, None)

    def start_transfer(self, transfer: Transfer) -> None:
        """Issue a Transfer."""
        pairs = transfer.block_pairs
        source, target = place_of(transfer.source), place_of(transfer.target)
        assert len(set(pairs)) == len(pairs) > 0
        self.start(
            OpenOp(
                transfer.op_id,
                reads={(source, a) for a, _ in pairs},
                writes={(target, b) for _, b in pairs},
                after=transfer.after,
                transfer=transfer,
            )
        )

    def finish(self, op_id: OpId, outcome: Outcome, steps_done: int = 0) -> None:
        """Take a Completion."""
        op = self.open[op_id]
        self.outcome_of[op_id] = outcome
        if outcome is Outcome.TIMED_OUT:
            op.is_timed_out = True
            return
        del self.open[op_id]
        if outcome is not Outcome.DONE:
            return
        if op.transfer is not None:
            now = {each: self.content.get(each) for each in op.reads}
            assert None not in now.values(), f"op {op_id} copied a block that holds nothing"
            assert op.tags.items() <= now.items(), f"the source of op {op_id} changed meanwhile"
            source, target = place_of(op.transfer.source), place_of(op.transfer.target)
            for a, b in op.transfer.block_pairs:
                self.content[target, b] = self.content[source, a]
        for piece in op.pieces:
            num_new = steps_done if piece.is_decode else piece.num_tokens
            self._compute(op_id, piece, num_new)

    def come_to_rest(self, op_id: OpId) -> None:
        """Take a Settled."""
        del self.open[op_id]

    def _compute(self, op_id: OpId, piece: Piece, num_new: int) -> None:
        """Read what a piece reads, check it, and write what it writes."""
        table = piece.table
        before = expected_content(piece.attempt, piece.first_token)
        for block_id, wanted in zip(table, before, strict=False):
            seen = self.content.get((piece.place, block_id))
            assert seen is not None, f"op {op_id} read a block that holds nothing"
            assert seen._replace(num_slots=0) == wanted._replace(num_slots=0), (
                f"op {op_id} read {seen} where {wanted} belongs"
            )
            assert seen.num_slots >= wanted.num_slots, f"op {op_id} read unwritten slots"
        if not piece.writes:
            return
        after = expected_content(piece.attempt, piece.first_token + num_new)
        for block_id, old, new in zip(table, [*before, *[None] * len(after)], after, strict=False):
            if old != new:
                self.content[piece.place, block_id] = new


def blocks_written(piece: Piece) -> Iterable[Address]:
    """Return the blocks that a piece writes."""
    if not piece.writes:
        return set()
    layout = piece.attempt.layout
    tokens = range(piece.first_token, piece.first_token + piece.num_tokens)
    blocks = {position_of(piece.attempt, t) // layout.block_size for t in tokens}
    return {(piece.place, piece.table[i]) for i in blocks}
