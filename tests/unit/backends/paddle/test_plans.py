"""Plans, against a brute force that follows single tokens and single slots of storage."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.paddle.content import ContentSeeds
from kvsim.backends.paddle.plans import ForwardPlanner, step_ends
from kvsim.core.attempt import BlockLayout
from kvsim.core.ops import Forward, Member, Slice
from kvsim.cost import LinearCost
from kvsim.testing import Prompt, make_request
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from kvsim.backends.paddle.orders import Blocks, ForwardOrder, Slots
    from kvsim.types import Request

Slot = tuple[int, int]  # block id, slot


def forward(
    op_id: int,
    *,
    num_steps: int = 1,
    prefill: tuple[Slice, ...] = (),
    joined: tuple[Member, ...] = (),
    left: tuple[int, ...] = (),
    grown: tuple[tuple[int, tuple[int, ...]], ...] = (),
    num_decodes: int = 0,
    context_tokens: int = 0,
) -> Forward:
    """Return a Forward."""
    return Forward(op_id, 0, num_steps, prefill, joined, left, grown, num_decodes, context_tokens)


def planner_for(requests: list[Request], block_size: int, num_slots: int) -> ForwardPlanner:
    """Return a planner whose steps take no time."""
    return ForwardPlanner(
        requests,
        ContentSeeds(requests),
        block_size=block_size,
        slots_per_block=num_slots,
        step_ends=lambda op: (0,) * op.num_steps,
    )


def in_order(whole: Blocks, single: Slots, num_slots: int) -> list[tuple[int, int, int, int]]:
    """Return (block id, slot, seed, step) of all that an order names."""
    named = [
        (block_id, slot, seed, 0)
        for block_id, seed in zip(whole.block_ids.tolist(), whole.seeds.tolist(), strict=True)
        for slot in range(num_slots)
    ]
    columns = (single.block_ids, single.slots, single.seeds, single.steps)
    assert single.steps.tolist() == sorted(single.steps.tolist()), "steps fall"
    return named + list(zip(*(column.tolist() for column in columns), strict=True))


class ByToken:
    """One request's storage, token by token."""

    def __init__(self, request: Request, block_size: int, num_slots: int) -> None:
        self.request = request
        self.layout = BlockLayout(request, block_size)
        self.block_size = block_size
        self.num_slots = num_slots
        num_blocks = self.layout.num_most_blocks
        # Any block ids will do, as long as they are nobody else's.
        self.table = [request.request_id * 1000 + 7 * i % 1000 for i in range(num_blocks)]
        self.seeds = ContentSeeds([request] * (request.request_id + 1)).of_blocks(
            request.request_id, num_blocks
        )
        self.written: set[Slot] = set()
        self.num_tokens = 0

    def slots_of(self, token: int) -> set[Slot]:
        """Return the storage of a token: all slots that it touches."""
        num_input = self.request.num_input_tokens
        at = token if token < num_input else self.layout.base + token - num_input
        index, offset = divmod(at, self.block_size)
        # Token t and slot s overlap where t/B < (s+1)/S and s/S < (t+1)/B.
        return {
            (self.table[index], slot)
            for slot in range(self.num_slots)
            if offset * self.num_slots < (slot + 1) * self.block_size
            and slot * self.block_size < (offset + 1) * self.num_slots
        }

    def compute(self, first: int, end: int) -> list[tuple[int, int, int, int]]:
        """Return (block id, slot, seed, step) of what tokens write; a slot with its first token."""
        rows = []
        seed_of = dict(zip(self.table, self.seeds.tolist(), strict=True))
        for step, token in enumerate(range(first, end)):
            new = self.slots_of(token) - self.written
            self.written |= new
            rows += [(block_id, slot, seed_of[block_id], step) for block_id, slot in sorted(new)]
        return rows

    def read(self, num_tokens: int) -> list[tuple[int, int, int, int]]:
        """Return (block id, slot, seed, 0) of what the first tokens lie in."""
        seed_of = dict(zip(self.table, self.seeds.tolist(), strict=True))
        there = {slot for token in range(num_tokens) for slot in self.slots_of(token)}
        return [(block_id, slot, seed_of[block_id], 0) for block_id, slot in sorted(there)]

    def num_blocks(self, num_tokens: int) -> int:
        """Return how many blocks the first tokens lie in."""
        return len({slot[0] for token in range(num_tokens) for slot in self.slots_of(token)})

    def begun(self, num_tokens: int) -> list[int]:
        """Return the blocks that hold one of the first tokens."""
        there = {slot[0] for token in range(num_tokens) for slot in self.slots_of(token)}
        return [block_id for block_id in self.table if block_id in there]

    def slice(self, first: int, end: int, *, writes: bool = True) -> Slice:
        """Return a slice of the prompt, as the scheduler makes it."""
        num_blocks = self.layout.num_blocks(end)
        return Slice(
            self.request.request_id, 0, first, end - first, tuple(self.table[:num_blocks]), writes
        )


def expect(
    order: ForwardOrder,
    num_slots: int,
    *,
    writes: list[tuple[int, int, int, int]],
    reads: list[tuple[int, int, int, int]],
) -> None:
    """Compare an order with what must be written, and read, in any order of slots."""
    assert Counter(in_order(order.writes, order.slot_writes, num_slots)) == Counter(writes)
    assert Counter(in_order(order.reads, order.slot_reads, num_slots)) == Counter(reads)


# Blocks with fewer tokens than slots, as many, and more, dividing each other or not.
SIZES = [(1, 4), (3, 4), (4, 4), (7, 4), (8, 4), (10, 4), (4, 16), (5, 3), (1, 1), (6, 1)]


@pytest.mark.parametrize("partial", list(PartialRule))
@pytest.mark.parametrize(("block_size", "num_slots"), SIZES)
@given(st.integers(0, 2**32))
def test_a_prompt_in_pieces_then_decoding_writes_each_slot_with_its_first_token(
    block_size: int, num_slots: int, partial: PartialRule, seed: int
) -> None:
    rng = Random(seed)
    prompt = Prompt((0,) * rng.randint(1, 3), rng.randint(1, block_size))
    num_output = rng.randint(2, 3 * block_size + 2)
    request = make_request(
        0, prompt, block_size=block_size, partial=partial, num_output_tokens=num_output
    )
    planner = planner_for([request], block_size, num_slots)
    naive = ByToken(request, block_size, num_slots)
    num_input, op_id = request.num_input_tokens, 0
    while naive.num_tokens < num_input:
        first = naive.num_tokens
        end = rng.randint(first + 1, num_input)
        order = planner.plan(
            forward(op_id, prefill=(naive.slice(first, end),)), after=(), faults=()
        )
        reads = naive.read(first)
        writes = [(*row[:3], 0) for row in naive.compute(first, end)]
        expect(order, num_slots, writes=writes, reads=reads)
        assert order.num_checked_blocks == naive.num_blocks(first)
        assert order.peeks.block_ids.tolist() == []
        planner.advance(1)
        naive.num_tokens, op_id = end, op_id + 1
    table = list(naive.table[: naive.layout.num_blocks(num_input + 1)])
    joined: tuple[Member, ...] = (Member(0, 0, num_input, tuple(table)),)
    left = num_output - 1
    while left:
        num_steps = rng.randint(1, left)
        needed = naive.layout.num_blocks(naive.num_tokens + num_steps)
        more = tuple(naive.table[len(table) : needed])
        grown = ((0, more),) if more else ()
        table += more
        order = planner.plan(
            forward(op_id, num_steps=num_steps, grown=grown, joined=joined), after=(), faults=()
        )
        first = naive.num_tokens
        done = rng.randint(0, num_steps)  # the others were not: cut, or lost on a rank
        before = set(naive.written)
        writes = naive.compute(first, first + num_steps)
        expect(order, num_slots, writes=writes, reads=naive.read(first) if joined else [])
        assert order.num_checked_blocks == (naive.num_blocks(first) if joined else 0)
        assert order.peeks.block_ids.tolist() == ([] if joined else naive.begun(first))
        naive.written = before
        naive.compute(first, first + done)
        planner.advance(done)
        naive.num_tokens, left, joined, op_id = first + done, left - done, (), op_id + 1


def test_a_matched_prompt_writes_nothing_and_reads_it_all() -> None:
    # 7 tokens in blocks of 4, of 4 slots each: one whole block, and 3 slots of the other.
    request = make_request(0, Prompt((0, 0), 3), block_size=4, partial=PartialRule.COUNT)
    naive = ByToken(request, 4, 4)
    planner = planner_for([request], 4, 4)
    order = planner.plan(
        forward(0, prefill=(naive.slice(6, 7, writes=False),)), after=(), faults=()
    )
    expect(order, 4, writes=[], reads=naive.read(7))
    assert order.reads.block_ids.tolist() == naive.table[:1]
    assert order.slot_reads.slots.tolist() == [0, 1, 2]
    assert order.num_checked_blocks == 2


def test_requests_that_share_blocks_read_what_the_other_has_written() -> None:
    requests = [make_request(i, Prompt((0, i), 4), block_size=4) for i in range(2)]
    planner = planner_for(requests, 4, 4)
    order = planner.plan(
        forward(
            0,
            prefill=(Slice(0, 0, 0, 8, (5, 6)), Slice(1, 0, 4, 4, (5, 7))),
        ),
        after=(3,),
        faults=(),
    )
    assert order.writes.block_ids.tolist() == [5, 6, 7]
    assert order.reads.block_ids.tolist() == [5]
    assert order.reads.seeds[0] == order.writes.seeds[0]
    assert len(set(order.writes.seeds.tolist())) == 3
    assert order.after == (3,)


def members_at(planner: ForwardPlanner, op_id: int) -> list[int]:
    """Return the blocks of all members, by a Forward that changes nothing."""
    order = planner.plan(forward(op_id), after=(), faults=())
    return [int(each) for each in order.peeks.block_ids]


def test_members_join_leave_and_come_again() -> None:
    requests = [
        make_request(i, Prompt((i,), 4), block_size=4, num_output_tokens=9) for i in range(3)
    ]
    planner = planner_for(requests, 4, 4)
    joined = (Member(0, 0, 4, (10, 11)), Member(1, 0, 4, (20, 21)))
    planner.plan(forward(0, joined=joined), after=(), faults=())
    planner.advance(1)
    # Each has begun its second block with the token it made.
    assert members_at(planner, 1) == [10, 11, 20, 21]
    # 0 leaves, as one that was preempted, and joins again elsewhere; 1 goes on; 2 is new.
    difference = forward(
        2, left=(0,), joined=(Member(0, 1, 5, (30, 31)), Member(2, 0, 4, (40, 41)))
    )
    order = planner.plan(difference, after=(), faults=())
    assert order.peeks.block_ids.tolist() == [20, 21]
    assert order.reads.block_ids.tolist() == [30, 40]
    assert order.slot_reads.block_ids.tolist() == [31]
    assert order.num_checked_blocks == 3
    planner.advance(1)
    planner.plan(forward(3, left=(1, 2)), after=(), faults=())
    planner.advance(1)
    assert members_at(planner, 4) == [30, 31]


def test_what_several_members_write_is_in_the_order_of_the_steps() -> None:
    requests = [
        make_request(i, Prompt((i,), 4), block_size=4, num_output_tokens=9) for i in range(2)
    ]
    planner = planner_for(requests, 4, 4)
    joined = (Member(0, 0, 4, (10, 11)), Member(1, 0, 6, (20, 21)))
    order = planner.plan(forward(0, num_steps=2, joined=joined), after=(), faults=())
    # The first tokens of block 11, and the third and fourth of block 21.
    columns = (order.slot_writes.steps, order.slot_writes.block_ids, order.slot_writes.slots)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    assert rows == [(0, 11, 0), (0, 21, 2), (1, 11, 1), (1, 21, 3)]


def test_the_difference_of_a_forward_that_never_ran_counts() -> None:
    requests = [
        make_request(i, Prompt((i,), 4), block_size=4, num_output_tokens=9) for i in range(2)
    ]
    planner = planner_for(requests, 4, 4)
    never_ran = forward(0, joined=(Member(0, 0, 4, (10, 11)),))
    assert planner.take_difference(never_ran) == {0}
    order = planner.plan(forward(1, joined=(Member(1, 0, 4, (20, 21)),)), after=(), faults=())
    assert order.peeks.block_ids.tolist() == [10]
    # Slot 0 of their second blocks: the first token that each writes.
    assert list(zip(order.slot_writes.block_ids, order.slot_writes.slots, strict=True)) == [
        (11, 0),
        (21, 0),
    ]


def test_somebody_who_leaves_without_having_joined_is_no_error() -> None:
    """A request that joined and left between two Forwards is in neither difference."""
    planner = planner_for([], 4, 4)
    assert planner.take_difference(forward(0, left=(3,))) == set()


def test_step_ends_are_those_of_the_cost_model_divided_by_the_scale() -> None:
    cost = LinearCost(step_ns=100, token_ns=10, attention_ns=1, block_size=4)
    # A slice of tokens 2 and 3, which attend to 3 and 4; 2 decode and attend to 20 tokens.
    op = forward(0, prefill=(Slice(0, 0, 2, 2, (1,)),), num_decodes=2, context_tokens=20)
    # 100 + 10 * (2 + 2) + (7 + 20) = 167
    assert step_ends(op, cost, time_scale=1) == (167,)
    assert step_ends(op, cost, time_scale=2) == (84,)  # 83.5, to the even one
    run = forward(0, num_steps=3, num_decodes=2, context_tokens=20)
    # 100 + 20 + 20 = 140, and then 2 tokens more to attend to in each step.
    assert step_ends(run, cost, time_scale=1) == (140, 282, 426)
    assert step_ends(run, cost, time_scale=0.5) == (280, 564, 852)
    for i, end in enumerate(step_ends(run, cost, time_scale=1)):
        assert end == cost.forward_ns(0, 0, 2, 20, i + 1)
