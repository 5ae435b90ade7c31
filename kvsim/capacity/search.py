"""Find sizes on the exact LRU curve: the least that reaches a target, and the knees."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, isfinite
from typing import TYPE_CHECKING, Final

from kvsim.api import replay
from kvsim.capacity.answer import KNEE_PERCENTS, Sizing, TierPoint, hits_at, worth
from kvsim.capacity.room import GIB, room_of
from kvsim.errors import ConfigError
from kvsim.hitrate import lru_curve
from kvsim.hitrate.tables import check_definition
from kvsim.replay_config import ReplayConfig
from kvsim.sizing import cost_model, resolve
from kvsim.trace import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike

    from kvsim.cost import Hardware, ModelShape, RooflineCost
    from kvsim.hitrate import HitCurve
    from kvsim.trace import Trace

KNEEDLE: Final = "knee"
"""Name of the point farthest above the chord."""


def size(
    trace: str | PathLike[str] | Trace,
    *,
    model: str | ModelShape = "llama-3.1-8b",
    hardware: str | Hardware = "h200-8x",
    kv_dtype: str | int = "bf16",
    target_hit: float = 0.3,
    definition: str = "prefix_token",
    gpu_blocks: int | None = None,
    gpu_gib: float | None = None,
    warmup: float = 0.0,
    timed: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Sizing:
    """Return what sizes of the GPU and the CPU tier reach a hit rate, exactly.

    Everything is read from one LRU curve, with no requests in flight: room for the tokens of
    running requests comes on top (`Sizing.room`).

    Parameters
    ----------
    trace
        Path of a trace file, `"sample:chat"`, or a trace that is loaded.
    model, hardware, kv_dtype
        What a block's bytes are computed from; as for `kvsim.replay`.
    target_hit
        The hit rate to reach, as a share: 0.3 is 30 %.
    definition
        Which hit rate; one of `kvsim.analysis.metrics.DEFINITIONS`.
    gpu_blocks, gpu_gib
        The GPU tier that a CPU tier is added to. Default: what the hardware leaves beside the
        weights.
    warmup
        Share of the requests, from the first, whose hits are not counted.
    timed
        Whether to replay the trace in virtual time as well, with the tiers of the answer, for what
        running requests hold on average (`Room.running`). Takes many times as long.
    progress
        Called by that replay with (requests ended, requests in all), now and then.

    Raises
    ------
    UserError
        If the trace cannot be read or has nothing to hit, or a setting is unknown or impossible.
    """
    target = _checked_target(target_hit)
    check_definition(definition)
    config = ReplayConfig(
        model=model, hardware=hardware, kv_dtype=kv_dtype, gpu_blocks=gpu_blocks, gpu_gib=gpu_gib
    )
    loaded = open_trace(trace)
    curve = lru_curve(loaded, warmup=warmup)
    num_fixed = resolve(config, loaded).gpu_blocks
    assert num_fixed is not None  # resolved
    cost = cost_model(config, loaded.block_size)
    block_bytes = cost.transfer_bytes(1) * config.machine.num_gpus
    points = _Points(curve, definition, block_bytes)
    least = _least_capacity(curve, definition, target)
    num_cpu = max(0, (least or 0) - num_fixed)
    records = None
    if timed:
        tiers = config.with_settings({"gpu_blocks": num_fixed, "cpu_blocks": num_cpu})
        records = replay(loaded, config=tiers, progress=progress).records
    return Sizing(
        curve=curve,
        definition=definition,
        target=target,
        model=config.model_shape.name,
        hardware=config.machine.name,
        kv_bits=config.kv_bits,
        block_bytes=block_bytes,
        fixed_by=_fixed_by(config),
        answers=points.answers(least, num_fixed, num_cpu),
        fixed=points.at("GPU fixed", num_fixed),
        knees=points.knees(),
        room=room_of(loaded, block_bytes, records),
        warnings=tuple(_warnings(config, cost, num_fixed, least, loaded)),
    )


class _Points:
    """Makes points of one curve and one definition."""

    def __init__(self, curve: HitCurve, definition: str, block_bytes: int) -> None:
        self.curve, self.definition, self.block_bytes = curve, definition, block_bytes
        self.total = curve.infinite[definition].total or 1
        # One more GiB in whole blocks, at least one; the worth is divided by what it really is.
        self.num_blocks_more = max(1, GIB // block_bytes)

    def answers(self, least: int | None, gpu_blocks: int, cpu_blocks: int) -> tuple[TierPoint, ...]:
        if least is None:
            return ()
        return (self.at("GPU alone", least), self.at("GPU + CPU", gpu_blocks, cpu_blocks))

    def at(self, name: str, gpu_blocks: int, cpu_blocks: int = 0) -> TierPoint:
        curve, definition, total = self.curve, self.definition, self.total
        on_gpu = hits_at(curve, definition, gpu_blocks)
        on_both = hits_at(curve, definition, gpu_blocks + cpu_blocks)
        more = worth(curve, definition, gpu_blocks, cpu_blocks, self.num_blocks_more)
        points_per_gib = 100 / total / self._gib(more.num_blocks)
        return TierPoint(
            name=name,
            gpu_blocks=gpu_blocks,
            cpu_blocks=cpu_blocks,
            gpu_gib=self._gib(gpu_blocks),
            cpu_gib=self._gib(cpu_blocks),
            gpu_rate=on_gpu / total,
            cpu_rate=(on_both - on_gpu) / total,
            rate=on_both / total,
            new_points_per_gib=more.new_hits * points_per_gib,
            moved_points_per_gib=more.moved_hits * points_per_gib,
        )

    def knees(self) -> tuple[TierPoint, ...]:
        """Return the capacities at which more begins to bring less.

        The last is the maximum of the difference curve over the whole, without smoothing: the
        curve is exact, from 0 blocks to the least capacity with all hits, on a linear axis.
        Source: V. Satopaa, J. Albrecht, D. Irwin and B. Raghavan, "Finding a 'Kneedle' in a
        haystack", ICDCS workshops 2011, section 3.
        """
        import numpy as np

        assert self.curve.histogram is not None  # of LRU
        hits = self.curve.histogram.by_capacity(self.definition)
        most = int(hits[-1])
        if not most:
            return ()
        needed = [-(-percent * most // 100) for percent in KNEE_PERCENTS]
        found = [
            self.at(f"{percent} %", int(least))
            for percent, least in zip(KNEE_PERCENTS, np.searchsorted(hits, needed), strict=True)
        ]
        depth = int(np.searchsorted(hits, most))
        above = hits[: depth + 1] / most - np.arange(depth + 1) / depth
        return (*found, self.at(KNEEDLE, int(above.argmax())))

    def _gib(self, num_blocks: int) -> float:
        return num_blocks * self.block_bytes / GIB


def _least_capacity(curve: HitCurve, definition: str, target: float) -> int | None:
    """Return the smallest capacity, from 0, that reaches the target; None if none does."""
    import numpy as np

    assert curve.histogram is not None  # of LRU
    hits = curve.histogram.by_capacity(definition)
    total = curve.infinite[definition].total
    least = int(np.searchsorted(hits, _least_hits(target, total)))
    return least if least < len(hits) else None


def _least_hits(target: float, total: int) -> int:
    """Return the fewest hits whose rate, as a float, is at least the target.

    So a rate that was printed and is asked for again is reached by its own hits.
    """
    needed = ceil(Fraction(target) * total)
    while needed and (needed - 1) / (total or 1) >= target:
        needed -= 1
    return needed


def _warnings(
    config: ReplayConfig, cost: RooflineCost, num_fixed: int, least: int | None, trace: Trace
) -> Iterator[str]:
    """Yield what makes an answer impossible on this machine."""
    machine, model = config.machine.name, config.model_shape.name
    try:
        num_room = cost.max_gpu_blocks()
    except ConfigError as error:
        yield str(error)
    else:
        room = f"than the {num_room:,} that {machine} has room for beside the weights of {model}"
        if num_fixed > num_room:
            yield f"the GPU tier of {num_fixed:,} blocks is more {room}"
        if least is not None and least > num_room:
            yield f"{least:,} blocks on the GPU alone are more {room}"
    longest = max(len(each.block_keys) for each in trace.requests)
    if longest > num_fixed:
        yield (
            f"the longest prompt has {longest:,} blocks and is refused by a GPU tier of"
            f" {num_fixed:,}; its hits are counted here all the same"
        )


def _fixed_by(config: ReplayConfig) -> str:
    if config.gpu_blocks is not None:
        return f"{config.gpu_blocks:,} blocks, as asked"
    if config.gpu_gib is not None:
        return f"{config.gpu_gib:g} GiB, as asked"
    return f"what {config.machine.name} leaves beside the weights in 90 % of its memory"


def _checked_target(target_hit: float) -> float:
    is_number = isinstance(target_hit, int | float) and not isinstance(target_hit, bool)
    if not is_number or not isfinite(target_hit) or not 0 <= target_hit <= 1:
        hint = ""
        if is_number and 1 < target_hit <= 100:
            hint = f"; {target_hit:g} % is {target_hit / 100:g}"
        raise ConfigError(
            f"target_hit must be a share of the hits from 0 to 1, not {target_hit!r}{hint}"
        )
    return float(target_hit)
