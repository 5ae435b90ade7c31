"""From a Forward to what a rank has to do: which blocks hold what, and where tokens lie in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.backends.paddle.orders import Attends, Blocks, ForwardOrder, Slots
from kvsim.core.attempt import BlockLayout
from kvsim.cost import prefill_attention_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvsim.backends.faults import Fault
    from kvsim.backends.paddle.content import ContentSeeds
    from kvsim.core.ops import Forward, Member, Slice
    from kvsim.cost import CostModel
    from kvsim.types import BlockId, OpId, Request, RequestId

_FIRST_STEP: Final = 0


class _Work:
    """What an op writes, or what it reads, collected piece by piece."""

    def __init__(self, slots_per_block: int) -> None:
        self._slots_per_block = slots_per_block
        self._blocks: list[Blocks] = []
        self.slots: list[tuple[BlockId, int, int, int]] = []  # block id, seed, slot, step

    def add(self, table: Blocks, first: int, end: int) -> None:
        """Take the slots from `first` to before `end` of a table; whole blocks are kept as such."""
        size = self._slots_per_block
        first_whole, end_whole = -(-first // size), end // size
        if first_whole >= end_whole:
            self._add_slots(table, first, end)
            return
        self._add_slots(table, first, first_whole * size)
        self._blocks.append(Blocks(*(column[first_whole:end_whole] for column in table)))
        self._add_slots(table, end_whole * size, end)

    def _add_slots(self, table: Blocks, first: int, end: int) -> None:
        size = self._slots_per_block
        while first < end:
            index, until = first // size, min(end, (first // size + 1) * size)
            block_id, seed = int(table.block_ids[index]), int(table.seeds[index])
            self.slots += [(block_id, seed, at % size, _FIRST_STEP) for at in range(first, until)]
            first = until

    def take_blocks(self) -> Blocks:
        """Return the whole blocks."""
        return concatenated(self._blocks)

    def take_slots(self) -> Slots:
        """Return the slots in the order of their steps."""
        table = np.array(self.slots, np.int64).reshape(-1, 4)
        if len(table) and table[:, 3].any():
            table = table[np.argsort(table[:, 3], kind="stable")]
        return Slots(*(np.ascontiguousarray(column) for column in table.T))


class _Decoding:
    """A decoding request: its table with the content of each block, and where its next token lies.

    Kept, because most steps change none of it: `begun`, the blocks of the table that hold a token,
    which are the same until `begun_until`; and `next_write_at`. Both are positions in the table.
    """

    def __init__(self, member: Member, layout: BlockLayout, seeds: ContentSeeds) -> None:
        self.request_id = member.request_id
        self.num_tokens = member.num_tokens
        self.position = layout.base + member.num_tokens - layout.num_input_tokens
        self.block_ids = list(member.block_ids)
        self._seeds = seeds
        self.table = table_of(member.request_id, self.block_ids, seeds)
        self.begun = concatenated(())
        self.begun_until = 0
        self.next_write_at = -1

    def grow(self, block_ids: Sequence[BlockId]) -> None:
        """Append blocks to the table."""
        self.block_ids += block_ids
        self.table = table_of(self.request_id, self.block_ids, self._seeds)


class ForwardPlanner:
    """Follows the batch of one instance by its differences, and spells each Forward out.

    A block has `slots_per_block` slots of storage, whatever number of tokens it stands for. Token t
    of its `block_size` lies in the slots from `t * slots / block_size`, rounded down, to
    `(t + 1) * slots / block_size`, rounded up. A slot that several tokens share is written with the
    first of them, so the tokens from a to before b of a table bring the slots from
    `a * slots / block_size` to before `b * slots / block_size`, both rounded up.

    Parameters
    ----------
    requests
        By request id.
    seeds
        The content of their blocks.
    block_size
        Tokens of a block.
    slots_per_block
        Tokens of storage in a block.
    step_ends
        Gives the end of each step of a Forward in nanoseconds after its start; see `step_ends`.
    has_attention
        Whether orders name the tables that are attended to: of a prompt's piece up to its last
        token, of a decoding request up to the token before the first step.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        seeds: ContentSeeds,
        *,
        block_size: int,
        slots_per_block: int,
        step_ends: Callable[[Forward], tuple[int, ...]],
        has_attention: bool = False,
    ) -> None:
        self._has_attention = has_attention
        self._requests = requests
        self._seeds = seeds
        self._block_size = block_size
        self._slots_per_block = slots_per_block
        self._step_ends = step_ends
        self._members: dict[RequestId, _Decoding] = {}

    def plan(
        self, forward: Forward, *, after: tuple[OpId, ...], faults: tuple[Fault | None, ...]
    ) -> ForwardOrder:
        """Take the difference of the next Forward and return what the ranks have to do for it.

        To be called when the Forward before has ended and `advance` has been told of its steps.
        `after` are the ops that it waits for and that have not ended.
        """
        joined = self.take_difference(forward)
        writes, reads = _Work(self._slots_per_block), _Work(self._slots_per_block)
        peeks: list[Blocks] = []
        num_checked = 0
        for piece in forward.prefill:
            num_checked += self._add_slice(piece, writes, reads)
        for member in self._members.values():
            if member.request_id in joined:
                num_checked += self._read(member.request_id, member.table, member.num_tokens, reads)
            else:
                peeks.append(self._begun(member))
            if self._next_write_at(member) < member.position + forward.num_steps:
                self._decode(member, forward.num_steps, writes)
        return ForwardOrder(
            op_id=forward.op_id,
            after=after,
            gate=forward.gate,
            deadline_at=forward.deadline_at,
            step_ends_ns=self._step_ends(forward),
            writes=writes.take_blocks(),
            slot_writes=writes.take_slots(),
            reads=reads.take_blocks(),
            slot_reads=reads.take_slots(),
            peeks=concatenated(peeks),
            num_checked_blocks=num_checked,
            attends=self._attends(forward) if self._has_attention else None,
            faults=faults,
        )

    def take_difference(self, forward: Forward) -> set[RequestId]:
        """Follow who leaves, joins and grows; return those who joined.

        To be called for every Forward, in the order of their submission, also if it never runs.
        """
        for request_id in forward.left:
            self._members.pop(request_id, None)
        for member in forward.joined:
            self._members[member.request_id] = _Decoding(
                member, self._layout(member.request_id), self._seeds
            )
        for request_id, block_ids in forward.grown:
            self._members[request_id].grow(block_ids)
        return {member.request_id for member in forward.joined}

    def advance(self, steps_done: int) -> None:
        """Count the steps that the last Forward planned has done on all ranks."""
        for member in self._members.values():
            member.num_tokens += steps_done
            member.position += steps_done

    def _attends(self, forward: Forward) -> Attends:
        """Return the tables that the first step of a Forward attends to."""
        tables = [
            (
                piece.request_id,
                table_of(piece.request_id, piece.block_ids, self._seeds),
                piece.first_token + piece.num_tokens,
            )
            for piece in forward.prefill
        ]
        members = self._members.values()
        tables += [(each.request_id, each.table, each.num_tokens) for each in members]
        parts, filled, starts = [], [], [0]
        size = self._slots_per_block
        for request_id, table, num_tokens in tables:
            for first, end in self._spans(request_id, 0, num_tokens):
                indexes = np.arange(first // size, -(-end // size))
                parts.append(Blocks(*(column[indexes] for column in table)))
                filled.append(np.minimum(end - indexes * size, size))
            starts.append(sum(len(part) for part in filled))
        blocks = concatenated(parts)
        every = np.concatenate(filled) if filled else np.empty(0, np.int64)
        return Attends(blocks.block_ids, blocks.seeds, every, np.array(starts, np.int64))

    def _layout(self, request_id: RequestId) -> BlockLayout:
        return BlockLayout(self._requests[request_id], self._block_size)

    def _add_slice(self, piece: Slice, writes: _Work, reads: _Work) -> int:
        """Note what a slice writes and reads; return the number of blocks it reads."""
        table = table_of(piece.request_id, piece.block_ids, self._seeds)
        end = piece.first_token + piece.num_tokens
        if piece.writes:
            for first_slot, end_slot in self._spans(piece.request_id, piece.first_token, end):
                writes.add(table, first_slot, end_slot)
        # What it writes itself it reads too, but a check of that would compare it with itself.
        num_there = piece.first_token if piece.writes else end
        return self._read(piece.request_id, table, num_there, reads)

    def _read(self, request_id: RequestId, table: Blocks, num_tokens: int, reads: _Work) -> int:
        """Note all slots of the first `num_tokens` tokens; return the number of their blocks."""
        num_slots, num_blocks = self._slots_per_block, 0
        for first_slot, end_slot in self._spans(request_id, 0, num_tokens):
            reads.add(table, first_slot, end_slot)
            num_blocks += -(-end_slot // num_slots) - first_slot // num_slots
        return num_blocks

    def _begun(self, member: _Decoding) -> Blocks:
        if member.position > member.begun_until:
            num_blocks = -(-member.position // self._block_size)
            member.begun = Blocks(*(column[:num_blocks] for column in member.table))
            member.begun_until = num_blocks * self._block_size
        return member.begun

    def _next_write_at(self, member: _Decoding) -> int:
        """Return the position of the next token that lies in a slot of its own."""
        if member.position > member.next_write_at:
            size, num_slots = self._block_size, self._slots_per_block
            next_slot = -(-member.position * num_slots // size)
            member.next_write_at = next_slot * size // num_slots
        return member.next_write_at

    def _decode(self, member: _Decoding, num_steps: int, writes: _Work) -> None:
        """Note the slots that a decoding request writes, each with the step that reaches it."""
        size, num_slots, at = self._block_size, self._slots_per_block, member.position
        seeds = member.table.seeds
        for slot in range(-(-at * num_slots // size), -(-(at + num_steps) * num_slots // size)):
            index = slot // num_slots
            step = slot * size // num_slots - at  # of the first token that lies in the slot
            writes.slots.append(
                (member.block_ids[index], int(seeds[index]), slot % num_slots, step)
            )

    def _spans(self, request_id: RequestId, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield (first, end) of the slots, counted through the table, that some tokens bring."""
        layout = self._layout(request_id)
        num_input, shift = layout.num_input_tokens, layout.base - layout.num_input_tokens
        spans = [(first, end)]
        if shift:  # output tokens begin in a block of their own
            spans = [(first, min(end, num_input)), (max(first, num_input) + shift, end + shift)]
        size, num_slots = self._block_size, self._slots_per_block
        for start, stop in spans:
            if start < stop:
                yield -(-start * num_slots // size), -(-stop * num_slots // size)


def table_of(request_id: RequestId, block_ids: Sequence[BlockId], seeds: ContentSeeds) -> Blocks:
    """Return the blocks of a request's table with their content."""
    return Blocks(np.array(block_ids, np.int64), seeds.of_blocks(request_id, len(block_ids)))


def concatenated(parts: Sequence[Blocks]) -> Blocks:
    """Return the blocks of all parts, one after another."""
    if not parts:
        return Blocks(np.empty(0, np.int64), np.empty(0, np.int64))
    block_ids, seeds = zip(*parts, strict=True)
    return Blocks(np.concatenate(block_ids), np.concatenate(seeds))


def step_ends(forward: Forward, cost: CostModel, *, time_scale: float) -> tuple[int, ...]:
    """Return the end of each step in nanoseconds after the start, by a cost model."""
    num_tokens = attention_tokens = 0
    for piece in forward.prefill:
        num_tokens += piece.num_tokens
        attention_tokens += prefill_attention_tokens(piece.first_token, piece.num_tokens)
    return tuple(
        round(
            cost.forward_ns(
                num_tokens,
                attention_tokens,
                forward.num_decodes,
                forward.context_tokens,
                num_steps,
            )
            / time_scale
        )
        for num_steps in range(1, forward.num_steps + 1)
    )
