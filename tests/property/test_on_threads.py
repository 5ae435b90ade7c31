"""The whole engine under random stories, on real tensors: the times are real and never the same."""

from __future__ import annotations

import pytest

from tests.property.scheduler_machine import run_on_threads
from tests.property.test_scheduler import run_seed

pytest.importorskip("paddle", reason="the tensor backend needs PaddlePaddle")


def test_every_request_comes_to_its_end_and_every_byte_is_right() -> None:
    for seed in range(60):
        run_seed(run_on_threads, seed, max_requests=8)


@pytest.mark.thorough
def test_the_same_of_ten_thousand_turns() -> None:
    num_turns = num_stories = 0
    while num_turns < 10_000:
        num_turns += run_seed(run_on_threads, 1_000_000 + num_stories, max_requests=12)
        num_stories += 1
    print(f"real tensors: {num_turns} turns in {num_stories} stories")  # noqa: T201
