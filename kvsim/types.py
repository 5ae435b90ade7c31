"""Values that every layer shares: identities, a request, and the partial rule.

Node, block and op ids are plain `int` aliases, not `NewType`s: the core moves tens of millions of
them through C-level slices and maps, where a constructor call per id would dominate the run time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from kvsim.errors import ConfigError

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


DEFAULT_PRIORITY = 35
"""Retention priority of a block that nothing is said about. Source: TensorRT-LLM's default."""

HIGHEST_PRIORITY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRange:
    """How long the KV of a range of tokens is worth keeping, as a request says.

    Of evictable blocks those of the lowest priority go first, whatever the eviction policy says;
    the policy orders those of one priority. A block that holds tokens of several ranges has the
    highest of their priorities, and of equal ones the longest duration.

    Parameters
    ----------
    first_token, end_token
        The range of the prompt, the end not included; None: to the end of the prompt. For output
        tokens both keep their defaults.
    priority
        0 to 100.
    duration_ns
        From the admission of the request on; then the priority is the default again. None: for
        good, until a request says something else.

    Raises
    ------
    ConfigError
        If a number is impossible.

    Source: KvCacheRetentionConfig of TensorRT-LLM (ranges, durations, 0 to 100, 35 by default).
    """

    first_token: int = 0
    end_token: int | None = None
    priority: int = DEFAULT_PRIORITY
    duration_ns: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("first_token", 0), ("end_token", 1), ("duration_ns", 1)):
            value = getattr(self, name)
            if value is None and name != "first_token":
                continue
            if type(value) is not int or value < least:
                raise ConfigError(
                    f"{name} of a retention range must be an integer of at least {least},"
                    f" not {value!r}"
                )
        if self.end_token is not None and self.end_token <= self.first_token:
            raise ConfigError(
                f"end_token of a retention range must be above its first_token"
                f" ({self.first_token}), not {self.end_token}"
            )
        if type(self.priority) is not int or not 0 <= self.priority <= HIGHEST_PRIORITY:
            raise ConfigError(
                f"priority of a retention range must be an integer from 0 to {HIGHEST_PRIORITY},"
                f" not {self.priority!r}"
            )


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
    retention, output_retention
        How long blocks of the prompt, and of the output, are worth keeping. Nothing said: () and
        None.
    tenant
        Whose request this is, if the trace says so.
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
    retention: tuple[RetentionRange, ...] = ()
    output_retention: RetentionRange | None = None
    tenant: str | None = None
