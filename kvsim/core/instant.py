"""Requests one after another, every op done at once: hit rates without time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.admission import ADMITTED, Blocked
from kvsim.core.attempt import Attempt, BlockLayout
from kvsim.core.ops import Completion, Outcome
from kvsim.errors import StalledError
from kvsim.events import EndReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvsim.core.admission import AdmitOutcome
    from kvsim.core.manager import CacheManager
    from kvsim.core.ops import Transfer
    from kvsim.types import Request


class InstantHit:
    """What one request found: leading blocks by tier, or that it can never fit."""

    __slots__ = ("is_refused", "num_cpu_blocks", "num_disk_blocks", "num_gpu_blocks", "request")

    def __init__(
        self,
        request: Request,
        num_gpu: int,
        num_cpu: int,
        num_disk: int = 0,
        *,
        is_refused: bool,
    ) -> None:
        self.request = request
        self.num_gpu_blocks = num_gpu
        self.num_cpu_blocks = num_cpu
        self.num_disk_blocks = num_disk
        self.is_refused = is_refused


def replay_instantly(manager: CacheManager, requests: Iterable[Request]) -> Iterator[InstantHit]:
    """Put each request through `manager` and out again before the next; yield what it hit.

    Prompt blocks only: no output tokens, no decode reserve. A request with more blocks than the
    GPU tier is refused.
    """
    block_size = manager.config.block_size
    capacity = manager.config.tier_blocks[0]
    has_middle = manager.num_tiers > 2
    for request in requests:
        num_keys = len(request.block_keys)
        if num_keys > capacity:
            yield InstantHit(request, 0, 0, is_refused=True)
            continue
        # A partial last block that is not a block of its own takes no room here.
        layout = BlockLayout(request, block_size)
        attempt = Attempt(request, number=0, layout=layout, num_made=0, num_wanted_blocks=num_keys)
        now = request.arrived_at
        if has_middle:
            _finish(manager, manager.make_room_below(num_keys, now), now)
        outcome = manager.admit(attempt, now)
        if outcome is not ADMITTED:
            _admit_at_last(manager, attempt, outcome, now)
        manager.fill_at_once(attempt, num_keys)
        num_below, num_disk = attempt.num_reload_blocks, attempt.num_disk_blocks
        num_gpu = attempt.num_hit_blocks - num_below
        yield InstantHit(request, num_gpu, num_below - num_disk, num_disk, is_refused=False)
        manager.release(attempt, EndReason.FINISHED, now)
        # After the release, which stamps what is below: what is written now is newer than that.
        while manager.has_writes_due:
            _finish(manager, manager.write_through(now), now)


def _admit_at_last(
    manager: CacheManager, attempt: Attempt, outcome: AdmitOutcome, now: int
) -> None:
    """Finish at once whatever an admission takes: with nothing else running it must succeed."""
    while True:
        ops = () if isinstance(outcome, Blocked) else outcome.ops
        _finish(manager, ops, now)
        if attempt.is_admitted:
            return
        if not ops:
            raise StalledError(f"request {attempt.request.request_id} found no room: {outcome}")
        outcome = manager.admit(attempt, now)


def _finish(manager: CacheManager, ops: Iterable[Transfer], now: int) -> None:
    """Let ops end, well and at once."""
    for op in ops:
        manager.settle(
            Completion(op_id=op.op_id, outcome=Outcome.DONE, started_at=now, finished_at=now)
        )
