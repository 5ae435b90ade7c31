"""What the core costs, as multiples of a floor measured in the same run (median of 5).

The floor is a plain OrderedDict LRU of 10,000 blocks over the same block references. Absolute
times are noise on a shared machine; a ratio to a loop of the same interpreter, taken just before
and just after, is not far from one. Run by `make bench`; reads the folder named by KVSIM_TRACES.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
import tracemalloc
from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from kvsim.backends.sim import SimBackend
from kvsim.collector import paused_collector
from kvsim.config import CacheConfig, SchedulerConfig
from kvsim.core.engine import run
from kvsim.core.instant import replay_instantly
from kvsim.core.manager import CacheManager
from kvsim.core.scheduler import Scheduler
from kvsim.cost import RooflineCost
from kvsim.policies import policy_factory
from kvsim.presets import find_hardware, find_model
from kvsim.trace import load

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from kvsim.core.ports import AccessInfo, PolicyContext, RemoveReason
    from kvsim.events import Event
    from kvsim.types import Request

REPEATS = 5
GPU_BLOCKS, CPU_BLOCKS, SWAP_BATCH = 10_000, 20_000, 128
COPIES = 10
SATURATING_LOAD = 8  # arrivals this much faster keep the instance busy throughout


class EventLog:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        """Keep one event."""
        self.events.append(event)


class UserLRU:
    """LRU as a user would write it in the per-block form: an OrderedDict of evictable keys."""

    def __init__(self, context: PolicyContext) -> None:
        del context
        self._used_at: dict[Hashable, int] = {}
        self._evictable: OrderedDict[Hashable, None] = OrderedDict()
        self._clock = 0

    def on_insert(self, key: Hashable, depth: int, info: AccessInfo) -> None:
        """Stamp the block."""
        del depth, info
        self._clock += 1
        self._used_at[key] = self._clock

    def on_hit(self, key: Hashable, depth: int, info: AccessInfo) -> None:
        """Stamp the block."""
        self.on_insert(key, depth, info)

    def on_evictable(self, key: Hashable) -> None:
        """List the block: a leaf becomes evictable in the order of its last use, or nearly."""
        self._evictable[key] = None

    def on_pinned(self, key: Hashable) -> None:
        """Take the block off the list."""
        self._evictable.pop(key, None)

    def on_remove(self, key: Hashable, reason: RemoveReason) -> None:
        """Forget the block."""
        del reason
        self._evictable.pop(key, None)
        del self._used_at[key]

    def choose_victim(self, now: int) -> Hashable | None:
        """Return the first of the list."""
        del now
        return next(iter(self._evictable), None)


def floor_seconds(requests: Sequence[Request]) -> float:
    """Time the floor: one OrderedDict LRU pass over every block reference."""
    cache: OrderedDict[Hashable, None] = OrderedDict()
    began = time.perf_counter()
    for request in requests:
        for key in request.block_keys:
            if key in cache:
                cache.move_to_end(key)
            else:
                cache[key] = None
                if len(cache) > GPU_BLOCKS:
                    cache.popitem(last=False)
    return time.perf_counter() - began


def instant(requests: Sequence[Request], policy: object = "lru") -> float:
    """Time an instant replay on the GPU tier alone."""
    _, factory, _ = policy_factory(policy)  # type: ignore[arg-type]
    manager = CacheManager(CacheConfig(tier_blocks=(GPU_BLOCKS,)), factory, rng=random.Random(0))
    with paused_collector():  # as kvsim.replay does
        began = time.perf_counter()
        for _ in replay_instantly(manager, requests):
            pass
        return time.perf_counter() - began


def timed(requests: Sequence[Request], *, sink: EventLog | None = None) -> float:
    """Time a full simulation: two tiers, transfers, scheduler, roofline cost."""
    engine = new_engine(requests, sink=sink)
    with paused_collector():
        began = time.perf_counter()
        run(*engine)
        return time.perf_counter() - began


def new_engine(
    requests: Sequence[Request], *, sink: EventLog | None = None
) -> tuple[Scheduler, SimBackend]:
    """Make a scheduler and a simulator of an 8B model on one 8 x 141 GB node."""
    hardware = find_hardware("h200-8x")
    cost = RooflineCost(find_model("llama-3.1-8b"), hardware, block_size=512)
    config = CacheConfig(
        tier_blocks=(GPU_BLOCKS, CPU_BLOCKS),
        swap_batch_blocks=SWAP_BATCH,
        low_watermark_blocks=SWAP_BATCH,
    )
    _, factory, _ = policy_factory("lru")
    manager = CacheManager(config, factory, rng=random.Random(0), sink=sink)
    scheduler = Scheduler(manager, requests, SchedulerConfig(), sink=sink)
    backend = SimBackend(cost, links=hardware.host_link, num_ranks=hardware.num_gpus)
    return scheduler, backend


def ratio(requests: Sequence[Request], measure: Callable[[], float]) -> tuple[float, float, float]:
    """Return (median, least, greatest) of measure / floor, floors taken before and after."""
    ratios = []
    for _ in range(REPEATS):
        before = min(floor_seconds(requests) for _ in range(3))
        taken = measure()
        after = min(floor_seconds(requests) for _ in range(3))
        ratios.append(2 * taken / (before + after))
    return median(ratios), min(ratios), max(ratios)


def repeated(requests: Sequence[Request], copies: int) -> list[Request]:
    """Return the trace `copies` times over, one after another, with ids of their own."""
    span = requests[-1].arrived_at + 10**9
    num_ids = 1 + max(key for r in requests for key in r.block_keys if isinstance(key, int))
    return [
        replace(
            request,
            request_id=copy * len(requests) + request.request_id,
            arrived_at=copy * span + request.arrived_at,
            block_keys=[key + copy * num_ids for key in request.block_keys if isinstance(key, int)],
        )
        for copy in range(copies)
        for request in requests
    ]


def growth(requests: Sequence[Request]) -> float:
    """Return (time of copies 7 to 9) / (time of copies 2 to 4) in one instant run of ten."""
    _, factory, _ = policy_factory("lru")
    config = CacheConfig(tier_blocks=(GPU_BLOCKS, CPU_BLOCKS), swap_batch_blocks=SWAP_BATCH)
    manager = CacheManager(config, factory, rng=random.Random(0))
    marks = [time.perf_counter()]
    size = len(requests)
    with paused_collector():
        for i, _ in enumerate(replay_instantly(manager, repeated(requests, COPIES)), 1):
            if i % size == 0:
                marks.append(time.perf_counter())
    seconds = [late - early for early, late in pairwise(marks)]
    return sum(seconds[6:9]) / sum(seconds[1:4])


def timed_growth(requests: Sequence[Request]) -> float:
    """As `growth`, with the full simulation: by the times at which each copy's requests ended."""
    many = repeated(requests, COPIES)
    scheduler, backend = new_engine(many)
    size = len(requests)
    marks = {0: time.perf_counter()}

    class Watch:
        """Notes when each copy is through."""

        def turn(self, now: int, commands: object, answers: object) -> None:
            """Look how many requests have ended."""
            done = len(scheduler.ended) // size
            if done not in marks:
                marks[done] = time.perf_counter()

    with paused_collector():
        run(scheduler, backend, observer=Watch())
    at = [marks[i] for i in range(COPIES + 1)]
    return (at[9] - at[6]) / (at[4] - at[1])


def bytes_per_block(requests: Sequence[Request]) -> float:
    """Return the memory of a full two-tier cache per block of capacity, keys not counted."""
    gc.collect()
    tracemalloc.start()
    _, factory, _ = policy_factory("lru")
    config = CacheConfig(tier_blocks=(GPU_BLOCKS, CPU_BLOCKS), swap_batch_blocks=SWAP_BATCH)
    manager = CacheManager(config, factory, rng=random.Random(0))
    for _ in replay_instantly(manager, requests):
        pass
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / (GPU_BLOCKS + CPU_BLOCKS)


def main() -> int:
    """Print every figure beside its target."""
    folder = os.environ.get("KVSIM_TRACES")
    if not folder:
        print("bench: set KVSIM_TRACES to the folder that holds mooncake/conversation_trace.jsonl")
        return 2
    trace = load(Path(folder) / "mooncake" / "conversation_trace.jsonl")
    requests = trace.requests
    budget = SchedulerConfig().token_budget
    print(
        f"conversation, {len(requests):,} requests; {GPU_BLOCKS:,} GPU + {CPU_BLOCKS:,} CPU blocks,"
        f" swap batch and low-water mark {SWAP_BATCH}, 1 x load, token budget {budget},"
        f" llama-3.1-8b on h200-8x; Python {sys.version.split()[0]}; median (least to greatest)"
    )
    busy = [replace(r, arrived_at=r.arrived_at // SATURATING_LOAD) for r in requests]
    rows: list[tuple[str, Callable[[], float], float]] = [
        ("timed, event sink off", lambda: timed(requests), 14),
        (f"timed, event sink off, {SATURATING_LOAD} x load", lambda: timed(busy), 14),
        ("timed, event sink on", lambda: timed(requests, sink=EventLog()), 22),
        ("instant LRU, GPU tier only", lambda: instant(requests), 5),
    ]
    for name, measure, target in rows:
        middle, least, most = ratio(requests, measure)
        print(f"{name:42} {middle:6.2f} x floor ({least:.2f} to {most:.2f}), target {target}")
    comparisons: list[tuple[str, Callable[[], float], str]] = [
        (
            "per-block policy through the adapter",
            lambda: instant(requests, UserLRU) / instant(requests),
            "x instant, target 12",
        ),
        ("growth, instant, copies 7-9 / 2-4", lambda: growth(requests), "x, target 1.15"),
        ("growth, timed, copies 7-9 / 2-4", lambda: timed_growth(requests), "x, target 1.15"),
    ]
    for name, compare, target_text in comparisons:
        figures = sorted(compare() for _ in range(3))
        print(f"{name:42} {figures[1]:6.2f} {target_text} ({figures[0]:.2f} to {figures[2]:.2f})")
    print(f"{'memory':42} {bytes_per_block(requests):6.0f} bytes a block of capacity, target 300")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
