"""A tier: a pool of block ids, copies, a policy.

Of the ids, free + held + quarantined + retiring == capacity, always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.residency import Copies
from kvsim.errors import InvariantError, MisuseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import EvictionPolicy
    from kvsim.types import BlockId, NodeId, OpId, TierIndex


class BlockPool:
    """The block ids of one tier.

    A held id has one owner (a node's copy or an attempt's table); a quarantined one belongs to an
    op that timed out and may still be touching the memory. A retiring one is held, and does not
    become free when its owner lets go: the tier has been made smaller, and the id ceases to exist.

    Attributes
    ----------
    capacity
        Ids that exist. More than `limit` only while some are retiring, or quarantined beyond it.
    limit
        Ids from here on are not handed out any more.
    free
        Blocks that `take` can hand out. Read freely; changed here only.
    retiring
        Held ids from `limit` on. Nearly always empty.
    """

    __slots__ = ("_quarantined", "capacity", "free", "limit", "num_quarantined", "retiring")

    def __init__(self, capacity: int) -> None:
        self.capacity = self.limit = capacity
        self.retiring: set[BlockId] = set()
        # Taken from the end: the last block given back is the warmest.
        self.free: list[BlockId] = list(range(capacity - 1, -1, -1))
        self._quarantined: dict[OpId, list[BlockId]] = {}
        self.num_quarantined = 0

    @property
    def num_held(self) -> int:
        """Blocks that have an owner, the retiring ones not counted."""
        return self.num_owned - len(self.retiring)

    @property
    def num_owned(self) -> int:
        """Blocks that have an owner, retiring or not."""
        return self.capacity - len(self.free) - self.num_quarantined

    def take(self, n: int) -> list[BlockId]:
        """Hand out `n` free blocks.

        Raises
        ------
        MisuseError
            If fewer are free; nothing has changed then.
        """
        free = self.free
        if n > len(free):
            raise MisuseError(f"{n} blocks asked for, {len(free)} free of {self.capacity}")
        if n <= 0:
            return []
        block_ids = free[-n:]
        del free[-n:]
        return block_ids

    def give(self, block_ids: Sequence[BlockId]) -> None:
        """Take held blocks back as free.

        Raises
        ------
        MisuseError
            If one is named twice, or more come back than are held; nothing has changed then. A
            single block that is not held is not noticed here, but by `check()`: a mark per block
            would be two more loops over every block that comes or goes.
        """
        free = self.free
        n = len(block_ids)
        if n > self.capacity - len(free) - self.num_quarantined or len(set(block_ids)) != n:
            self._refuse(block_ids)
        free += self._retire(block_ids) if self.retiring else block_ids

    def give_dropped(self, block_ids: Sequence[BlockId]) -> None:
        """As `give`, for the blocks of copies that have just become ABSENT.

        The residency machine lets each copy go once, so only their number is looked at.
        """
        free = self.free
        if len(block_ids) > self.capacity - len(free) - self.num_quarantined:
            self._refuse(block_ids)
        free += self._retire(block_ids) if self.retiring else block_ids

    def quarantine(self, op_id: OpId, block_ids: Sequence[BlockId]) -> None:
        """Set held blocks aside until `unquarantine(op_id)`."""
        if len(block_ids) > self.num_owned or len(set(block_ids)) != len(block_ids):
            self._refuse(block_ids)
        self.retiring.difference_update(block_ids)
        self._quarantined.setdefault(op_id, []).extend(block_ids)
        self.num_quarantined += len(block_ids)

    def unquarantine(self, op_id: OpId) -> list[BlockId]:
        """Make the blocks set aside for `op_id` free; return them."""
        block_ids = self._quarantined.pop(op_id, [])
        self.num_quarantined -= len(block_ids)
        kept = [block_id for block_id in block_ids if block_id < self.limit]
        self.capacity -= len(block_ids) - len(kept)
        self.free += kept
        return block_ids

    def resize(self, num_blocks: int) -> None:
        """Have the ids below `num_blocks`: new ones are free, those beyond retire.

        Free ids beyond cease to exist at once, held ones when they are given back.
        """
        away = {b for blocks in self._quarantined.values() for b in blocks if b >= self.limit}
        existing = self.retiring | away
        new = [b for b in range(self.limit, num_blocks) if b not in existing]
        if num_blocks < self.limit:
            owned = set(range(num_blocks, self.limit)).difference(
                self.free, *self._quarantined.values()
            )
            self.free = [block_id for block_id in self.free if block_id < num_blocks]
            self.retiring |= owned
        else:
            self.retiring = {block_id for block_id in self.retiring if block_id >= num_blocks}
            # As at the start: the lowest is taken first, and what was given back before these.
            self.free[:0] = reversed(new)
        self.limit = num_blocks
        away = {b for blocks in self._quarantined.values() for b in blocks if b >= num_blocks}
        self.capacity = num_blocks + len(self.retiring) + len(away)

    def _retire(self, block_ids: Sequence[BlockId]) -> list[BlockId]:
        """Let those of the ids that are retiring go; return the others."""
        kept = [block_id for block_id in block_ids if block_id < self.limit]
        self.retiring.difference_update(block_ids)
        self.capacity -= len(block_ids) - len(kept)
        return kept

    def check(self, owned: Sequence[BlockId]) -> None:
        """Raise `InvariantError` unless the classes are disjoint, complete and as `owned` says."""
        quarantined = [b for blocks in self._quarantined.values() for b in blocks]
        retiring = {block_id for block_id in owned if block_id >= self.limit}
        every = sorted([*self.free, *owned, *quarantined])
        beyond = sorted(retiring.union(b for b in quarantined if b >= self.limit))
        if every != [*range(self.limit), *beyond] or len(every) != self.capacity:
            raise InvariantError(
                f"{len(self.free)} free, {len(owned)} owned and {len(quarantined)} quarantined"
                f" blocks are not the {self.capacity} of the pool, each once"
            )
        if retiring != self.retiring:
            raise InvariantError(f"{sorted(self.retiring)} are retiring, {sorted(retiring)} found")
        if len(quarantined) != self.num_quarantined:
            raise InvariantError(f"{self.num_quarantined} quarantined, {len(quarantined)} found")

    def _refuse(self, block_ids: Sequence[BlockId]) -> None:
        if len(set(block_ids)) != len(block_ids):
            raise MisuseError(f"a block is named twice in {list(block_ids)}")
        raise MisuseError(
            f"{len(block_ids)} blocks come back, {self.num_held} of {self.capacity} are held"
        )


class Tier:
    """One tier of an instance: its blocks, the copies in them, and the order they leave in.

    Attributes
    ----------
    below
        The next tier; None for the last.
    reads
        Open ops that read a READY copy, by node. Few: only copies on their way up, copies hit
        again on their way down, and those being written through. Part of `copies.holds`.
    forgets_reads
        Whether the policy does not know the copies in `reads`: in an exclusive tier below they are
        on their way up, and gone when they are there.
    drop_next
        The last write-back from here failed: the next eviction drops instead, so that a broken
        link cannot stop the instance.
    due
        Nodes to be written through to the tier below, in the order in which that became due.
    """

    __slots__ = (
        "below",
        "copies",
        "drop_next",
        "due",
        "forgets_reads",
        "index",
        "policy",
        "pool",
        "reads",
    )

    def __init__(
        self,
        index: TierIndex,
        capacity: int,
        num_nodes: int,
        policy: EvictionPolicy,
        *,
        forgets_reads: bool = False,
    ) -> None:
        self.index = index
        self.pool = BlockPool(capacity)
        self.copies = Copies(num_nodes)
        self.policy = policy
        self.reads: dict[NodeId, int] = {}
        self.below: Tier | None = None
        self.forgets_reads = forgets_reads
        self.drop_next = False
        self.due: dict[NodeId, None] = {}
