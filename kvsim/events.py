"""One named tuple per decision of the core, in the order the decisions were made.

An event names all blocks it concerns in tuples; `kvsim.analysis.frames` unfolds them into rows.
Nothing is emitted, and nothing is built, unless a sink was given.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from kvsim.types import BlockId, BlockKey, OpId, RequestId, TierIndex


class EndReason(StrEnum):
    """Why an attempt gave its blocks back."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    RESTARTED = "restarted"
    """An op it depended on failed; the request tries again, unless it has no attempts left."""


class RemoveCause(StrEnum):
    """Why a copy left a tier."""

    EVICTED = "evicted"
    DEMOTED = "demoted"
    PROMOTED = "promoted"
    SUPERSEDED = "superseded"
    """The block was computed again above."""
    DETACHED = "detached"


class RequestRefused(NamedTuple):
    """A request that can never fit was refused at arrival."""

    at: int
    request_id: RequestId
    needed_blocks: int
    allowed_blocks: int


class RequestAdmitted(NamedTuple):
    """An attempt got all its blocks. `hit_keys[tier]` are the matched blocks, root first."""

    at: int
    request_id: RequestId
    attempt: int
    hit_keys: tuple[tuple[BlockKey, ...], ...]
    private_block_ids: tuple[BlockId, ...]
    after: tuple[OpId, ...]


class AttemptEnded(NamedTuple):
    """An attempt let go of its blocks."""

    at: int
    request_id: RequestId
    attempt: int
    reason: EndReason


class RequestEnded(NamedTuple):
    """A request has come to an end; `status` is a `kvsim.core.sequence.Status` value."""

    at: int
    request_id: RequestId
    status: str


class FillIssued(NamedTuple):
    """An op will write these new nodes (root first) into these GPU blocks."""

    op_id: OpId
    request_id: RequestId
    attempt: int
    keys: tuple[BlockKey, ...]
    block_ids: tuple[BlockId, ...]


class RequestGrown(NamedTuple):
    """A decoding attempt got more private GPU blocks."""

    request_id: RequestId
    attempt: int
    block_ids: tuple[BlockId, ...]


class BlocksDuplicated(NamedTuple):
    """An attempt computes these blocks although their keys were in the tree when it came to them.

    Its own copies stay private, and go when it has computed them.
    """

    request_id: RequestId
    attempt: int
    keys: tuple[BlockKey, ...]
    block_ids: tuple[BlockId, ...]


class TransferIssued(NamedTuple):
    """A batch of copies was ordered."""

    op_id: OpId
    source: TierIndex
    target: TierIndex
    keys: tuple[BlockKey, ...]
    source_ids: tuple[BlockId, ...]
    target_ids: tuple[BlockId, ...]
    releases_source: bool


class OpAnswered(NamedTuple):
    """The answer to an op was taken (`outcome` is an `Outcome` value, or "settled")."""

    at: int
    op_id: OpId
    outcome: str


class BlocksStored(NamedTuple):
    """Copies of these blocks became readable in a tier; parents come before children."""

    tier: TierIndex
    keys: tuple[BlockKey, ...]
    block_ids: tuple[BlockId, ...]


class BlocksRemoved(NamedTuple):
    """Readable copies of these blocks left a tier."""

    tier: TierIndex
    keys: tuple[BlockKey, ...]
    cause: RemoveCause


class BlocksKept(NamedTuple):
    """Copies on their way out of a tier stay after all: hit again, or the write-back failed."""

    tier: TierIndex
    keys: tuple[BlockKey, ...]


class BlocksFreed(NamedTuple):
    """Blocks became free that nobody could read.

    Their copy was never written, was of no use any more, or had been taken out of the tree.
    """

    tier: TierIndex
    block_ids: tuple[BlockId, ...]


class BlocksQuarantined(NamedTuple):
    """Blocks that a timed-out op may still touch are set apart until it has settled."""

    op_id: OpId
    tier: TierIndex
    block_ids: tuple[BlockId, ...]


class CacheCleared(NamedTuple):
    """Every block has left the index of every tier: a flush, or other weights (`version`)."""

    reason: str
    version: int


Event: TypeAlias = (
    RequestRefused
    | RequestAdmitted
    | AttemptEnded
    | RequestEnded
    | RequestGrown
    | FillIssued
    | BlocksDuplicated
    | TransferIssued
    | OpAnswered
    | BlocksStored
    | BlocksRemoved
    | BlocksKept
    | BlocksFreed
    | BlocksQuarantined
    | CacheCleared
)
