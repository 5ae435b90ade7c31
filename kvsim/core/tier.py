"""A tier: a pool of block ids (free + held + quarantined == capacity, always), copies, a policy."""

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
    op that timed out and may still be touching the memory.

    Attributes
    ----------
    free
        Blocks that `take` can hand out. Read freely; changed here only.
    """

    __slots__ = ("_quarantined", "capacity", "free", "num_quarantined")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # Taken from the end: the last block given back is the warmest.
        self.free: list[BlockId] = list(range(capacity - 1, -1, -1))
        self._quarantined: dict[OpId, list[BlockId]] = {}
        self.num_quarantined = 0

    @property
    def num_held(self) -> int:
        """Blocks that have an owner."""
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
        free += block_ids

    def give_dropped(self, block_ids: Sequence[BlockId]) -> None:
        """As `give`, for the blocks of copies that have just become ABSENT.

        The residency machine lets each copy go once, so only their number is looked at.
        """
        free = self.free
        if len(block_ids) > self.capacity - len(free) - self.num_quarantined:
            self._refuse(block_ids)
        free += block_ids

    def quarantine(self, op_id: OpId, block_ids: Sequence[BlockId]) -> None:
        """Set held blocks aside until `unquarantine(op_id)`."""
        if len(block_ids) > self.num_held or len(set(block_ids)) != len(block_ids):
            self._refuse(block_ids)
        self._quarantined.setdefault(op_id, []).extend(block_ids)
        self.num_quarantined += len(block_ids)

    def unquarantine(self, op_id: OpId) -> list[BlockId]:
        """Make the blocks set aside for `op_id` free; return them."""
        block_ids = self._quarantined.pop(op_id, [])
        self.free += block_ids
        self.num_quarantined -= len(block_ids)
        return block_ids

    def check(self, owned: Sequence[BlockId]) -> None:
        """Raise `InvariantError` unless the classes are disjoint, complete and as `owned` says."""
        quarantined = [b for blocks in self._quarantined.values() for b in blocks]
        every = sorted([*self.free, *owned, *quarantined])
        if every != list(range(self.capacity)):
            raise InvariantError(
                f"{len(self.free)} free, {len(owned)} owned and {len(quarantined)} quarantined"
                f" blocks are not the {self.capacity} of the pool, each once"
            )
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
    reads
        Open ops that read a READY copy, by node. Few: only copies on their way up, and copies
        hit again on their way down. Part of `copies.holds`.
    """

    __slots__ = ("copies", "index", "policy", "pool", "reads")

    def __init__(
        self, index: TierIndex, capacity: int, num_nodes: int, policy: EvictionPolicy
    ) -> None:
        self.index = index
        self.pool = BlockPool(capacity)
        self.copies = Copies(num_nodes)
        self.policy = policy
        self.reads: dict[NodeId, int] = {}
