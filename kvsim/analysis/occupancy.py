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


class TierOccupancy:
    """The blocks of one tier.

    Attributes
    ----------
    counts
        How many blocks are in each `BlockUse`; they add up to the capacity.
    block_of
        The block of every key that can be read in this tier.
    """

    def __init__(self, capacity: int) -> None:
        self.counts: dict[BlockUse, int] = dict.fromkeys(USES, 0)
        self.counts[BlockUse.FREE] = capacity
        self.block_of: dict[BlockKey, BlockId] = {}
        self._use: dict[BlockId, BlockUse] = {}

    def move(self, block_ids: Iterable[BlockId], new: BlockUse, *old: BlockUse) -> None:
        """Put blocks to a new use.

        Raises
        ------
        InvariantError
            If one was not in one of the uses `old`.
        """
        uses, counts = self._use, self.counts
        for block_id in block_ids:
            use = uses.get(block_id, BlockUse.FREE)
            if use not in old:
                raise InvariantError(f"block {block_id} is {use}, not {' or '.join(old)}: {new}")
            counts[use] -= 1
            counts[new] += 1
            if new is BlockUse.FREE:
                del uses[block_id]
            else:
                uses[block_id] = new

    def state_of(self, key: BlockKey) -> BlockUse | None:
        """Return READY or LEAVING for a key that can be read here; None for any other."""
        block_id = self.block_of.get(key)
        return None if block_id is None else self._use[block_id]


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
                self.tiers[0].move(event.block_ids, BlockUse.INCOMING, BlockUse.PRIVATE)
            case TransferIssued():
                self._issue(event)
            case BlocksStored():
                tier = self.tiers[event.tier]
                self._disown(event.tier, event.block_ids)
                tier.move(event.block_ids, BlockUse.READY, BlockUse.INCOMING, BlockUse.PRIVATE)
                tier.block_of.update(zip(event.keys, event.block_ids, strict=True))
            case BlocksRemoved():
                self._remove(event)
            case BlocksKept():
                tier = self.tiers[event.tier]
                blocks = [tier.block_of[key] for key in event.keys]
                tier.move(blocks, BlockUse.READY, BlockUse.LEAVING)
            case BlocksFreed():
                self._disown(event.tier, event.block_ids)
                self.tiers[event.tier].move(
                    event.block_ids,
                    BlockUse.FREE,
                    BlockUse.INCOMING,
                    BlockUse.PRIVATE,
                    BlockUse.QUARANTINED,
                    BlockUse.DETACHED,
                )
            case BlocksQuarantined():
                self._disown(event.tier, event.block_ids)
                self.tiers[event.tier].move(
                    event.block_ids, BlockUse.QUARANTINED, BlockUse.INCOMING, BlockUse.PRIVATE
                )
            case _:
                pass

    def _take_private(self, request_id: RequestId, block_ids: Sequence[BlockId]) -> None:
        self.tiers[0].move(block_ids, BlockUse.PRIVATE, BlockUse.FREE)
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
        self.tiers[0].move(block_ids, BlockUse.FREE, BlockUse.PRIVATE)

    def _issue(self, event: TransferIssued) -> None:
        self.tiers[event.target].move(event.target_ids, BlockUse.INCOMING, BlockUse.FREE)
        if event.releases_source:
            self.tiers[event.source].move(event.source_ids, BlockUse.LEAVING, BlockUse.READY)

    def _remove(self, event: BlocksRemoved) -> None:
        tier = self.tiers[event.tier]
        block_ids = list(map(tier.block_of.pop, event.keys))
        is_held = event.cause is RemoveCause.DETACHED
        new = BlockUse.DETACHED if is_held else BlockUse.FREE
        tier.move(block_ids, new, BlockUse.READY, BlockUse.LEAVING)
