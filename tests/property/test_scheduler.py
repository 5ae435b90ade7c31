"""The whole engine under random stories: every request comes to its end, and nothing is left."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import KvsimError
from tests.property.scheduler_machine import run_scripted, run_simulated

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.property.witness import Witness

NUM_TURNS = 100_000
BACKENDS = pytest.mark.parametrize("run_story", [run_scripted, run_simulated])


@BACKENDS
@given(rng=st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_every_request_comes_to_its_end_and_nothing_is_left(
    run_story: Callable[[Random], Witness], rng: Random
) -> None:
    run_story(rng)


@BACKENDS
def test_the_same_of_many_seeds(run_story: Callable[..., Witness]) -> None:
    for seed in range(600):
        run_seed(run_story, seed, max_requests=8)


@pytest.mark.thorough
@BACKENDS
def test_the_same_of_a_hundred_thousand_turns(run_story: Callable[..., Witness]) -> None:
    num_turns = num_stories = 0
    while num_turns < NUM_TURNS:
        num_turns += run_seed(run_story, 1_000_000 + num_stories, max_requests=12)
        num_stories += 1
    assert num_turns >= NUM_TURNS
    print(f"{run_story.__name__}: {num_turns} turns in {num_stories} stories")  # noqa: T201


def run_seed(run_story: Callable[..., Witness], seed: int, *, max_requests: int) -> int:
    """Run the story of a seed; return its turns. What fails names the seed."""
    try:
        witness = run_story(Random(f"{run_story.__name__}:{seed}"), max_requests=max_requests)
    except (AssertionError, KvsimError, LookupError, TypeError, ValueError) as error:
        error.add_note(f"{run_story.__name__}, seed {seed}, at most {max_requests} requests")
        raise
    return witness.num_turns
