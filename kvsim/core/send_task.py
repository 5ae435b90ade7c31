"""What one rank is told to send, and of what its computation is part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kvsim.errors import MisuseError

if TYPE_CHECKING:
    from kvsim.core.connections import Peer
    from kvsim.types import BlockId, RequestId


class OfStep(NamedTuple):
    """Computed as a whole in one step (modulo `STEP_MODULUS`)."""

    step: int


class OfSlot(NamedTuple):
    """Computed in chunks, in a use of a batch slot."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTask:
    """One attempt of a request, to be sent to one rank of a decode instance.

    Parameters
    ----------
    source_ids
        Block table on this side.
    target_ids
        Blocks on the other side for the positions from `num_cached_tokens` on.
    num_cached_tokens
        Leading tokens that the decode instance has: whole blocks, or the whole prompt.
    num_tokens
        Tokens that are sent in the end, with those cached. The last block goes with the last of
        them, full or not.
    computed
        What says when its layers are computed.
    deadline_at
        When it is given up; None: never.
    """

    request_id: RequestId
    attempt: int
    peer: Peer
    source_ids: tuple[BlockId, ...]
    target_ids: tuple[BlockId, ...]
    num_cached_tokens: int
    num_tokens: int
    computed: OfStep | OfSlot
    deadline_at: int | None = None


def first_position(task: SendTask, block_size: int) -> int:
    """Return the first position of the block table that is sent.

    Raises
    ------
    MisuseError
        If the numbers of the task do not fit each other.
    """
    where = f"attempt {task.attempt} of request {task.request_id}"
    num_blocks = len(task.source_ids)
    if task.num_tokens < 1 or num_blocks < -(-task.num_tokens // block_size):
        raise MisuseError(
            f"{where}: {task.num_tokens} tokens do not lie in {num_blocks} blocks of {block_size}"
        )
    is_whole = task.num_cached_tokens >= task.num_tokens
    if task.num_cached_tokens < 0 or (task.num_cached_tokens % block_size and not is_whole):
        raise MisuseError(
            f"{where}: decode has {task.num_cached_tokens} tokens cached, which are no whole blocks"
            f" of {block_size}"
        )
    first = num_blocks if is_whole else task.num_cached_tokens // block_size
    if len(task.target_ids) != num_blocks - first:
        raise MisuseError(
            f"{where}: {len(task.target_ids)} target blocks for positions {first} to {num_blocks}"
        )
    return first
