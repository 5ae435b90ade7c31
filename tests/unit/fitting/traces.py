"""Traces of a few paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.trace import Trace
from kvsim.types import PartialRule, Request

if TYPE_CHECKING:
    from collections.abc import Sequence


def trace_of(*paths: Sequence[int], gap_ms: int = 10) -> Trace:
    """Return a trace of these block keys, of 4 tokens each and all full, with answers of 7."""
    requests = [
        Request(
            request_id=index,
            arrived_at=index * gap_ms * 10**6,
            block_keys=tuple(path),
            num_input_tokens=4 * len(path),
            num_output_tokens=7,
        )
        for index, path in enumerate(paths)
    ]
    return Trace(
        requests=tuple(requests),
        block_size=4,
        partial=PartialRule.COUNT,
        name="paths",
        format="test",
    )
