"""From a Forward to what a rank has to do: which blocks hold what, and where tokens lie in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.backends.paddle.orders import Blocks, ForwardOrder, Slots
from kvsim.core.attempt import BlockLayout
from kvsim.cost import prefill_attention_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvsim.backends.faults import Fault
    from kvsim.backends.paddle.content import ContentSeeds
    from kvsim.backends.paddle.copier import Rows, Words
    from kvsim.core.ops import Forward, Member, Slice
    from kvsim.cost import CostModel
    from kvsim.types import BlockId, OpId, Request, RequestId

_NO_STEP: Final = 0


class _Work:
    """Blocks and slots, collected one by one."""

    def __init__(self) -> None:
        self.block_ids: list[BlockId] = []
        self.seeds: list[int] = []
        self.slots: list[tuple[BlockId, int, int, int]] = []  # block id, seed, slot, step

    def add(self, block_id: BlockId, seed: int, slots: range, block_size: int, step: int) -> None:
        """Take a piece of a block; a whole one is kept as such."""
        if len(slots) == block_size:
            self.block_ids.append(block_id)
            self.seeds.append(seed)
        else:
            self.slots += [(block_id, seed, slot, step) for slot in slots]

    def take_blocks(self) -> Blocks:
        """Return the whole blocks."""
        block_ids = np.array(self.block_ids, np.int64)
        seeds = np.array(self.seeds, np.int64)
        return Blocks(block_ids, seeds)

    def take_slots(self) -> Slots:
        """Return the slots in the order of their steps."""
        self.slots.sort(key=lambda each: each[3])
        table = np.array(self.slots, np.int64).reshape(-1, 4)
        return Slots(*(np.ascontiguousarray(column) for column in table.T))


class _Decoding:
    """A decoding request: its table with the content of each block, and its tokens with KV."""

    def __init__(self, member: Member, layout: BlockLayout, seeds: ContentSeeds) -> None:
        self.request_id = member.request_id
        self.layout = layout
        self.table: list[BlockId] = []
        self.seeds = np.empty(0, np.int64)
        self.block_ids = np.empty(0, np.int64)
        self.num_tokens = member.num_tokens
        self._seeds_of = seeds
        self.grow(member.block_ids)

    def grow(self, block_ids: Sequence[BlockId]) -> None:
        """Append blocks to the table."""
        first = len(self.table)
        self.table += block_ids
        seed_of, request_id = self._seeds_of.of_block, self.request_id
        more = [seed_of(request_id, index) for index in range(first, len(self.table))]
        self.seeds = np.concatenate([self.seeds, np.array(more, np.int64)])
        self.block_ids = np.array(self.table, np.int64)

    def begun_blocks(self) -> tuple[Rows, Words]:
        """Return the blocks that hold a token, with their content."""
        num_blocks = self.layout.num_blocks(self.num_tokens)
        return self.block_ids[:num_blocks], self.seeds[:num_blocks]


class ForwardPlanner:
    """Follows the batch of one instance by its differences, and spells each Forward out.

    A block has `slots_per_block` slots of storage, whatever number of tokens it stands for: token
    t of its `block_size` covers the slots from `t * slots // block_size` to
    `(t + 1) * slots / block_size`, rounded up.

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
    """

    def __init__(
        self,
        requests: Sequence[Request],
        seeds: ContentSeeds,
        *,
        block_size: int,
        slots_per_block: int,
        step_ends: Callable[[Forward], tuple[int, ...]],
    ) -> None:
        self._requests = requests
        self._seeds = seeds
        self._block_size = block_size
        self._num_slots = slots_per_block
        self._step_ends = step_ends
        self._members: dict[RequestId, _Decoding] = {}

    def plan(
        self, forward: Forward, *, after: tuple[OpId, ...], faults: tuple[Fault | None, ...]
    ) -> ForwardOrder:
        """Take the difference of the next Forward and return what a rank has to do for it.

        `after` are the ops that it waits for and that have not ended.
        """
        joined = self.take_difference(forward)
        writes, reads = _Work(), _Work()
        peeks: list[tuple[Rows, Words]] = []
        num_checked = 0
        for piece in forward.prefill:
            num_checked += self._add_slice(piece, writes, reads)
        for member in self._members.values():
            if member.request_id in joined:
                num_checked += self._read(
                    member.request_id, member.layout, member.table, member.num_tokens, reads
                )
            else:
                peeks.append(member.begun_blocks())
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
            peeks=_concatenated(peeks),
            num_checked_blocks=num_checked,
            faults=faults,
        )

    def take_difference(self, forward: Forward) -> set[RequestId]:
        """Follow who joins, leaves and grows; return those who joined.

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

    def _layout(self, request_id: RequestId) -> BlockLayout:
        return BlockLayout(self._requests[request_id], self._block_size)

    def _add_slice(self, piece: Slice, writes: _Work, reads: _Work) -> int:
        """Note what a slice writes and reads; return the number of blocks it reads."""
        layout = self._layout(piece.request_id)
        end = piece.first_token + piece.num_tokens
        if piece.writes:
            for index, slots in self._pieces(layout, piece.first_token, end):
                seed = self._seeds.of_block(piece.request_id, index)
                writes.add(piece.block_ids[index], seed, slots, self._num_slots, _NO_STEP)
        # What it writes itself it reads too, but a check of that would compare it with itself.
        num_there = piece.first_token if piece.writes else end
        return self._read(piece.request_id, layout, piece.block_ids, num_there, reads)

    def _read(
        self,
        request_id: RequestId,
        layout: BlockLayout,
        table: Sequence[BlockId],
        num_tokens: int,
        reads: _Work,
    ) -> int:
        """Note all slots of the first `num_tokens` tokens; return the number of their blocks."""
        num_blocks = 0
        for index, slots in self._pieces(layout, 0, num_tokens):
            seed = self._seeds.of_block(request_id, index)
            reads.add(table[index], seed, slots, self._num_slots, _NO_STEP)
            num_blocks += 1
        return num_blocks

    def _decode(self, member: _Decoding, num_steps: int, writes: _Work) -> None:
        """Note the slots that a decoding request writes, each at the first step that reaches it."""
        size, num_slots, layout = self._block_size, self._num_slots, member.layout
        step = num_written = 0
        while step < num_steps:
            index, offset = divmod(_position(layout, member.num_tokens + step), size)
            seed = self._seeds.of_block(member.request_id, index)
            # Where tokens are smaller than slots, a step may touch one that is written already.
            first = max(offset * num_slots // size, num_written)
            last = -(-(offset + 1) * num_slots // size)
            block_id = member.table[index]
            writes.slots += [(block_id, seed, slot, step) for slot in range(first, last)]
            # On to the first token that reaches a slot beyond these, or to the next block.
            is_full = last == num_slots
            step += (size if is_full else last * size // num_slots) - offset
            num_written = 0 if is_full else last

    def _pieces(self, layout: BlockLayout, first: int, end: int) -> Iterator[tuple[int, range]]:
        """Yield (index of a block, its slots) for the tokens from `first` to `end`."""
        size, num_slots, num_input = self._block_size, self._num_slots, layout.num_input_tokens
        spans = [(first, end)]
        if layout.base > num_input:  # output tokens begin in a block of their own
            spans = [(first, min(end, num_input)), (max(first, num_input), end)]
        for start, stop in spans:
            if start >= stop:
                continue
            at, stop_at = _position(layout, start), _position(layout, stop - 1) + 1
            while at < stop_at:
                index, offset = divmod(at, size)
                until = min(stop_at - index * size, size)
                yield index, range(offset * num_slots // size, -(-until * num_slots // size))
                at = (index + 1) * size


def _concatenated(parts: Sequence[tuple[Rows, Words]]) -> Blocks:
    if not parts:
        return Blocks(np.empty(0, np.int64), np.empty(0, np.int64))
    block_ids, seeds = zip(*parts, strict=True)
    return Blocks(np.concatenate(block_ids), np.concatenate(seeds))


def _position(layout: BlockLayout, token: int) -> int:
    """Return where a token lies in its table (see `BlockLayout`)."""
    if token < layout.num_input_tokens:
        return token
    return layout.base + token - layout.num_input_tokens


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
