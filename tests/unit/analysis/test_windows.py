from __future__ import annotations

from collections import Counter

import pytest

import kvsim
from kvsim.analysis.windows import Query, queries, running_windows, windows
from kvsim.errors import ConfigError
from kvsim.events import RequestAdmitted
from tests.unit.stories import back_from_below, three_prompts

# Tokens asked for, found on the GPU, found below.
ASKED = [
    Query(1, 10, (0, 0)),
    Query(2, 10, (4, 2)),
    Query(3, 20, (0, 10)),
    Query(4, 5, (5, 0)),
    Query(5, 5, (0, 0)),
]


def test_a_window_is_forgotten_after_its_last_query_has_been_counted() -> None:
    first, second, third = windows(ASKED, 2)
    assert (first.num_requests, first.num_hit_requests, first.num_tokens) == (2, 1, 20)
    assert first.num_hit_tokens == (4, 2)
    assert (first.hit_request_ratio, first.hit_token_ratio) == (1 / 2, 6 / 20)
    assert (first.tier_ratio(0), first.tier_ratio(1)) == (4 / 20, 2 / 20)
    assert (second.num_tokens, second.num_hit_tokens) == (25, (5, 10))
    assert (third.num_requests, third.hit_token_ratio) == (1, 0.0)  # has just begun
    assert [each.at_ns for each in (first, second, third)] == [2, 4, 5]


def test_a_gauge_shows_the_whole_window_until_the_next_query() -> None:
    # After each query: 0/10, 6/20; then a new window: 10/20, 15/25; then 0/5.
    seen = [each.hit_token_ratio for each in running_windows(ASKED, 2)]
    assert seen == [0.0, 0.3, 0.5, 0.6, 0.0]


def test_the_default_window_is_ten_thousand_queries() -> None:
    many = [Query(0, 1, (1, 0))] * 10_001
    assert [each.num_requests for each in windows(many)] == [10_000, 1]


def test_a_window_without_queries_is_refused() -> None:
    with pytest.raises(ConfigError, match="window must be a whole number of at least 1, not 0"):
        windows(ASKED, 0)


def test_a_request_that_is_refused_is_a_query_that_finds_nothing() -> None:
    result = kvsim.replay(back_from_below(), gpu_blocks=3, max_blocks_per_request=3)
    refused = kvsim.replay(three_prompts(), gpu_blocks=3, max_blocks_per_request=2, events=True)
    assert [query.num_tokens for query in queries(result.records, 4)] == [12, 12, 12]
    # Of 10, 10 and 6 tokens only the last fits in two blocks.
    assert [(q.num_tokens, q.num_hit_tokens) for q in queries(refused.records, 4)] == [
        (10, (0, 0)), (10, (0, 0)), (6, (0, 0)),
    ]  # fmt: skip


@pytest.mark.parametrize("settings", [{}, {"fail_rate": 0.01}, {"instant": True}])
def test_metrics_are_those_counted_again_from_the_trace(settings: dict[str, float]) -> None:
    trace = kvsim.sample("chat")
    result = kvsim.replay(
        trace, limit=300, gpu_blocks=300, cpu_blocks=300, events=True,
        **settings,  # type: ignore[arg-type]
    )  # fmt: skip
    found: Counter[str] = Counter()
    rows: list[tuple[int, int, int]] = []
    assert result.events is not None
    admitted = set()
    for event in result.events:
        if isinstance(event, RequestAdmitted) and event.attempt == 0:
            admitted.add(event.request_id)
            tokens = trace.requests[event.request_id].num_input_tokens
            gpu = min(len(event.hit_keys[0]) * 64, tokens)
            below = min(sum(map(len, event.hit_keys)) * 64, tokens) - gpu
            rows.append((tokens, gpu, below))
    for request in trace.requests[:300]:
        found["asked"] += request.num_input_tokens
    for _, gpu, below in rows:
        found["gpu"] += gpu
        found["below"] += below
    values = result.metrics(window=10**6)
    assert values["kvsim_query_tokens_total"] == found["asked"]
    assert values["kvsim_gpu_hit_tokens_total"] == found["gpu"] > 0
    assert values["kvsim_lower_hit_tokens_total"] == found["below"] > 0
    assert values["kvsim_window_hit_token_ratio"] == pytest.approx(
        (found["gpu"] + found["below"]) / found["asked"]
    )
    assert values["kvsim_window_hit_request_ratio"] == pytest.approx(
        sum(gpu + below > 0 for _, gpu, below in rows) / 300
    )
    hits = result.hits["prefix_token"]
    assert values["kvsim_hit_tokens_total"] == hits["hits"]


def test_windows_add_up_to_the_whole_run() -> None:
    result = kvsim.replay("sample:chat", limit=250, gpu_blocks=300, cpu_blocks=300)
    frame = result.hit_windows(window=100)
    assert frame["num_requests"].tolist() == [100, 100, 50]
    assert frame["num_tokens"].sum() == result.hits["prefix_token"]["total"]
    hits = frame["num_gpu_hit_tokens"].sum() + frame["num_cpu_hit_tokens"].sum()
    assert hits == result.hits["prefix_token"]["hits"]
