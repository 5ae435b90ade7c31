"""Prefill and decode instances under random stories: what is read was written, all comes back."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import KvsimError
from tests.property.split_machine import run_split_scripted, run_split_simulated

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.property.split_witness import SplitWitness

NUM_TURNS = 100_000
BACKENDS = pytest.mark.parametrize("run_story", [run_split_scripted, run_split_simulated])


@BACKENDS
@given(rng=st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_every_request_is_decoded_from_its_own_kv_and_nothing_is_left(
    run_story: Callable[[Random], SplitWitness], rng: Random
) -> None:
    run_story(rng)


@BACKENDS
def test_the_same_of_many_seeds(run_story: Callable[..., SplitWitness]) -> None:
    for seed in range(120):
        run_seed(run_story, seed, max_requests=7)


@pytest.mark.thorough
@BACKENDS
def test_the_same_of_a_hundred_thousand_turns(run_story: Callable[..., SplitWitness]) -> None:
    num_turns = num_stories = 0
    while num_turns < NUM_TURNS:
        num_turns += run_seed(run_story, 1_000_000 + num_stories, max_requests=12).num_turns
        num_stories += 1
    assert num_turns >= NUM_TURNS
    print(f"{run_story.__name__}: {num_turns} turns in {num_stories} stories")  # noqa: T201


def run_seed(
    run_story: Callable[..., SplitWitness], seed: int, *, max_requests: int
) -> SplitWitness:
    """Run the story of a seed. What fails names the seed."""
    try:
        return run_story(Random(f"{run_story.__name__}:{seed}"), max_requests=max_requests)
    except (AssertionError, KvsimError, LookupError, TypeError, ValueError) as error:
        error.add_note(f"{run_story.__name__}, seed {seed}, at most {max_requests} requests")
        raise
