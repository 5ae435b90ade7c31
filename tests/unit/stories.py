"""Tiny traces whose figures can be worked out on paper."""

from __future__ import annotations

from kvsim.trace import Trace
from kvsim.types import PartialRule, Request

SECOND_NS = 10**9


def trace_of(*prompts: tuple[str, int], block_size: int = 4, gap_ns: int = SECOND_NS) -> Trace:
    """Make a trace of prompts, each a letter for each of its blocks, and its tokens.

    They arrive `gap_ns` apart, far enough that one is done before the next. A letter stands for
    its whole prefix. Each makes one token of output.
    """
    return Trace(
        requests=tuple(
            Request(
                request_id=index,
                arrived_at=index * gap_ns,
                block_keys=tuple(letters),
                num_input_tokens=num_tokens,
                num_output_tokens=1,
            )
            for index, (letters, num_tokens) in enumerate(prompts)
        ),
        block_size=block_size,
        partial=PartialRule.COUNT,
        name="story",
        format="story",
    )


def three_prompts() -> Trace:
    """Return 10 tokens in 3 blocks; the same again; 6 tokens in 2 blocks, the first of them known.

    With room for all, the requests hit 0, 3 and 1 blocks of 8; 0, 10 and 4 tokens of 26. Usable
    are 0, min(3, 9 // 4) * 4 = 8 and min(1, 5 // 4) * 4 = 4 tokens.
    """
    return trace_of(("abc", 10), ("abc", 10), ("ad", 6))


def back_from_below() -> Trace:
    """Return three blocks; three others; the first three again.

    With 3 GPU and 3 CPU blocks the second request drives abc down, and the third finds them there.
    """
    return trace_of(("abc", 12), ("def", 12), ("abc", 12))
