"""Puts the core together as settings and a trace want it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from kvsim.config import Role
from kvsim.core.handoff import Instance
from kvsim.core.interventions import Operator, check_tiers
from kvsim.core.manager import CacheManager
from kvsim.core.ops import OpIds
from kvsim.core.scheduler import Scheduler
from kvsim.core.split import SplitScheduler
from kvsim.interventions import resolve_interventions
from kvsim.policies.retention import has_retention, with_retention
from kvsim.sizing import cost_model, most_blocks, without_excess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvsim.config import CacheConfig, SchedulerConfig, SplitConfig
    from kvsim.core.engine import Decider
    from kvsim.core.ports import EventSink, EvictionPolicy, PolicyContext
    from kvsim.replay_config import ReplayConfig
    from kvsim.trace import Trace
    from kvsim.types import Request


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


def split_scheduler(
    roles: Sequence[Role],
    arrivals: Iterable[Request],
    *,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    split: SplitConfig,
    new_policy: Callable[[PolicyContext], EvictionPolicy],
    seed: int = 0,
    recompute_ns: Callable[[int], int] = lambda depth: depth + 1,
    num_data_parallel: int = 1,
    sink_of: Callable[[int], EventSink] | None = None,
) -> SplitScheduler:
    """Return a scheduler above one instance for each role; they share nothing but op ids.

    Parameters
    ----------
    roles
        By instance number; `num_data_parallel` in a row are replicas of one engine.
    cache, scheduler
        Of each instance.
    """
    op_ids = OpIds()
    instances = [
        build_instance(
            number,
            role,
            cache=cache,
            scheduler=scheduler,
            new_policy=new_policy,
            seed=seed,
            recompute_ns=recompute_ns,
            new_op_id=op_ids,
            sink=None if sink_of is None else sink_of(number),
            data_parallel_id=number % num_data_parallel,
        )
        for number, role in enumerate(roles)
    ]
    return SplitScheduler(instances, arrivals, split, new_op_id=op_ids)


def build_instance(
    number: int,
    role: Role,
    *,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    new_policy: Callable[[PolicyContext], EvictionPolicy],
    seed: int,
    recompute_ns: Callable[[int], int],
    new_op_id: OpIds,
    sink: EventSink | None = None,
    data_parallel_id: int = 0,
) -> Instance:
    """Return one of several instances, with a cache and a scheduler of its own.

    Parameters
    ----------
    number, role
        Which it is, and what it does.
    cache, scheduler
        Its settings.
    new_policy, seed
        Makes the policy of a tier; with the number, what its draws follow from.
    recompute_ns
        Depth of a block -> what computing it takes, in nanoseconds.
    new_op_id
        Shared by all instances of the run.
    sink
        Where its events go; None: nowhere.
    """
    manager = CacheManager(
        cache,
        new_policy,
        rng=Random(f"{seed}:{number}"),
        recompute_ns=recompute_ns,
        instance=number,
        transfer_timeout_ns=scheduler.transfer_timeout_ns,
        sink=sink,
        new_op_id=new_op_id,
    )
    # What fails on one of two instances concerns the other: the scheduler above tries again.
    own = scheduler if role is Role.MIXED else replace(scheduler, max_attempts=1)
    return Instance(
        number,
        role,
        manager,
        Scheduler(manager, (), own, instance=number, sink=sink),
        data_parallel_id=data_parallel_id,
    )
