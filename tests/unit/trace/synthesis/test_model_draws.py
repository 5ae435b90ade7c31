from __future__ import annotations

from itertools import count
from random import Random
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.hitrate.paths import find_pieces
from kvsim.trace import synthesize
from kvsim.trace.synthesis import RequestClass, SharedPrefix
from kvsim.trace.synthesis.model_draws import draw_from_model
from kvsim.types import PartialRule
from tests.unit.trace.synthesis.models import models, small_model

if TYPE_CHECKING:
    from kvsim.trace.synthesis import SessionModel


def test_a_small_model_by_hand() -> None:
    requests = draw_from_model(small_model(), 6, Random(0))
    # Sessions are block 0 and two more. A continuation comes two requests later, drops the last
    # block and adds two: requests 2 and 3 continue 0 and 1; what continues is not continued.
    assert [list(each.block_keys) for each in requests] == [
        [0, 1, 2],
        [0, 3, 4],
        [0, 1, 5, 6],
        [0, 3, 7, 8],
        [0, 9, 10],
        [0, 11, 12],
    ]
    assert [each.session_id for each in requests] == ["s0", "s1", "s0", "s1", "s2", "s3"]
    assert [each.arrived_at for each in requests] == [n * 10_000_000 for n in range(6)]
    assert {each.num_output_tokens for each in requests} == {5}
    # partial last blocks count: 3 blocks of 16 are 33 to 48 tokens
    assert all(32 < each.num_input_tokens <= 48 for each in requests[:2])


def test_prompts_are_cut_at_the_longest() -> None:
    hungry = RequestClass(
        up_to_blocks=5,
        continuations=1.0,
        delay_requests=(1.0, 1.0),
        dropped_blocks=(0.0,),
        new_blocks=(3.0,),
    )
    model = small_model(longest_blocks=5, first=(hungry,), continued=(hungry,))
    requests = draw_from_model(model, 4, Random(0))
    # 1 + 2, then 3 + 3 cut to 5, then nothing can be added
    assert [len(each.block_keys) for each in requests] == [3, 5, 5, 5]


def test_totals_are_right_although_numbers_are_rounded() -> None:
    model = small_model(first_blocks=(0.25, 2.5), longest_blocks=9, prefixes=())
    lone = RequestClass(up_to_blocks=9, continuations=0)
    model = small_model(first_blocks=(1.25, 2.5), prefixes=(), first=(lone,))
    requests = draw_from_model(model, 400, Random(3))
    # the mean of the two bins is 1.875, times 400 is 750; error diffusion is off by 1 at most
    assert abs(sum(len(each.block_keys) for each in requests) - 750) <= 1


def test_shared_prefixes_extend_each_other_and_have_their_shares() -> None:
    lone = RequestClass(up_to_blocks=9, continuations=0)
    prefixes = (
        SharedPrefix(num_blocks=2, share=0.5),
        SharedPrefix(num_blocks=1, share=0.25, extends=0),
    )
    requests = draw_from_model(small_model(prefixes=prefixes, first=(lone,)), 4000, Random(1))
    lengths = [len(each.block_keys) for each in requests]
    for length, share in ((4, 0.5), (5, 0.25), (2, 0.25)):  # with two own blocks
        assert abs(lengths.count(length) / 4000 - share) < 0.03
    long = [each.block_keys for each in requests if len(each.block_keys) == 5]
    short = [each.block_keys for each in requests if len(each.block_keys) == 4]
    assert len({tuple(keys[:3]) for keys in long}) == 1
    assert {tuple(keys[:2]) for keys in short} == {tuple(long[0][:2])}


@settings(max_examples=150, deadline=None)
@given(model=models(), seed=st.integers(0, 99))
def test_any_model_gives_a_valid_trace(model: SessionModel, seed: int) -> None:
    trace = synthesize(model, seed=seed)  # `Trace` checks order and lengths
    assert trace.num_requests == model.num_requests
    if any(each.block_keys for each in trace.requests):
        find_pieces(trace)  # raises unless keys stand for their whole prefix
    assert trace == synthesize(model, seed=seed)
    if not model.prefixes:
        assert max(len(each.block_keys) for each in trace.requests) <= model.longest_blocks


def test_full_blocks_alone_count_where_partial_is_never() -> None:
    model = small_model(partial=PartialRule.NEVER)
    requests = draw_from_model(model, 50, Random(0), count())
    assert all(each.num_input_tokens // 16 == len(each.block_keys) for each in requests)
