"""A sweep whose hits can be worked out on paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.trace import write
from tests.unit.stories import three_prompts, trace_of

if TYPE_CHECKING:
    from pathlib import Path


def write_traces(folder: Path) -> None:
    """Write `three.jsonl` and `four.jsonl`.

    three: 0, 10 and 4 of 26 tokens hit if there is room for all.
    four: abcd, ab, efg, ab, blocks of 4 tokens. With 4 blocks the third request evicts 3 blocks:
    LRU those used least lately, d and c and then b, since a block is older than those before it;
    a stays and hits: 0, 8, 0, 4 of 44 tokens. With room for all: 0, 8, 0, 8.
    """
    write(three_prompts(), folder / "three.jsonl")
    four = trace_of(("abcd", 16), ("ab", 8), ("efg", 12), ("ab", 8))
    write(four, folder / "four.jsonl")


def table_of(**changes: object) -> dict[str, object]:
    """Return a sweep of both traces, LRU and FIFO, 4 and 100 blocks."""
    return {
        "traces": ["three.jsonl", "four.jsonl"],
        "policies": ["lru", "fifo"],
        "gpu_blocks": [4, 100],
    } | changes
