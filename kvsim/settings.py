"""The settings of a replay as keyword arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from kvsim.cost import Hardware, ModelShape


class Settings(TypedDict, total=False):
    """The fields of `ReplayConfig`, but for `policy`, as keyword arguments. None: not given."""

    gpu_blocks: int | None
    cpu_blocks: int | None
    gpu_gib: float | None
    cpu_gib: float | None
    swap_batch_blocks: int | None
    low_watermark_blocks: int | None
    keep_outputs: bool
    model: str | ModelShape
    hardware: str | Hardware
    kv_dtype: str | int
    format: str | None
    partial: str | None
    limit: int | None
    block_size: int | None
    warmup: float
    seed: int
    instant: bool
    token_budget: int
    max_running: int
    decode_reserve_blocks: int
    grow_blocks: int
    max_blocks_per_request: int | None
    swap_in: str
    max_attempts: int
    transfer_timeout_ns: int | None
    forward_timeout_ns: int | None
    fail_rate: float
    delay_rate: float
    hang_rate: float
    delay_ns: int
    settle_ns: int
    backend: str
    shape: str | None
    layout: str | None
    extra_layers: int | None
    expand_ratio: float | None
    device: str | None
    ranks: int | None
    workers: str | None
    worker_timeout_ns: int | None
    time_scale: float | str | None
    forward: str | None
