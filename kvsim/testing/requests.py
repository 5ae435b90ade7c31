"""Requests for tests, by what their blocks hold, and strategies for them and for caches.

Only the strategies need hypothesis (the `testing` extra).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.config import CacheConfig
from kvsim.types import PartialRule, Request

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from kvsim.types import RequestId


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt by what its blocks hold: one letter a block, and the tokens in the last one."""

    letters: tuple[int, ...]
    num_tail_tokens: int


def prompts(*, max_blocks: int = 6, max_tail_tokens: int = 3) -> SearchStrategy[Prompt]:
    """Return a strategy for prompts that often share a prefix (two letters, one of them rarer)."""
    from hypothesis import strategies as st

    return st.builds(
        Prompt,
        letters=st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=max_blocks).map(tuple),
        num_tail_tokens=st.integers(1, max_tail_tokens),
    )


def cache_configs(
    *, max_gpu_blocks: int = 8, max_cpu_blocks: int = 6
) -> SearchStrategy[CacheConfig]:
    """Return a strategy for caches so small that something is always in the way."""
    from hypothesis import strategies as st

    return st.builds(
        CacheConfig,
        block_size=st.integers(1, 3),
        tier_blocks=st.tuples(st.integers(1, max_gpu_blocks), st.integers(0, max_cpu_blocks)),
        swap_batch_blocks=st.integers(1, 4),
        low_watermark_blocks=st.integers(0, 3),
    )


def make_request(
    request_id: RequestId,
    prompt: Prompt,
    *,
    block_size: int,
    partial: PartialRule = PartialRule.NEVER,
    num_output_tokens: int = 1,
    arrived_at: int = 0,
) -> Request:
    """Return the request of a prompt.

    The key of a block is (letters up to it, tokens in it), so that a partial block has a key of
    its own. Next uses, for clairvoyant policies, are made up, but never fall along the path.
    """
    letters = prompt.letters
    num_tail = min(prompt.num_tail_tokens, block_size)
    sizes = [block_size] * (len(letters) - 1) + [num_tail]
    keys = [(letters[: i + 1], size) for i, size in enumerate(sizes)]
    if partial is PartialRule.NEVER and num_tail < block_size:
        keys.pop()
    return Request(
        request_id=request_id,
        arrived_at=arrived_at,
        block_keys=keys,
        num_input_tokens=sum(sizes),
        num_output_tokens=num_output_tokens,
        next_use_at=[request_id + 1 + i for i in range(len(keys))],
    )
