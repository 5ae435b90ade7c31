"""Requests for tests, by what their blocks hold, and strategies for them and for caches.

Only the strategies need hypothesis (the `testing` extra).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvsim.config import CacheConfig, TierInclusion, WritePolicy
from kvsim.types import PartialRule, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

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


TIER_MODES: Final[tuple[dict[str, TierInclusion | WritePolicy | int], ...]] = (
    {},
    {"tier_inclusion": TierInclusion.INCLUSIVE},
    {"tier_inclusion": TierInclusion.INCLUSIVE, "write_policy": WritePolicy.THROUGH},
    {"tier_inclusion": TierInclusion.INCLUSIVE, "write_policy": WritePolicy.SELECTIVE},
    {
        "tier_inclusion": TierInclusion.INCLUSIVE,
        "write_policy": WritePolicy.SELECTIVE,
        "write_through_hits": 2,
    },
)
"""The ways in which tiers can work together, as arguments of `CacheConfig`."""


def cache_configs(
    *, max_gpu_blocks: int = 8, max_cpu_blocks: int = 6, max_disk_blocks: int = 6
) -> SearchStrategy[CacheConfig]:
    """Return a strategy for caches so small that something is always in the way.

    Of one to three tiers, in every mode.
    """
    from hypothesis import strategies as st

    gpu, cpu = st.integers(1, max_gpu_blocks), st.integers(0, max_cpu_blocks)
    sizes: SearchStrategy[tuple[int, ...]] = st.tuples(gpu, cpu)
    if max_disk_blocks:
        three = st.tuples(
            gpu, st.integers(1, max(1, max_cpu_blocks)), st.integers(1, max_disk_blocks)
        )
        sizes |= three
    return st.builds(
        _with_mode,
        mode=st.sampled_from(TIER_MODES),
        block_size=st.integers(1, 3),
        tier_blocks=sizes,
        swap_batch_blocks=st.integers(1, 4),
        low_watermark_blocks=st.integers(0, 3),
        share_in_flight=st.sampled_from([True, True, False]),
    )


def _with_mode(*, mode: Mapping[str, object], **settings: object) -> CacheConfig:
    return CacheConfig(**mode, **settings)  # type: ignore[arg-type]


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
