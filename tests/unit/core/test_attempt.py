"""Where tokens lie in a block table, and what an attempt holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.attempt import Attempt, BlockLayout
from kvsim.testing import Prompt, make_request
from kvsim.types import PartialRule, Request

COUNT, NEVER = PartialRule.COUNT, PartialRule.NEVER


def request_of(
    num_input: int, num_output: int = 1, *, partial: PartialRule = NEVER, block_size: int = 4
) -> Request:
    """Return a request with so many input and output tokens."""
    num_full, num_rest = divmod(num_input - 1, block_size)
    prompt = Prompt((0,) * (num_full + 1), num_rest + 1)
    request = make_request(
        0, prompt, block_size=block_size, partial=partial, num_output_tokens=num_output
    )
    assert request.num_input_tokens == num_input
    return request


def layout_of(num_input: int, num_output: int = 1, *, partial: PartialRule = NEVER) -> BlockLayout:
    """Return the layout of such a request, in blocks of 4 tokens."""
    return BlockLayout(request_of(num_input, num_output, partial=partial), 4)


# 6 input tokens in blocks of 4, then output tokens o0, o1, ... (position in the table):
#   never:  i0 i1 i2 i3 | i4 i5 o0 o1 | o2 o3 ...     base 6
#   count:  i0 i1 i2 i3 | i4 i5 -- -- | o0 o1 o2 o3   base 8


@pytest.mark.parametrize(
    ("partial", "num_tokens", "num_blocks"),
    [
        *[(NEVER, n, b) for n, b in [(0, 0), (1, 1), (4, 1), (5, 2), (6, 2), (8, 2), (9, 3)]],
        # 7 tokens: i0 to i5 and o0, which begins the third block.
        *[(COUNT, n, b) for n, b in [(0, 0), (4, 1), (5, 2), (6, 2), (7, 3), (10, 3), (11, 4)]],
    ],
)
def test_tokens_take_this_many_blocks(
    partial: PartialRule, num_tokens: int, num_blocks: int
) -> None:
    assert layout_of(6, partial=partial).num_blocks(num_tokens) == num_blocks


@pytest.mark.parametrize(
    ("partial", "num_tokens", "num_full"),
    [
        *[(NEVER, n, b) for n, b in [(3, 0), (4, 1), (6, 1), (7, 1), (8, 2), (11, 2), (12, 3)]],
        # The last prompt block counts as full as soon as all 6 prompt tokens are there.
        *[(COUNT, n, b) for n, b in [(3, 0), (4, 1), (5, 1), (6, 2), (9, 2), (10, 3)]],
    ],
)
def test_tokens_fill_this_many_blocks(partial: PartialRule, num_tokens: int, num_full: int) -> None:
    assert layout_of(6, partial=partial).num_full_blocks(num_tokens) == num_full


@pytest.mark.parametrize(
    ("partial", "num_blocks", "num_tokens"),
    [
        *[(NEVER, b, n) for b, n in [(0, 0), (1, 4), (2, 8), (3, 12)]],
        *[(COUNT, b, n) for b, n in [(0, 0), (1, 4), (2, 6), (3, 10)]],
    ],
)
def test_full_blocks_hold_this_many_tokens(
    partial: PartialRule, num_blocks: int, num_tokens: int
) -> None:
    assert layout_of(6, partial=partial).num_tokens(num_blocks) == num_tokens


def test_a_prompt_of_whole_blocks_is_the_same_under_both_rules() -> None:
    # 8 tokens are 2 full blocks; output begins at position 8 either way.
    assert layout_of(8).base == layout_of(8, partial=COUNT).base == 8
    assert layout_of(8).num_blocks(9) == layout_of(8, partial=COUNT).num_blocks(9) == 3


@pytest.mark.parametrize(
    ("num_input", "num_output", "partial", "most"),
    [
        (6, 1, NEVER, 2),  # 6 tokens with KV
        (6, 3, NEVER, 2),  # 8: the last output token never needs its KV
        (6, 4, NEVER, 3),  # 9
        (6, 1, COUNT, 2),
        (6, 2, COUNT, 3),  # one output token with KV, in a block of its own
        (6, 5, COUNT, 3),
        (6, 6, COUNT, 4),
    ],
)
def test_a_whole_request_needs_this_many_blocks(
    num_input: int, num_output: int, partial: PartialRule, most: int
) -> None:
    assert layout_of(num_input, num_output, partial=partial).num_most_blocks == most


layouts = st.builds(
    lambda n, size, partial: BlockLayout(request_of(n, 9, partial=partial, block_size=size), size),
    st.integers(1, 30),
    st.integers(1, 5),
    st.sampled_from(PartialRule),
)


@given(layouts, st.integers(0, 12))
def test_full_blocks_and_their_tokens_convert_back(layout: BlockLayout, num_blocks: int) -> None:
    # Under NEVER a partial prompt block is full only with the output tokens behind the prompt.
    assert layout.num_full_blocks(layout.num_tokens(num_blocks)) == num_blocks


@given(layouts, st.integers(0, 40))
def test_tokens_need_at_most_one_block_more_than_they_fill(
    layout: BlockLayout, num_tokens: int
) -> None:
    assert 0 <= layout.num_blocks(num_tokens) - layout.num_full_blocks(num_tokens) <= 1
    assert layout.num_tokens(layout.num_full_blocks(num_tokens)) <= num_tokens


@given(layouts, st.integers(0, 40))
def test_one_more_token_takes_at_most_one_more_block(layout: BlockLayout, n: int) -> None:
    assert layout.num_blocks(n + 1) - layout.num_blocks(n) in {0, 1}
    assert layout.num_full_blocks(n + 1) - layout.num_full_blocks(n) in {0, 1}


def attempt_of(request: Request, *, num_made: int = 0) -> Attempt:
    """Return an attempt in blocks of 4 tokens, without a reserve."""
    layout = BlockLayout(request, 4)
    return Attempt(
        request,
        number=1,
        layout=layout,
        num_made=num_made,
        num_wanted_blocks=layout.num_blocks(request.num_input_tokens + num_made),
    )


def test_a_first_attempt_asks_for_the_keys_of_its_prompt() -> None:
    request = request_of(9)
    assert attempt_of(request).keys is request.block_keys


def test_a_resumed_attempt_asks_for_the_blocks_of_its_output_too() -> None:
    # 6 prompt tokens and 7 made: 13 tokens, of which 12 fill blocks 0, 1 and 2. Block 0 has the
    # prompt's key; blocks 1 and 2 hold output tokens, and nobody else can ask for them.
    attempt = attempt_of(request_of(6, 20), num_made=7)
    assert list(attempt.keys[1:]) == [("output", 0, 1), ("output", 0, 2)]
    assert attempt.num_wanted_blocks == 4


def test_a_counted_partial_block_keeps_its_key_when_output_follows() -> None:
    # i0 i1 i2 i3 | i4 i5 -- -- | o0 o1 o2 o3 | o4: full are the two of the prompt and one more.
    request = request_of(6, 20, partial=COUNT)
    attempt = attempt_of(request, num_made=5)
    assert list(attempt.keys) == [*request.block_keys, ("output", 0, 2)]


def test_output_keys_are_added_once() -> None:
    attempt = attempt_of(request_of(6, 20))
    attempt.add_output_keys(3)
    attempt.add_output_keys(2)
    attempt.add_output_keys(3)
    assert len(attempt.keys) == 3
    assert len(attempt.request.block_keys) == 1


def test_private_blocks_are_those_beyond_the_path_and_duplicates() -> None:
    attempt = attempt_of(request_of(12))
    attempt.table = [4, 5, 6]
    attempt.path = [1, 2]
    attempt.duplicates = {1: 9}
    assert attempt.private_block_ids == [6, 9]
