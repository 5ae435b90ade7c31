"""Checks of settings; a message begins with the name of the setting."""

from __future__ import annotations

from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Final, TypeGuard, TypeVar

from kvsim.backends.setup import Clock
from kvsim.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from kvsim.replay_config import ReplayConfig

LARGEST_SIZE: Final = 1 << 53
"""Bound of every size, in blocks or GiB: JSON tools lose digits above it (RFC 8259, section 6)."""

AUTO: Final = "auto"
"""A time scale that is found when the trace is known."""

_TEXTS: Final = (
    "policy", "swap_in", "format", "partial", "backend", "shape", "layout", "device", "workers",
    "forward", "retain", "salt_by",
)  # fmt: skip
WALL_CLOCK_ONLY: Final = (
    "shape", "layout", "extra_layers", "expand_ratio", "device", "ranks", "workers",
    "worker_timeout_ns", "time_scale", "forward",
)  # fmt: skip
"""Settings of `ReplayConfig` that mean nothing in virtual time."""

EITHER_OR: Final = (
    ("gpu_blocks", "gpu_gib"),
    ("cpu_blocks", "cpu_gib"),
    ("disk_blocks", "disk_gib"),
)
"""Settings that say the same in other units."""

_INTEGERS: Final = (
    ("gpu_blocks", 1),
    ("cpu_blocks", 0),
    ("disk_blocks", 0),
    ("disk_bytes_per_second", 1),
    ("disk_latency_ns", 0),
    ("limit", 1),
    ("block_size", 1),
)
"""Settings that may be left open, and their least values."""

_Choice = TypeVar("_Choice", bound=StrEnum)


def check_int(name: str, value: object, least: int) -> None:
    """Raise `ConfigError` unless `value` is an integer from `least` to `LARGEST_SIZE`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, not {value!r}")
    if value > LARGEST_SIZE:
        raise ConfigError(f"{name} must be at most 2**53, not {value!r}")


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number, which `True` is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def choice(name: str, value: str, choices: type[_Choice]) -> _Choice:
    """Return the member of a name.

    Raises
    ------
    UnknownNameError
        If there is none.
    """
    try:
        return choices(value)
    except ValueError as error:
        raise UnknownNameError(name, value, [str(each) for each in choices]) from error


def check_settings(config: ReplayConfig) -> None:
    """Raise `ConfigError` if a value of a replay is of the wrong kind, or two exclude each other.

    What is a name or a part of the core's settings is looked up by `ReplayConfig` itself.
    """
    _check_sizes(config)
    for name in _TEXTS:
        value = getattr(config, name)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{name} must be text, not {value!r}")
    for name in ("instant", "keep_outputs", "share_in_flight"):
        if not isinstance(getattr(config, name), bool):
            raise ConfigError(f"{name} must be true or false, not {getattr(config, name)!r}")
    check_int("seed", config.seed, 0)
    if not is_number(config.warmup) or not 0 <= config.warmup < 1:
        raise ConfigError(
            f"warmup must be a share of the requests from 0 to less than 1, not {config.warmup!r}"
        )
    _check_clock(config)
    _check_tensors(config)


def _check_sizes(config: ReplayConfig) -> None:
    for one, other in EITHER_OR:
        if getattr(config, one) is not None and getattr(config, other) is not None:
            raise ConfigError(f"{one} and {other} exclude each other: give one of them")
    for name, least in _INTEGERS:
        value = getattr(config, name)
        if value is not None:
            check_int(name, value, least)
    for name in ("gpu_gib", "cpu_gib", "disk_gib"):
        value = getattr(config, name)
        if value is None:
            continue
        if not is_number(value) or not isfinite(value) or not 0 <= value <= LARGEST_SIZE:
            raise ConfigError(f"{name} must be a number of GiB, at least 0, not {value!r}")


def _check_clock(config: ReplayConfig) -> None:
    is_virtual = config.clock is Clock.VIRTUAL
    for name in WALL_CLOCK_ONLY:
        if is_virtual and getattr(config, name) is not None:
            raise ConfigError(
                f"{name} is for a backend on the wall clock, such as 'paddle', and"
                f" {config.backend!r} is none: leave it out"
            )
    if config.instant and not is_virtual:
        raise ConfigError(
            f"instant means without time, and backend {config.backend!r} runs on the wall clock:"
            " leave one of them out"
        )


def _check_tensors(config: ReplayConfig) -> None:
    for name, least in (("ranks", 1), ("extra_layers", 0), ("worker_timeout_ns", 1)):
        if getattr(config, name) is not None:
            check_int(name, getattr(config, name), least)
    ratio = config.expand_ratio
    if ratio is not None and (not is_number(ratio) or not isfinite(ratio) or ratio < 1):
        raise ConfigError(f"expand_ratio must be a number of at least 1, not {ratio!r}")
    scale = config.time_scale
    is_positive = is_number(scale) and isfinite(scale) and scale > 0
    if scale is not None and scale != AUTO and not is_positive:
        raise ConfigError(f"time_scale must be a number above 0 or 'auto', not {scale!r}")
    _ = config.forward_time, config.worker_kind
