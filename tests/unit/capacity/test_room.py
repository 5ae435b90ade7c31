from __future__ import annotations

import pytest

import kvsim
from kvsim.analysis.records import RequestRecord
from kvsim.capacity.room import Running, running_of, short_gib
from kvsim.core.sequence import Status
from tests.unit.stories import three_prompts


def record(index: int, admitted_at: int | None, ended_at: int | None) -> RequestRecord:
    request = three_prompts().requests[index]  # 11, 11 and 7 tokens
    return RequestRecord(request, Status.FINISHED, 0, 0, admitted_at=admitted_at, ended_at=ended_at)


def test_what_runs_is_the_time_that_tokens_stay_by_the_time_of_all() -> None:
    # 11 tokens for 10 ns and 7 for 15, of 20 ns: 215 / 20; 25 / 20 requests.
    records = [record(0, 0, 10), record(1, None, 4), record(2, 5, 20)]
    assert running_of(records, 0.5) == Running(num_requests=1.25, num_tokens=10.75, size_gib=5.375)


def test_nothing_runs_where_nothing_was_admitted() -> None:
    found = running_of([record(0, None, None)], 1.0)
    assert found == Running(num_requests=0.0, num_tokens=0.0, size_gib=0.0)


def test_a_timed_replay_is_made_on_request_with_the_tiers_of_the_answer() -> None:
    asked: list[tuple[int, int]] = []
    found = kvsim.size(
        three_prompts(), target_hit=0.5, gpu_blocks=4, timed=True,
        progress=lambda done, total: asked.append((done, total)),
    )  # fmt: skip
    again = kvsim.replay(three_prompts(), gpu_blocks=4)
    held = sum(
        (each.ended_at - each.admitted_at) * (each.request.num_input_tokens + 1)
        for each in again.records
        if each.ended_at is not None and each.admitted_at is not None
    )
    running = found.room.running
    assert running is not None
    last_end = max(each.ended_at or 0 for each in again.records)
    assert running.num_tokens == pytest.approx(held / last_end)
    assert asked[-1] == (3, 3)
    assert "in a timed replay 0.0 requests run on average" in found.room.note
    assert kvsim.size(three_prompts(), gpu_blocks=4).room.running is None


@pytest.mark.parametrize(
    ("size_gib", "text"),
    [(0.0, "0"), (0.00049, "0.00049"), (0.25, "0.25"), (15.5, "15.5"), (1323.9, "1,324")],
)
def test_sizes_have_about_three_digits(size_gib: float, text: str) -> None:
    assert short_gib(size_gib) == text
