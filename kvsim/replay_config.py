"""What a replay can be told: one name for each setting, in Python, in TOML and on the CLI."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from kvsim.backends import find_backend
from kvsim.backends.setup import LONGEST_SILENCE_NS, Clock, ForwardTime, Workers
from kvsim.config import (
    CacheConfig,
    FaultConfig,
    Preempt,
    SchedulerConfig,
    SwapIn,
    TierInclusion,
    WritePolicy,
)
from kvsim.cost import Hardware, ModelShape
from kvsim.errors import ConfigError, UnknownNameError
from kvsim.interventions import check_interventions
from kvsim.presets import find_hardware, find_model
from kvsim.setting_checks import EITHER_OR, WALL_CLOCK_ONLY, check_settings, choice
from kvsim.trace.retaining import parse_retain
from kvsim.trace.salting import SaltBy
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvsim.config import LinkConfig
    from kvsim.settings import Settings

    JsonValue: TypeAlias = (
        bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"] | None
    )

KV_BITS: Final = {"bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp4": 4, "int4": 4}
"""Names of the types that KV may be kept in -> bits a value."""

_CACHE: Final = CacheConfig()
_SCHEDULER: Final = SchedulerConfig()
_FAULTS: Final = FaultConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """Every setting of `kvsim.replay`, of a run file and of `kvsim replay`.

    None means: found when the trace is known (`kvsim.api.resolve`), or off.

    Parameters
    ----------
    gpu_blocks, cpu_blocks, disk_blocks
        Capacity of the tiers, in blocks of the trace's block size. Default: what the hardware
        leaves beside the weights in 90 % of its memory; no CPU tier; no third tier, which is a
        local disk or a remote store below the CPU's.
    gpu_gib, cpu_gib, disk_gib
        The same in GiB (2**30 bytes) over all ranks together, instead of blocks. K and V are both
        counted, and what each rank keeps a copy of (an MLA latent) once for each rank.
    policy
        Name of the eviction policy.
    tier_inclusion, write_policy, write_through_hits, share_in_flight
        See `kvsim.config.CacheConfig`: "exclusive" or "inclusive"; "back", "through" or
        "selective".
    swap_batch_blocks, low_watermark_blocks, keep_outputs
        See `kvsim.config.CacheConfig`.
    model, hardware
        Names of `kvsim.presets`, or a `ModelShape` and a `Hardware` of your own.
    kv_dtype
        Bits of a KV value (4, 8, 16) or a name of `KV_BITS`.
    disk_bytes_per_second, disk_latency_ns
        Of the link to the third tier, for each GPU. Default: the hardware's.
    format, partial, limit, block_size
        How the trace is read; see `kvsim.load_trace`.
    warmup
        Share of the requests, from the first, that the hit figures leave out.
    seed
        For policies that draw, and for faults.
    instant
        Replay one request after another, everything done at once: hit rates without time.
    token_budget, max_running, decode_reserve_blocks, grow_blocks, max_blocks_per_request
        See `kvsim.config.SchedulerConfig`; also `swap_in` ("overlap" or "wait"), `preempt`
        ("recompute" or "swap"), `max_attempts` and the two timeouts, in nanoseconds.
    fail_rate, delay_rate, hang_rate, delay_ns, settle_ns
        Faults to inject; see `kvsim.config.FaultConfig`.
    backend
        What carries the decisions out: "sim" in virtual time, or "paddle" with real tensors.
    shape, device, ranks
        Of real tensors: a name of `kvsim.backends.paddle.shape.SHAPES` or "model" for the cache of
        `model` itself, "cpu" or "gpu:N", and the number of workers that share the heads. Default:
        "tiny" on one rank on the CPU, whatever the machine has, so that a run does not change
        with it. Values are of the type `kv_dtype`.
    layout
        Of real tensors: "block-major" (the default: a block is one piece of memory) or
        "layer-major" (a tensor for each layer's K and V).
    extra_layers, expand_ratio
        Of real tensors: layers of a draft model for speculative decoding (default: 0), and the
        blocks they have for each block of the others (default: 1).
    workers, worker_timeout_ns
        Of real tensors: whether the ranks are "threads" (the default) or "processes"; and how long
        a process may leave a question unanswered before it counts as lost (default: 30 s).
    time_scale
        On the wall clock: by how much arrivals and steps are faster than in the trace, or "auto"
        (the default): so much that neither takes more than ten seconds.
    forward
        On the wall clock: whether a step takes its "cost" (the default), "none" at all, or what
        a real "attention" step over the block tables takes.
    interventions
        What an operator does meanwhile, such as "10s resize gpu=5000"; see `kvsim.interventions`.
    retain
        How long blocks are worth keeping, as rules; see `kvsim.trace.retaining`.
    salt_by
        "tenant" or "session": those of two share no block, even where their prompts are equal.

    Raises
    ------
    ConfigError
        If a value is impossible; the message begins with the name of the field.
    UnknownNameError
        If there is no model, machine or rule of a name. (Policies are looked up by the replay.)
    """

    gpu_blocks: int | None = None
    cpu_blocks: int | None = None
    gpu_gib: float | None = None
    cpu_gib: float | None = None
    disk_blocks: int | None = None
    disk_gib: float | None = None
    tier_inclusion: str = _CACHE.tier_inclusion.value
    write_policy: str = _CACHE.write_policy.value
    write_through_hits: int | None = None
    share_in_flight: bool = _CACHE.share_in_flight
    policy: str = "lru"  # what engines do
    swap_batch_blocks: int | None = None
    low_watermark_blocks: int | None = None
    keep_outputs: bool = True  # what engines do
    model: str | ModelShape = "llama-3.1-8b"  # well known, and fits every machine
    hardware: str | Hardware = "h200-8x"
    kv_dtype: str | int = "bf16"  # what most models are served with
    disk_bytes_per_second: int | None = None
    disk_latency_ns: int | None = None
    format: str | None = None
    partial: str | None = None
    limit: int | None = None
    block_size: int | None = None
    warmup: float = 0.0  # nothing is left out unless asked for
    seed: int = 0
    instant: bool = False
    token_budget: int = _SCHEDULER.token_budget
    max_running: int = _SCHEDULER.max_running
    decode_reserve_blocks: int = _SCHEDULER.decode_reserve_blocks
    grow_blocks: int = _SCHEDULER.grow_blocks
    max_blocks_per_request: int | None = None
    swap_in: str = SwapIn.OVERLAP.value
    preempt: str = _SCHEDULER.preempt.value
    max_attempts: int = _SCHEDULER.max_attempts
    transfer_timeout_ns: int | None = None
    forward_timeout_ns: int | None = None
    fail_rate: float = 0.0
    delay_rate: float = 0.0
    hang_rate: float = 0.0
    delay_ns: int = _FAULTS.delay_ns
    settle_ns: int = _FAULTS.settle_ns
    backend: str = "sim"
    shape: str | None = None
    layout: str | None = None
    extra_layers: int | None = None
    expand_ratio: float | None = None
    device: str | None = None
    ranks: int | None = None
    workers: str | None = None
    worker_timeout_ns: int | None = None
    time_scale: float | str | None = None
    forward: str | None = None
    interventions: tuple[str, ...] = ()
    retain: str | None = None
    salt_by: str | None = None

    def __post_init__(self) -> None:
        check_settings(self)
        check_interventions(self.interventions, is_instant=self.instant)
        _ = parse_retain(self.retain or ""), self.salt_rule
        _ = self.partial_rule, self.kv_bits, self.model_shape, self.disk_link, self.faults
        self.scheduler()
        self.cache(block_size=self.block_size or 1)

    @property
    def partial_rule(self) -> PartialRule | None:
        """What becomes of a last block that is not full; None: as is usual for the format."""
        return None if self.partial is None else choice("partial", self.partial, PartialRule)

    @property
    def salt_rule(self) -> SaltBy | None:
        """Who shares no blocks with whom; None: everybody with everybody."""
        return None if self.salt_by is None else choice("salt_by", self.salt_by, SaltBy)

    @property
    def kv_bits(self) -> int:
        """Bits of a KV value."""
        name = str(self.kv_dtype)
        if name in KV_BITS:
            return KV_BITS[name]
        if name not in {"4", "8", "16"}:
            raise ConfigError(
                f"kv_dtype must be 4, 8 or 16 (bits) or one of {', '.join(KV_BITS)},"
                f" not {self.kv_dtype!r}"
            )
        return int(name)

    @property
    def model_shape(self) -> ModelShape:
        """The model."""
        if isinstance(self.model, ModelShape):
            return self.model
        if not isinstance(self.model, str):
            raise ConfigError(f"model must be a name or a ModelShape, not {self.model!r}")
        return find_model(self.model)

    @property
    def machine(self) -> Hardware:
        """The machine."""
        if isinstance(self.hardware, Hardware):
            return self.hardware
        if not isinstance(self.hardware, str):
            raise ConfigError(f"hardware must be a name or a Hardware, not {self.hardware!r}")
        return find_hardware(self.hardware)

    @property
    def disk_link(self) -> LinkConfig:
        """The link to the third tier."""
        link, rate, latency_ns = (
            self.machine.disk_link,
            self.disk_bytes_per_second,
            self.disk_latency_ns,
        )
        return replace(
            link,
            bytes_per_second=link.bytes_per_second if rate is None else rate,
            latency_ns=link.latency_ns if latency_ns is None else latency_ns,
        )

    @property
    def faults(self) -> FaultConfig:
        """What goes wrong."""
        return FaultConfig(
            fail_rate=self.fail_rate,
            delay_rate=self.delay_rate,
            hang_rate=self.hang_rate,
            delay_ns=self.delay_ns,
            settle_ns=self.settle_ns,
        )

    @property
    def clock(self) -> Clock:
        """Whose time the backend has."""
        return find_backend(self.backend).clock

    @property
    def forward_time(self) -> ForwardTime:
        """What a step takes on the wall clock."""
        return choice("forward", self.forward or ForwardTime.COST.value, ForwardTime)

    @property
    def worker_kind(self) -> Workers:
        """What the ranks of real tensors are."""
        return choice("workers", self.workers or Workers.THREADS.value, Workers)

    @property
    def longest_silence_ns(self) -> int:
        """How long a worker process may leave a question unanswered."""
        timeout_ns = self.worker_timeout_ns
        return LONGEST_SILENCE_NS if timeout_ns is None else timeout_ns

    def scheduler(self) -> SchedulerConfig:
        """Return the scheduler's part."""
        return SchedulerConfig(
            token_budget=self.token_budget,
            max_running=self.max_running,
            decode_reserve_blocks=self.decode_reserve_blocks,
            grow_blocks=self.grow_blocks,
            max_blocks_per_request=self.max_blocks_per_request,
            swap_in=choice("swap_in", self.swap_in, SwapIn),
            preempt=choice("preempt", self.preempt, Preempt),
            max_attempts=self.max_attempts,
            transfer_timeout_ns=self.transfer_timeout_ns,
            forward_timeout_ns=self.forward_timeout_ns,
        )

    @property
    def tier_blocks(self) -> tuple[int, ...]:
        """Blocks of each tier that there is, the GPU first."""
        return tuple(filter(None, (self.gpu_blocks or 1, self.cpu_blocks, self.disk_blocks)))

    def cache(self, *, block_size: int) -> CacheConfig:
        """Return the cache manager's part; a size that is not known yet counts as the smallest.

        An instant replay evicts just what it must unless told otherwise: batches save time, of
        which there is none.
        """
        swap_batch, low_watermark = self.swap_batch_blocks, self.low_watermark_blocks
        if self.instant:
            swap_batch, low_watermark = swap_batch or 1, low_watermark or 0
        return CacheConfig(
            block_size=block_size,
            tier_blocks=self.tier_blocks,
            tier_inclusion=choice("tier_inclusion", self.tier_inclusion, TierInclusion),
            write_policy=choice("write_policy", self.write_policy, WritePolicy),
            write_through_hits=self.write_through_hits,
            share_in_flight=self.share_in_flight,
            swap_batch_blocks=swap_batch,
            low_watermark_blocks=low_watermark,
            keep_outputs=self.keep_outputs,
        )

    def with_settings(self, settings: Mapping[str, object]) -> ReplayConfig:
        """Return a copy with `settings` in place of the fields they name; None: not given.

        A size in GiB takes the place of one in blocks, and the other way round.

        Raises
        ------
        UnknownNameError
            If there is no such field.
        ConfigError
            If the result is impossible.
        """
        check_names(settings)
        given = {name: value for name, value in settings.items() if value is not None}
        if isinstance(given.get("interventions"), list):  # as TOML has it
            given["interventions"] = tuple(cast("list[str]", given["interventions"]))
        for pair in EITHER_OR:
            for this, that in (pair, pair[::-1]):
                if this in given:
                    given.setdefault(that, None)
        return replace(self, **cast("Settings", given))

    def simulated(self) -> ReplayConfig:
        """Return the same settings for the simulator."""
        settings = {"backend": "sim", **dict.fromkeys(WALL_CLOCK_ONLY)}
        return replace(self, **cast("Settings", settings))

    def to_dict(self) -> dict[str, JsonValue]:
        """Return the settings as JSON values; a model or machine of your own as an object."""
        values = {name: getattr(self, name) for name in FIELD_NAMES}
        for name in ("model", "hardware"):
            if not isinstance(values[name], str):
                values[name] = asdict(values[name])
        values["interventions"] = list(self.interventions)
        return values


FIELD_NAMES: Final = tuple(each.name for each in fields(ReplayConfig))


def check_names(names: Iterable[str]) -> None:
    """Raise `UnknownNameError` if one of `names` is not the name of a setting."""
    for name in names:
        if name not in FIELD_NAMES:
            raise UnknownNameError("setting", name, FIELD_NAMES)
