"""What a scheduler may admit: how many requests, and how large."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from kvsim.config import SchedulerConfig
    from kvsim.core.manager import CacheManager
    from kvsim.core.sequence import Sequence
    from kvsim.types import BlockKey, RequestId


class Limits:
    """How many requests may hold blocks at a time, and how many blocks one may have.

    Who never fits is refused at arrival, so that nobody waits for ever behind it. What is pinned
    leaves less room for those who do not share it.

    Attributes
    ----------
    max_running
        0 while nobody is to be admitted.
    present
        Requests that wait or run, by id.
    num_gpu_blocks
        Capacity of the GPU tier, as it is or is to be.
    pinned_keys
        Keys of the pinned prefixes, cached or not.
    """

    __slots__ = ("_config", "max_running", "num_gpu_blocks", "pinned_keys", "present")

    def __init__(self, manager: CacheManager, config: SchedulerConfig) -> None:
        self._config = config
        self.max_running = config.max_running
        self.num_gpu_blocks = manager.upkeep.num_blocks()
        self.pinned_keys: Collection[BlockKey] = manager.upkeep.pinned_keys
        self.present: dict[RequestId, Sequence] = {}

    def close(self) -> None:
        """Admit nobody until `open`."""
        self.max_running = 0

    def open(self) -> None:
        """Admit as configured."""
        self.max_running = self._config.max_running

    @property
    def most_blocks(self) -> int:
        """How many blocks any request may have at most."""
        most = self._config.max_blocks_per_request
        return self.num_gpu_blocks if most is None else min(most, self.num_gpu_blocks)

    def allowed_blocks(self, sequence: Sequence) -> int:
        """Return how many blocks the request may have at most."""
        return self.room_blocks(sequence, self.num_gpu_blocks, self.pinned_keys)

    def room_blocks(
        self, sequence: Sequence, num_gpu_blocks: int, pinned_keys: Collection[BlockKey]
    ) -> int:
        """Return the same for another capacity and other pins."""
        room = num_gpu_blocks
        if pinned_keys:
            shared = sum(key in pinned_keys for key in sequence.request.block_keys)
            room -= len(pinned_keys) - shared
        most = self._config.max_blocks_per_request
        return room if most is None else min(most, room)

    def misfit(self, num_gpu_blocks: int, pinned_keys: Collection[BlockKey]) -> Sequence | None:
        """Return a request that is here and would not fit with these; None: all would."""
        for sequence in self.present.values():
            if sequence.num_most_blocks > self.room_blocks(sequence, num_gpu_blocks, pinned_keys):
                return sequence
        return None
