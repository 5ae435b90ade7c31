"""How large the tiers of a replay are, and how much of them a trace can use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvsim.backends.setup import Clock
from kvsim.config import Preempt
from kvsim.core.attempt import BlockLayout
from kvsim.cost import RooflineCost
from kvsim.errors import ConfigError
from kvsim.setting_checks import AUTO, LARGEST_SIZE

if TYPE_CHECKING:
    from kvsim.replay_config import ReplayConfig
    from kvsim.trace import Trace
    from kvsim.types import Request

_GIB: Final = 2**30


def resolve(config: ReplayConfig, trace: Trace) -> ReplayConfig:
    """Return `config` with what depends on the trace filled in, so that it says all of it.

    Sizes in GiB become blocks. Without any size the GPU tier has what the hardware leaves beside
    the weights in 90 % of its memory, and there is no CPU tier.

    Raises
    ------
    ConfigError
        If a size in GiB holds no block, or the model does not fit on the hardware.
    """
    cost = cost_model(config, trace.block_size)
    all_ranks_bytes = cost.transfer_bytes(1) * config.machine.num_gpus
    gpu_blocks = config.gpu_blocks
    if config.gpu_gib is not None:
        gpu_blocks = _blocks_in("gpu_gib", config.gpu_gib, all_ranks_bytes)
    elif gpu_blocks is None:
        gpu_blocks = cost.max_gpu_blocks()
    cpu_blocks, disk_blocks = (
        _blocks_in(name, size_gib, all_ranks_bytes) if size_gib else num_blocks or 0
        for name, size_gib, num_blocks in (
            ("cpu_gib", config.cpu_gib, config.cpu_blocks),
            ("disk_gib", config.disk_gib, config.disk_blocks),
        )
    )
    _check_tiers(config, cpu_blocks, disk_blocks)
    sized = replace(
        config,
        gpu_blocks=gpu_blocks,
        cpu_blocks=cpu_blocks,
        disk_blocks=disk_blocks,
        gpu_gib=None,
        cpu_gib=None,
        disk_gib=None,
        block_size=trace.block_size,
        partial=trace.partial.value,
    )
    if sized.clock is Clock.WALL:
        sized = replace(
            sized,
            shape=sized.shape or "tiny",
            device=sized.device or "cpu",
            ranks=sized.ranks or 1,
            time_scale=sized.time_scale or AUTO,
            forward=sized.forward_time.value,
        )
    cache = sized.cache(block_size=trace.block_size)
    return replace(
        sized, swap_batch_blocks=cache.swap_batch, low_watermark_blocks=cache.low_watermark
    )


def cost_model(config: ReplayConfig, block_size: int) -> RooflineCost:
    """Return what steps and copies cost with blocks of `block_size` tokens."""
    return RooflineCost(
        config.model_shape, config.machine, block_size=block_size, kv_bits=config.kv_bits
    )


def needed_blocks(request: Request, config: ReplayConfig, block_size: int) -> int:
    """Return the blocks that a request takes at most; an instant replay makes no output."""
    if config.instant:
        return len(request.block_keys)
    return BlockLayout(request, block_size).num_most_blocks


def tight_tiers(config: ReplayConfig, trace: Trace) -> ReplayConfig:
    """Return `config` with sizes, where it has none, at which blocks are swapped.

    5 % of the blocks of the trace on the GPU, but twice the longest request with its output and
    reserve; 15 % on the CPU, but at least one.
    """
    num_unique = len({key for each in trace.requests for key in each.block_keys})
    longest = max(needed_blocks(each, config, trace.block_size) for each in trace.requests)
    gpu_blocks, cpu_blocks = config.gpu_blocks, config.cpu_blocks
    if gpu_blocks is None and config.gpu_gib is None:
        gpu_blocks = max(num_unique // 20, 2 * (longest + config.decode_reserve_blocks))
    if cpu_blocks is None and config.cpu_gib is None:
        cpu_blocks = max(1, num_unique * 3 // 20)
    return replace(config, gpu_blocks=gpu_blocks, cpu_blocks=cpu_blocks)


def without_excess(config: ReplayConfig, trace: Trace, *, can_fail: bool = False) -> ReplayConfig:
    """Return `config` without the blocks that the whole trace together can never take.

    Who asks for 10**12 blocks means "no limit" and should not wait for a table of that length.
    With the excess nothing is ever evicted, and neither is it without: each attempt of a request
    takes its blocks once, and the low-water mark comes on top. `can_fail`: attempts may fail though
    the settings do not say so.
    """
    most = most_blocks(config, trace, can_fail=can_fail)
    return replace(
        config,
        gpu_blocks=min(config.gpu_blocks or 1, most),
        cpu_blocks=min(config.cpu_blocks or 0, most),
        disk_blocks=min(config.disk_blocks or 0, most),
    )


def most_blocks(config: ReplayConfig, trace: Trace, *, can_fail: bool = False) -> int:
    """Return more blocks than the whole trace together can ever take."""
    num_attempts = config.max_attempts if can_fail or _can_fail(config) else 1
    needed = (needed_blocks(each, config, trace.block_size) for each in trace.requests)
    most = sum(needed) * num_attempts
    cache = config.cache(block_size=trace.block_size)
    return most + cache.swap_batch + cache.low_watermark


def _check_tiers(config: ReplayConfig, cpu_blocks: int, disk_blocks: int) -> None:
    """Raise `ConfigError` if a setting needs a tier that is not there."""
    if disk_blocks and not cpu_blocks:
        raise ConfigError(
            "disk_blocks need a CPU tier, which blocks come from: give cpu_blocks or cpu_gib"
        )
    if config.preempt == Preempt.SWAP and not (cpu_blocks or config.instant):
        raise ConfigError("preempt 'swap' needs a CPU tier: give cpu_blocks or cpu_gib")
    for name in ("disk_bytes_per_second", "disk_latency_ns"):
        if getattr(config, name) is not None and not disk_blocks:
            raise ConfigError(f"{name} is for a third tier: give disk_blocks or disk_gib")


def _can_fail(config: ReplayConfig) -> bool:
    rates = config.fail_rate + config.hang_rate
    return bool(rates or config.forward_timeout_ns or config.transfer_timeout_ns)


def _blocks_in(name: str, size_gib: float, block_bytes: int) -> int:
    num_blocks = int(size_gib * _GIB) // block_bytes
    if not num_blocks:
        raise ConfigError(
            f"{name} must hold a block at least, {block_bytes / _GIB:.6f} GiB over all ranks,"
            f" not {size_gib!r}"
        )
    return min(num_blocks, LARGEST_SIZE)
