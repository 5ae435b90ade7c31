"""The decode batch: who is through, who needs blocks, and the difference between two Forwards."""

from __future__ import annotations

from kvsim.core.batch import DecodeBatch
from kvsim.core.sequence import Sequence, Status
from tests.unit.core.stage import ask


def member(
    batch: DecodeBatch,
    request_id: int,
    *,
    num_output_tokens: int,
    num_input_tokens: int = 4,
    num_blocks: int = 9,
    num_made: int = 1,
) -> Sequence:
    """Let a request join that has made `num_made` tokens and holds `num_blocks` blocks of 4."""
    request = ask(request_id, range(num_input_tokens), num_output_tokens=num_output_tokens)
    sequence = Sequence(request, 4)
    attempt = sequence.new_attempt(0)
    attempt.table = [100 * request_id + i for i in range(num_blocks)]
    sequence.start(attempt, 0)
    sequence.num_made = num_made
    batch.join(sequence)
    return sequence


def test_an_empty_batch_has_nothing_to_do() -> None:
    batch = DecodeBatch(4)
    assert batch.num_members == batch.num_context_tokens == batch.num_steps_to_due() == 0
    assert not batch.must_grow(1000)
    assert batch.next_to_grow(1000) is None
    assert batch.advance(0) == []
    assert batch.take_difference() == ((), (), ())


def test_members_are_through_when_they_have_made_all_their_tokens() -> None:
    batch = DecodeBatch(4)
    long = member(batch, 0, num_output_tokens=6)
    short = member(batch, 1, num_output_tokens=3)
    assert batch.num_steps_to_due() == 2
    assert batch.advance(1) == []
    assert batch.num_made(short) == 2
    assert batch.advance(1) == [short]
    assert short.num_made == 3
    assert batch.num_steps_to_due() == 3
    assert batch.advance(3) == [long]
    assert batch.num_members == 0


def test_members_that_are_through_together_leave_in_the_order_they_joined() -> None:
    batch = DecodeBatch(4)
    members = [member(batch, i, num_output_tokens=2) for i in (5, 3, 4)]
    assert batch.advance(1) == members


def test_each_step_adds_one_token_a_member_to_the_context() -> None:
    batch = DecodeBatch(4)
    member(batch, 0, num_output_tokens=9)
    assert batch.num_context_tokens == 5  # the prompt's 4, and the one token made
    batch.advance(2)
    member(batch, 1, num_output_tokens=9, num_input_tokens=10, num_made=3)
    assert batch.num_context_tokens == 7 + 13
    batch.advance(1)
    assert batch.num_context_tokens == 8 + 14


def test_one_that_leaves_takes_its_context_and_its_dates_along() -> None:
    batch = DecodeBatch(4)
    long = member(batch, 0, num_output_tokens=9)
    short = member(batch, 1, num_output_tokens=3, num_blocks=1)
    batch.advance(1)
    batch.leave(short)
    assert short.num_made == 2
    assert batch.num_members == 1
    assert batch.num_context_tokens == 4 + 2
    assert batch.num_steps_to_due() == 7
    assert batch.next_to_grow(99) is None
    assert batch.advance(7) == [long]


def test_one_that_comes_back_is_not_mistaken_for_its_earlier_self() -> None:
    batch = DecodeBatch(4)
    sequence = member(batch, 0, num_output_tokens=3)
    batch.leave(sequence)
    member(batch, 1, num_output_tokens=50)
    sequence.num_made = 2
    batch.advance(10)
    batch.join(sequence)
    # Its old entry said: through at step 2.
    assert batch.num_steps_to_due() == 1
    assert batch.advance(1) == [sequence]


def test_one_that_comes_back_with_the_same_dates_is_through_once() -> None:
    batch = DecodeBatch(4)
    other = member(batch, 1, num_output_tokens=3)
    sequence = member(batch, 0, num_output_tokens=3, num_blocks=1)
    batch.leave(sequence)
    batch.join(sequence)  # entries of both heaps are there twice, for the same steps
    assert batch.next_to_grow(1) is sequence
    assert batch.advance(2) == [other, sequence]
    assert batch.num_members == 0
    assert batch.advance(9) == []


def test_a_member_needs_a_block_before_the_step_that_has_no_slot_for_the_last_token() -> None:
    batch = DecodeBatch(4)
    # 4 tokens of prompt in 2 blocks: slots for 4 output tokens. The fifth step writes the fifth.
    sequence = member(batch, 0, num_output_tokens=20, num_blocks=2)
    assert not batch.must_grow(4)
    assert batch.must_grow(5)
    assert batch.next_to_grow(4) is None
    assert batch.next_to_grow(5) is sequence
    assert batch.num_steps_to_grow() == 4
    batch.advance(4)
    assert batch.num_steps_to_grow() == 0


def test_the_last_token_needs_no_slot() -> None:
    batch = DecodeBatch(4)
    member(batch, 0, num_output_tokens=5, num_blocks=2)
    assert batch.next_to_grow(99) is None


def test_a_member_that_has_grown_needs_its_next_block_later() -> None:
    batch = DecodeBatch(4)
    sequence = member(batch, 0, num_output_tokens=20, num_blocks=2)
    assert batch.next_to_grow(5) is sequence
    assert sequence.attempt is not None
    sequence.attempt.table += [7, 8]
    batch.grew(sequence, [7, 8])
    assert batch.next_to_grow(12) is None
    assert batch.next_to_grow(13) is sequence


def test_the_member_that_is_full_first_grows_first() -> None:
    batch = DecodeBatch(4)
    member(batch, 0, num_output_tokens=20, num_blocks=3)
    second = member(batch, 1, num_output_tokens=20, num_blocks=2)
    assert batch.next_to_grow(99) is second


def test_the_difference_names_who_joined_who_left_and_what_grew() -> None:
    batch = DecodeBatch(4)
    first = member(batch, 0, num_output_tokens=20, num_blocks=2)
    second = member(batch, 1, num_output_tokens=20, num_blocks=1)
    joined, left, grown = batch.take_difference()
    assert [(m.request_id, m.attempt, m.num_tokens) for m in joined] == [(0, 0, 4), (1, 0, 4)]
    assert [m.block_ids for m in joined] == [(0, 1), (100,)]
    assert (left, grown) == ((), ())
    assert batch.next_to_grow(1) is second
    assert second.attempt is not None
    second.attempt.table += [7]
    batch.grew(second, [7])
    batch.leave(first)
    assert batch.take_difference() == ((), (0,), ((1, (7,)),))
    assert batch.take_difference() == ((), (), ())


def test_blocks_of_one_that_has_just_joined_are_in_its_table() -> None:
    batch = DecodeBatch(4)
    sequence = member(batch, 0, num_output_tokens=20, num_blocks=1)
    assert sequence.attempt is not None
    assert batch.next_to_grow(1) is sequence
    sequence.attempt.table += [7]
    batch.grew(sequence, [7])
    joined, _, grown = batch.take_difference()
    assert [m.block_ids for m in joined] == [(0, 7)]
    assert grown == ()


def test_one_that_joined_and_left_between_two_forwards_is_not_mentioned() -> None:
    batch = DecodeBatch(4)
    batch.leave(member(batch, 0, num_output_tokens=20))
    assert batch.take_difference() == ((), (), ())


def test_what_one_that_left_had_grown_is_not_mentioned() -> None:
    batch = DecodeBatch(4)
    sequence = member(batch, 0, num_output_tokens=20, num_blocks=1)
    batch.take_difference()
    assert batch.next_to_grow(1) is sequence
    assert sequence.attempt is not None
    sequence.attempt.table += [7]
    batch.grew(sequence, [7])
    batch.leave(sequence)
    assert batch.take_difference() == ((), (0,), ())


def test_a_member_that_comes_back_joins_with_the_tokens_it_has() -> None:
    batch = DecodeBatch(4)
    sequence = member(batch, 0, num_output_tokens=20)
    batch.take_difference()
    batch.advance(5)
    batch.leave(sequence)
    batch.join(sequence)
    joined, left, _ = batch.take_difference()
    assert left == (0,)
    assert [m.num_tokens for m in joined] == [4 + 6 - 1]
    assert sequence.status is Status.DECODING
