"""What every block of every tier is used for, followed from the events alone."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from kvsim.errors import InvariantError
from kvsim.events import (
    AttemptEnded,
    BlocksFreed,
    BlocksKept,
    BlocksQuarantined,
    BlocksRemoved,
    BlocksStored,
    FillIssued,
    RemoveCause,
    RequestAdmitted,
    RequestGrown,
    TransferIssued,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.events import Event
    from kvsim.types import BlockId, BlockKey, RequestId, TierIndex


class BlockUse(StrEnum):
    """What a block is used for. Each block of a tier is in exactly one of these."""

    FREE = "free"
    READY = "ready"
    """Holds a copy that can be read."""
    INCOMING = "incoming"
    """Reserved for a copy that an op will write, or is writing."""
    LEAVING = "leaving"
    """Holds a copy that can be read until its write-back is done."""
    PRIVATE = "private"
    """Belongs to one running request: blocks that are not full, and its reserve."""
    QUARANTINED = "quarantined"
    """An op that timed out may still touch it."""
    DETACHED = "detached"
    """Holds a copy that was taken out of the tree while something still used it."""


USES: Final = tuple(BlockUse)

# Positions in USES: plain ints, since an enum member as a key calls Python.
_FREE, _READY, _INCOMING, _LEAVING, _PRIVATE, _QUARANTINED, _DETACHED = range(len(USES))
_UNREADABLE: Final = (_INCOMING, _PRIVATE, _QUARANTINED, _DETACHED)


class TierOccupancy:
    """The blocks of one tier.

    Attributes
    ----------
    num_in
        How many blocks are in each of `USES`, in that order; they add up to the capacity.
    block_of
        The block of every key that can be read in this tier.
    """

    __slots__ = ("_use", "block_of", "num_in")

    def __init__(self, capacity: int) -> None:
        self.num_in = [capacity, *[0] * (len(USES) - 1)]
        self.block_of: dict[BlockKey, BlockId] = {}
        self._use: dict[BlockId, int] = {}

    @property
    def counts(self) -> dict[BlockUse, int]:
        """How many blocks are in each use."""
        return dict(zip(USES, self.num_in, strict=True))

    def move(self, block_ids: Iterable[BlockId], new: int, *old: int) -> None:
        """Put blocks to a new use; uses are positions in `USES`.

        Raises
        ------
        InvariantError
            If one was not in one of the uses `old`.
        """
        uses, num_in = self._use, self.num_in
        for block_id in block_ids:
            use = uses.get(block_id, _FREE)
            if use not in old:
                wanted = " or ".join(USES[each] for each in old)
                raise InvariantError(
                    f"block {block_id} is {USES[use]}, not {wanted}, and is said to be {USES[new]}"
                )
            num_in[use] -= 1
            num_in[new] += 1
            uses[block_id] = new


class Occupancy:
    """An event sink that knows what every block is used for.

    Parameters
    ----------
    tier_blocks
        Blocks of each tier, the GPU first.
    """

    def __init__(self, tier_blocks: Sequence[int]) -> None:
        self.tiers = [TierOccupancy(capacity) for capacity in tier_blocks]
        self._owner: dict[BlockId, RequestId] = {}
        self._private: dict[RequestId, set[BlockId]] = {}

    def emit(self, event: Event) -> None:
        """Take one event.

        Raises
        ------
        InvariantError
            If a block is put to a use that it cannot come to from its present one.
        """
        match event:
            case RequestAdmitted():
                self._take_private(event.request_id, event.private_block_ids)
            case RequestGrown():
                self._take_private(event.request_id, event.block_ids)
            case AttemptEnded():
                self._give_private(event.request_id)
            case FillIssued():
                self._disown(0, event.block_ids)
                self.tiers[0].move(event.block_ids, _INCOMING, _PRIVATE)
            case TransferIssued():
                self._issue(event)
            case BlocksStored():
                tier = self.tiers[event.tier]
                self._disown(event.tier, event.block_ids)
                tier.move(event.block_ids, _READY, _INCOMING, _PRIVATE)
                tier.block_of.update(zip(event.keys, event.block_ids, strict=True))
            case BlocksRemoved():
                self._remove(event)
            case BlocksKept():
                tier = self.tiers[event.tier]
                blocks = [tier.block_of[key] for key in event.keys]
                tier.move(blocks, _READY, _LEAVING)
            case BlocksFreed():
                self._disown(event.tier, event.block_ids)
                self.tiers[event.tier].move(event.block_ids, _FREE, *_UNREADABLE)
            case BlocksQuarantined():
                self._disown(event.tier, event.block_ids)
                self.tiers[event.tier].move(event.block_ids, _QUARANTINED, _INCOMING, _PRIVATE)
            case _:
                pass

    def _take_private(self, request_id: RequestId, block_ids: Sequence[BlockId]) -> None:
        self.tiers[0].move(block_ids, _PRIVATE, _FREE)
        self._private.setdefault(request_id, set()).update(block_ids)
        self._owner.update(dict.fromkeys(block_ids, request_id))

    def _disown(self, tier: TierIndex, block_ids: Sequence[BlockId]) -> None:
        """Take blocks that were private, if they were, from their owners."""
        if tier == 0:
            for block_id in block_ids:
                owner = self._owner.pop(block_id, None)
                if owner is not None:
                    self._private[owner].discard(block_id)

    def _give_private(self, request_id: RequestId) -> None:
        block_ids = self._private.pop(request_id, set())
        for block_id in block_ids:
            del self._owner[block_id]
        self.tiers[0].move(block_ids, _FREE, _PRIVATE)

    def _issue(self, event: TransferIssued) -> None:
        self.tiers[event.target].move(event.target_ids, _INCOMING, _FREE)
        if event.releases_source:
            self.tiers[event.source].move(event.source_ids, _LEAVING, _READY)

    def _remove(self, event: BlocksRemoved) -> None:
        tier = self.tiers[event.tier]
        block_ids = list(map(tier.block_of.pop, event.keys))
        is_held = event.cause is RemoveCause.DETACHED
        new = _DETACHED if is_held else _FREE
        tier.move(block_ids, new, _READY, _LEAVING)
