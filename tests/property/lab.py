"""Traces for the tests of the lab: many short paths that share much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from kvsim.testing import Prompt, make_request, prompts
from kvsim.trace import Trace
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from kvsim.types import BlockKey

BLOCK_SIZE = 3


def trace_of(
    chosen: Sequence[Prompt], *, partial: PartialRule = PartialRule.COUNT, gap_ns: int = 1
) -> Trace:
    """Return the trace of prompts in blocks of three tokens."""
    return Trace(
        requests=tuple(
            make_request(
                index, prompt, block_size=BLOCK_SIZE, partial=partial, arrived_at=index * gap_ns
            )
            for index, prompt in enumerate(chosen)
        ),
        block_size=BLOCK_SIZE,
        partial=partial,
        name="random",
        format="random",
    )


def traces(*, max_blocks: int = 6, max_requests: int = 20) -> st.SearchStrategy[Trace]:
    """Return a strategy for traces; most prompts are longer than the smallest caches."""
    return st.builds(
        trace_of,
        st.lists(prompts(max_blocks=max_blocks), min_size=1, max_size=max_requests),
        partial=st.sampled_from(PartialRule),
    ).filter(has_blocks)


def has_blocks(trace: Trace) -> bool:
    """Whether there is anything to hit: a prompt of one block that is not full may have none."""
    return any(paths_of(trace))


def random_trace(rng: Random, *, max_blocks: int = 6, max_requests: int = 20) -> Trace:
    """Return a trace from a generator: for tests that count how often something differs."""
    chosen = [
        Prompt(tuple(rng.choice((0, 0, 1)) for _ in range(rng.randint(1, max_blocks))), BLOCK_SIZE)
        for _ in range(rng.randint(5, max_requests))
    ]
    return trace_of(chosen)


def paths_of(trace: Trace) -> list[Sequence[BlockKey]]:
    """Return the block keys of each request."""
    return [request.block_keys for request in trace.requests]
