"""Puts the core together as settings and a trace want it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from kvsim.core.manager import CacheManager
from kvsim.core.scheduler import Scheduler
from kvsim.sizing import cost_model, without_excess

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.core.ports import EventSink, EvictionPolicy, PolicyContext
    from kvsim.replay_config import ReplayConfig
    from kvsim.trace import Trace


def build_manager(
    config: ReplayConfig,
    trace: Trace,
    new_policy: Callable[[PolicyContext], EvictionPolicy],
    *,
    sink: EventSink | None = None,
) -> CacheManager:
    """Return the cache manager of a run.

    Parameters
    ----------
    config
        Settings with nothing left open (`kvsim.api.resolve`).
    trace
        The requests.
    new_policy
        Makes the policy of a tier.
    sink
        Where events go; None: nowhere.
    """
    return CacheManager(
        without_excess(config, trace).cache(block_size=trace.block_size),
        new_policy,
        rng=Random(config.seed),
        recompute_ns=cost_model(config, trace.block_size).recompute_ns,
        transfer_timeout_ns=config.transfer_timeout_ns,
        sink=sink,
    )


def build_core(
    config: ReplayConfig,
    trace: Trace,
    new_policy: Callable[[PolicyContext], EvictionPolicy],
    *,
    sink: EventSink | None = None,
) -> tuple[CacheManager, Scheduler]:
    """Return the manager and the scheduler of a run in time, before its first turn.

    The parameters are those of `build_manager`; the requests of `trace` have their next uses if
    the policy needs them.
    """
    manager = build_manager(config, trace, new_policy, sink=sink)
    return manager, Scheduler(manager, trace.requests, config.scheduler(), sink=sink)
