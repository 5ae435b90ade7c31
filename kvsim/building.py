"""Puts the core together as settings and a trace want it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from kvsim.core.interventions import Operator, check_tiers
from kvsim.core.manager import CacheManager
from kvsim.core.scheduler import Scheduler
from kvsim.interventions import resolve_interventions
from kvsim.policies.retention import has_retention, with_retention
from kvsim.sizing import cost_model, most_blocks, without_excess

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.core.engine import Decider
    from kvsim.core.ports import EventSink, EvictionPolicy, PolicyContext
    from kvsim.replay_config import ReplayConfig
    from kvsim.trace import Trace


class Core(NamedTuple):
    """The parts of a run in time. `decider` is what the engine's loop drives.

    `operator` gives the interventions; None: there are none, and the scheduler is the decider.
    """

    manager: CacheManager
    scheduler: Scheduler
    decider: Decider
    operator: Operator | None


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
    if has_retention(trace.requests):
        new_policy = with_retention(new_policy)
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
) -> Core:
    """Return the core of a run in time, before its first turn.

    The parameters are those of `build_manager`; the requests of `trace` have their next uses if
    the policy needs them.

    Raises
    ------
    ConfigError
        If an intervention concerns a request or a tier that is not there.
    """
    manager = build_manager(config, trace, new_policy, sink=sink)
    scheduler = Scheduler(manager, trace.requests, config.scheduler(), sink=sink)
    if not config.interventions:
        return Core(manager, scheduler, scheduler, None)
    scale = config.time_scale
    orders = resolve_interventions(
        config.interventions,
        trace,
        most_blocks=most_blocks(config, trace),
        speed=scale if isinstance(scale, int | float) else 1.0,
    )
    check_tiers(orders, len(manager.config.tier_blocks))
    operator = Operator(manager, scheduler, orders, sink=sink)
    return Core(manager, scheduler, operator, operator)
