"""Values that every layer shares: identities, a request, and the partial rule.

Node, block and op ids are plain `int` aliases, not `NewType`s: the core moves tens of millions of
them through C-level slices and maps, where a constructor call per id would dominate the run time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

NodeId: TypeAlias = int  # small and dense; used again after the node is gone
BlockId: TypeAlias = int  # a position in one tier's pool, 0 <= id < capacity
OpId: TypeAlias = int  # rises by one with every op of a run
RequestId: TypeAlias = int  # position of the request in its trace, from 0
TierIndex: TypeAlias = int  # 0 is the GPU; higher is farther away
BlockKey: TypeAlias = Hashable  # names a block *and its whole prefix*; see kvsim.identity

NEVER = 1 << 62
"""A time or an index later than any that occurs (2**62 ns is 146 years)."""


class PartialRule(StrEnum):
    """What becomes of a prompt's last block when the prompt does not fill it."""

    COUNT = "count"
    """It is a block like any other: matched, kept, counted as a reference. For traces that give
    it an id of its own (Mooncake)."""
    NEVER = "never"
    """It stays private to its request and is not a reference."""


class Rng(Protocol):
    """The part of `random.Random` that the core and the policies may use, passed as an argument."""

    def random(self) -> float:
        """Return the next float in [0, 1)."""

    def randrange(self, stop: int, /) -> int:
        """Return an integer in [0, stop)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One line of a trace: what arrives, when, and which cacheable blocks its prompt has.

    Parameters
    ----------
    request_id
        Position in the trace, from 0.
    arrived_at
        Nanoseconds since the first arrival of the trace.
    block_keys
        Chained keys of the prompt's cacheable blocks, root first: `ceil(n / B)` of them under
        `PartialRule.COUNT`, `floor(n / B)` under `NEVER` (n input tokens, B tokens a block).
    num_input_tokens, num_output_tokens
        Lengths of prompt and answer, both at least 1.
    session_id
        The conversation this belongs to, if the trace says so.
    priority
        Larger is more important. Recorded; the first-come-first-served scheduler ignores it.
    cancelled_at
        Nanoseconds since the first arrival at which the client gives up, if it does.
    next_use_at
        For clairvoyant policies: `next_use_at[i]` is the request index at which block i is
        requested next (`NEVER` if it is not). See `kvsim.trace.annotate_next_use`.
    """

    request_id: RequestId
    arrived_at: int
    block_keys: Sequence[BlockKey]
    num_input_tokens: int
    num_output_tokens: int
    session_id: str | None = None
    priority: int = 0
    cancelled_at: int | None = None
    next_use_at: Sequence[int] | None = None
