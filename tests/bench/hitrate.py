"""What the lab costs, as multiples of the floor of `run.py` measured in the same run.

A ratio is a time over the mean of the floors taken just before and just after; the median of 5.
Run by `make bench`, from the root of the checkout; reads the folder named by KVSIM_TRACES.
"""

from __future__ import annotations

import gc
import os
import time
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from kvsim.collector import paused_collector
from kvsim.hitrate import lru_curve, opt_curve, replay, tier_plane
from kvsim.hitrate.paths import number_nodes
from kvsim.hitrate.storage import access_infos, policy_runs
from kvsim.policies import policy_factory
from kvsim.policies.lru import LRU
from kvsim.trace import load
from tests.bench.run import COPIES, UserLRU, ratio, repeated

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.trace import Trace

CAPACITY = 10_000
SIZES = [1_000 * i for i in range(1, 11)]


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def rows_of(trace: Trace) -> list[tuple[str, Callable[[], float], float]]:
    """Return what is timed: its name, how, and the most floors that it may take."""
    nodes, infos = number_nodes(trace), access_infos(trace.requests)
    _, new_lru, _ = policy_factory(LRU)

    def ranked() -> None:
        with paused_collector():
            policy_runs(nodes, infos, new_lru, CAPACITY)

    work: list[tuple[str, Callable[[], object], float]] = [
        ("LRU curve, all capacities", lambda: lru_curve(trace), 2),
        ("LRU, one capacity", lambda: replay(trace, "lru", CAPACITY), 0.8),
        ("LRU key by the generic replay", ranked, 3),  # blocks numbered before
        ("LRU by the batch protocol, all in", lambda: replay(trace, LRU, CAPACITY), 4.5),
        ("LRU by the per-block adapter, all in", lambda: replay(trace, UserLRU, CAPACITY), 12),
        ("optimum, resident", lambda: opt_curve(trace, [CAPACITY]), 4),
        ("optimum, may bypass", lambda: opt_curve(trace, [CAPACITY], "bypass"), 4),
    ]
    return [(name, partial(seconds, each), most) for name, each, most in work]


def longer(trace: Trace) -> Trace:
    """Return the trace ten times over, with ids of its own in each copy."""
    return replace(trace, requests=tuple(repeated(trace.requests, COPIES)))


def peak_bytes_per_block(trace: Trace, work: Callable[[], object]) -> float:
    """Return the most memory that a call has beyond the trace, per unique block."""
    gc.collect()
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / trace.num_unique_blocks


def report(trace: Trace) -> None:
    """Print every figure of one trace beside its target."""
    print(f"{trace.name}, {trace.num_requests:,} requests; {CAPACITY:,} blocks, no time")
    for name, measure, target in rows_of(trace):
        middle, least, most = ratio(trace.requests, measure)
        print(f"{name:42} {middle:6.2f} x floor ({least:.2f} to {most:.2f}), target {target}")
    plane = median(
        seconds(lambda: tier_plane(trace, gpu=SIZES, cpu=SIZES).points())
        / seconds(lambda: lru_curve(trace))
        for _ in range(5)
    )
    print(f"{'plane of 100 sizes':42} {plane:6.2f} x the curve, target 1.5")
    many = longer(trace)
    works: list[tuple[str, Callable[[Trace], object]]] = [
        ("curve", lru_curve),
        ("optimum", lambda each: opt_curve(each, [CAPACITY])),
        ("batch protocol", lambda each: replay(each, LRU, CAPACITY)),
    ]
    for name, work in works:
        growth = median(
            seconds(partial(work, many)) / (COPIES * seconds(partial(work, trace)))
            for _ in range(3)
        )
        print(f"{f'growth, {name}, ten copies / 10 x one':42} {growth:6.2f} x, target 1.3")
    for name, work in works:
        peak = peak_bytes_per_block(trace, partial(work, trace))
        print(f"{f'peak memory, {name}':42} {peak:6.0f} bytes a unique block, target 250")


def main() -> int:
    """Report on both traces."""
    folder = os.environ.get("KVSIM_TRACES")
    if not folder:
        print("bench: set KVSIM_TRACES to the folder that holds mooncake/conversation_trace.jsonl")
        return 2
    for name in ("conversation", "synthetic"):
        report(load(Path(folder) / "mooncake" / f"{name}_trace.jsonl"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
