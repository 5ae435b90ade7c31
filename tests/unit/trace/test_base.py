from __future__ import annotations

from dataclasses import replace

import pytest

from kvsim.errors import UserError
from kvsim.trace import Trace
from kvsim.trace.base import num_blocks
from kvsim.types import PartialRule, Request

ONE = Request(request_id=0, arrived_at=0, block_keys=(1,), num_input_tokens=8, num_output_tokens=1)
TRACE = Trace(
    requests=(ONE, replace(ONE, request_id=1, arrived_at=5)),
    block_size=8,
    partial=PartialRule.COUNT,
    name="two",
    format="made",
)


def test_counts_are_of_requests_references_and_different_blocks() -> None:
    assert (TRACE.num_requests, TRACE.num_references, TRACE.num_unique_blocks) == (2, 2, 1)


@pytest.mark.parametrize(
    ("tokens", "count", "never"), [(1, 1, 0), (7, 1, 0), (8, 1, 1), (9, 2, 1), (16, 2, 2)]
)
def test_a_partial_block_counts_or_not(tokens: int, count: int, never: int) -> None:
    assert num_blocks(tokens, 8, PartialRule.COUNT) == count
    assert num_blocks(tokens, 8, PartialRule.NEVER) == never


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"request_id": 5}, "request 1 of a trace has request_id 5"),
        ({"arrived_at": -1}, "request 1 of a trace arrives at -1 ns"),
        ({"block_keys": (1, 2)}, "has 2 block keys: 8 tokens make 1 blocks"),
    ],
)
def test_requests_that_break_a_rule_make_no_trace(change: dict[str, int], problem: str) -> None:
    second = replace(TRACE.requests[1], **change)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=problem):
        replace(TRACE, requests=(ONE, second))


def test_the_first_request_arrives_at_zero() -> None:
    with pytest.raises(UserError, match="request 0 of a trace arrives at 3 ns"):
        replace(TRACE, requests=(replace(ONE, arrived_at=3),))
    with pytest.raises(UserError, match="block_size of a trace must be at least 1, not 0"):
        replace(TRACE, block_size=0)
