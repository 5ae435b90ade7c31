"""What a replay can be told: one name for each setting, in Python, in TOML and on the CLI."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Final, TypeAlias, TypeGuard, TypeVar, cast

from kvsim.backends import find_backend
from kvsim.backends.setup import LONGEST_SILENCE_NS, Clock, ForwardTime, Workers
from kvsim.config import CacheConfig, FaultConfig, SchedulerConfig, SwapIn
from kvsim.cost import Hardware, ModelShape
from kvsim.errors import ConfigError, UnknownNameError
from kvsim.presets import find_hardware, find_model
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvsim.settings import Settings

    JsonValue: TypeAlias = (
        bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"] | None
    )

KV_BITS: Final = {"bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp4": 4, "int4": 4}
"""Names of the types that KV may be kept in -> bits a value."""

LARGEST_SIZE: Final = 1 << 53
"""Bound of every size, in blocks or GiB: JSON tools lose digits above it (RFC 8259, section 6)."""

AUTO: Final = "auto"
"""A time scale that is found when the trace is known."""

_SCHEDULER: Final = SchedulerConfig()
_FAULTS: Final = FaultConfig()

_Choice = TypeVar("_Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """Every setting of `kvsim.replay`, of a run file and of `kvsim replay`.

    None means: found when the trace is known (`kvsim.api.resolve`), or off.

    Parameters
    ----------
    gpu_blocks, cpu_blocks
        Capacity of the two tiers, in blocks of the trace's block size. Default: what the hardware
        leaves beside the weights in 90 % of its memory; no CPU tier.
    gpu_gib, cpu_gib
        The same in GiB (2**30 bytes) over all ranks together, instead of blocks. K and V are both
        counted, and what each rank keeps a copy of (an MLA latent) once for each rank.
    policy
        Name of the eviction policy.
    swap_batch_blocks, low_watermark_blocks, keep_outputs
        See `kvsim.config.CacheConfig`.
    model, hardware
        Names of `kvsim.presets`, or a `ModelShape` and a `Hardware` of your own.
    kv_dtype
        Bits of a KV value (4, 8, 16) or a name of `KV_BITS`.
    format, partial, limit, block_size
        How the trace is read; see `kvsim.load_trace`.
    warmup
        Share of the requests, from the first, that the hit figures leave out.
    seed
        For policies that draw, and for faults.
    instant
        Replay one request after another, everything done at once: hit rates without time.
    token_budget, max_running, decode_reserve_blocks, grow_blocks, max_blocks_per_request
        See `kvsim.config.SchedulerConfig`; also `swap_in` ("overlap" or "wait"), `max_attempts`
        and the two timeouts, in nanoseconds.
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
    policy: str = "lru"  # what engines do
    swap_batch_blocks: int | None = None
    low_watermark_blocks: int | None = None
    keep_outputs: bool = True  # what engines do
    model: str | ModelShape = "llama-3.1-8b"  # well known, and fits every machine
    hardware: str | Hardware = "h200-8x"
    kv_dtype: str | int = "bf16"  # what most models are served with
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

    def __post_init__(self) -> None:
        self._check_sizes()
        for name in _TEXTS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{name} must be text, not {value!r}")
        for name in ("instant", "keep_outputs"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, not {getattr(self, name)!r}")
        check_int("seed", self.seed, 0)
        if not _is_number(self.warmup) or not 0 <= self.warmup < 1:
            raise ConfigError(
                f"warmup must be a share of the requests from 0 to less than 1, not {self.warmup!r}"
            )
        self._check_backend()
        _ = self.partial_rule, self.kv_bits, self.model_shape, self.machine, self.faults
        self.scheduler()
        self.cache(block_size=self.block_size or 1)

    @property
    def partial_rule(self) -> PartialRule | None:
        """What becomes of a last block that is not full; None: as is usual for the format."""
        return None if self.partial is None else _choice("partial", self.partial, PartialRule)

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
        return _choice("forward", self.forward or ForwardTime.COST.value, ForwardTime)

    @property
    def worker_kind(self) -> Workers:
        """What the ranks of real tensors are."""
        return _choice("workers", self.workers or Workers.THREADS.value, Workers)

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
            swap_in=_choice("swap_in", self.swap_in, SwapIn),
            max_attempts=self.max_attempts,
            transfer_timeout_ns=self.transfer_timeout_ns,
            forward_timeout_ns=self.forward_timeout_ns,
        )

    @property
    def tier_blocks(self) -> tuple[int, ...]:
        """Blocks of each tier that there is, the GPU first."""
        return (self.gpu_blocks or 1, *([self.cpu_blocks] if self.cpu_blocks else []))

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
        for pair in _EITHER_OR:
            for this, that in (pair, pair[::-1]):
                if this in given:
                    given.setdefault(that, None)
        return replace(self, **cast("Settings", given))

    def simulated(self) -> ReplayConfig:
        """Return the same settings for the simulator."""
        settings = {"backend": "sim", **dict.fromkeys(_WALL_CLOCK_ONLY)}
        return replace(self, **cast("Settings", settings))

    def to_dict(self) -> dict[str, JsonValue]:
        """Return the settings as JSON values; a model or machine of your own as an object."""
        values = {name: getattr(self, name) for name in FIELD_NAMES}
        for name in ("model", "hardware"):
            if not isinstance(values[name], str):
                values[name] = asdict(values[name])
        return values

    def _check_backend(self) -> None:
        is_virtual = self.clock is Clock.VIRTUAL
        for name in _WALL_CLOCK_ONLY:
            if is_virtual and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} is for a backend on the wall clock, such as 'paddle', and"
                    f" {self.backend!r} is none: leave it out"
                )
        if self.instant and not is_virtual:
            raise ConfigError(
                f"instant means without time, and backend {self.backend!r} runs on the wall clock:"
                " leave one of them out"
            )
        for name, least in (("ranks", 1), ("extra_layers", 0), ("worker_timeout_ns", 1)):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), least)
        ratio = self.expand_ratio
        if ratio is not None and (not _is_number(ratio) or not isfinite(ratio) or ratio < 1):
            raise ConfigError(f"expand_ratio must be a number of at least 1, not {ratio!r}")
        scale = self.time_scale
        is_number = _is_number(scale) and isfinite(scale) and scale > 0
        if scale is not None and scale != AUTO and not is_number:
            raise ConfigError(f"time_scale must be a number above 0 or 'auto', not {scale!r}")
        _ = self.forward_time, self.worker_kind

    def _check_sizes(self) -> None:
        for one, other in _EITHER_OR:
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ConfigError(f"{one} and {other} exclude each other: give one of them")
        for name, least in (("gpu_blocks", 1), ("cpu_blocks", 0), ("limit", 1), ("block_size", 1)):
            value = getattr(self, name)
            if value is not None:
                check_int(name, value, least)
        for name in ("gpu_gib", "cpu_gib"):
            value = getattr(self, name)
            if value is None:
                continue
            if not _is_number(value) or not isfinite(value) or not 0 <= value <= LARGEST_SIZE:
                raise ConfigError(f"{name} must be a number of GiB, at least 0, not {value!r}")


FIELD_NAMES: Final = tuple(each.name for each in fields(ReplayConfig))
_TEXTS: Final = (
    "policy", "swap_in", "format", "partial", "backend", "shape", "layout", "device", "workers",
    "forward",
)  # fmt: skip
_WALL_CLOCK_ONLY: Final = (
    "shape", "layout", "extra_layers", "expand_ratio", "device", "ranks", "workers",
    "worker_timeout_ns", "time_scale", "forward",
)  # fmt: skip
"""Settings that mean nothing in virtual time."""

_EITHER_OR: Final = (("gpu_blocks", "gpu_gib"), ("cpu_blocks", "cpu_gib"))


def check_names(names: Iterable[str]) -> None:
    """Raise `UnknownNameError` if one of `names` is not the name of a setting."""
    for name in names:
        if name not in FIELD_NAMES:
            raise UnknownNameError("setting", name, FIELD_NAMES)


def check_int(name: str, value: object, least: int) -> None:
    """Raise `ConfigError` unless `value` is an integer from `least` to `LARGEST_SIZE`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, not {value!r}")
    if value > LARGEST_SIZE:
        raise ConfigError(f"{name} must be at most 2**53, not {value!r}")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _choice(name: str, value: str, choices: type[_Choice]) -> _Choice:
    try:
        return choices(value)
    except ValueError as error:
        raise UnknownNameError(name, value, [str(each) for each in choices]) from error
