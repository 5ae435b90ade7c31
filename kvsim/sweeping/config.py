"""What a sweep is told: the lists it takes one value of each from, and what all cells share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from kvsim.backends.setup import Clock
from kvsim.errors import ConfigError, UnknownNameError, UserError
from kvsim.replay_config import ReplayConfig, check_names
from kvsim.run_file import with_shapes
from kvsim.setting_checks import check_int
from kvsim.trace.paths import checked_path
from kvsim.trace.toml_file import place, read_toml

if TYPE_CHECKING:
    from os import PathLike

SAMPLE_PREFIX: Final = "sample:"
DEFAULT_CONFIG: Final = "default"
"""Name of the only variant of a sweep that names none."""

_AXIS_OF: Final = {
    "policy": "policies",
    "seed": "seeds",
    "instant": "mode",
    "gpu_blocks": "gpu_blocks",
    "gpu_gib": "gpu_blocks",
    "cpu_blocks": "cpu_blocks",
    "cpu_gib": "cpu_blocks",
}
"""Setting -> the key of a sweep that has its values instead."""


class Mode(StrEnum):
    """Whether the cells have a clock."""

    INSTANT = "instant"
    TIMED = "timed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """One cell for each combination of a trace, a variant, two sizes, a policy and a seed.

    Parameters
    ----------
    traces
        Paths of trace files, relative to `folder`, or `"sample:chat"`.
    policies
        Names of eviction policies.
    gpu_blocks, cpu_blocks
        Capacities of the two tiers, in blocks of the trace's block size. Without them the sizes
        are those of the settings, which may be in GiB.
    seeds
        For policies that draw, and for faults.
    mode
        "instant": hit rates without time, several times as fast; "timed": on the virtual clock.
    settings
        Fields of `ReplayConfig` that all cells have in common.
    configs
        Variants: each has a `name` and fields of `ReplayConfig`, which go before `settings`.
        Default: one variant, named "default", without any.
    folder
        Where relative paths of traces begin: for a file, the folder it is in.

    Raises
    ------
    UserError
        If a key or a name is unknown, or a value is impossible. Policies are looked up, and traces
        read, when the sweep is run.
    """

    traces: Sequence[str]
    policies: Sequence[str]
    gpu_blocks: Sequence[int] = ()
    cpu_blocks: Sequence[int] = ()
    seeds: Sequence[int] = (0,)
    mode: str = Mode.INSTANT.value  # what is asked most: hit rates
    settings: Mapping[str, object] = field(default_factory=dict)
    configs: Sequence[Mapping[str, object]] = ()
    folder: Path = field(default_factory=Path)

    def __post_init__(self) -> None:
        for name in ("traces", "policies", "gpu_blocks", "cpu_blocks", "seeds", "configs"):
            object.__setattr__(self, name, _values(name, getattr(self, name)))
        for name in ("traces", "policies", "seeds"):
            if not getattr(self, name):
                raise ConfigError(f"{name} must have a value at least, not []")
        for name in ("traces", "policies"):
            for value in getattr(self, name):
                if not isinstance(value, str) or not value:
                    raise ConfigError(f"{name} must be a list of texts, and has {value!r}")
        for name, least in (("gpu_blocks", 1), ("cpu_blocks", 0), ("seeds", 0)):
            for value in getattr(self, name):
                check_int(name, value, least)
        if self.mode not in set(Mode):
            raise UnknownNameError("mode", str(self.mode), [str(each) for each in Mode])
        self._check_settings("settings", self.settings)
        for number, variant in enumerate(self.configs, start=1):
            self._check_settings(_variant(number), variant)
        names = [str(variant["name"]) for variant in self.configs]
        _check_unlike("configs", names)
        self.variants()

    def variants(self) -> dict[str, ReplayConfig]:
        """Return the settings of each variant by its name; sizes, policy and seed are open.

        Raises
        ------
        UserError
            If a setting is unknown or impossible; the message begins with its name.
        """
        found = {}
        for number, variant in enumerate(self.configs or ({"name": DEFAULT_CONFIG},), start=1):
            own = {key: value for key, value in variant.items() if key != "name"}
            config = ReplayConfig(instant=self.mode == Mode.INSTANT)
            for section, settings in (("settings", self.settings), (_variant(number), own)):
                try:
                    config = config.with_settings(with_shapes(settings))
                    _check_clock(config)
                except UserError as error:
                    error.add_note(section)
                    raise
            found[str(variant["name"])] = config
        return found

    def location(self, trace: str) -> str:
        """Return what a trace is read from: a path from the root, or the name of a sample."""
        if trace.startswith(SAMPLE_PREFIX):
            return trace
        return str((self.folder / trace).absolute())

    def _check_settings(self, section: str, settings: object) -> None:
        try:
            if not isinstance(settings, Mapping):
                raise ConfigError(f"{section} must be a table, not {settings!r}")
            if section != "settings" and not isinstance(settings.get("name"), str):
                raise ConfigError(f"name must be the text that {section} goes by")
            own = [key for key in settings if section == "settings" or key != "name"]
            check_names(own)
            for key in own:
                axis = _AXIS_OF.get(str(key))
                if axis is not None and (axis not in _SIZES or getattr(self, axis)):
                    raise ConfigError(
                        f"{key} has its values in {axis} of the sweep: leave it out of {section}"
                    )
        except UserError as error:
            error.add_note(section)
            raise


_SIZES: Final = ("gpu_blocks", "cpu_blocks")
_KEYS: Final = tuple(each.name for each in fields(SweepConfig) if each.name != "folder")


def sweep_config(table: Mapping[str, object], *, folder: Path) -> SweepConfig:
    """Return the sweep that a table describes, as in TOML; the key `sweep` around it is optional.

    Raises
    ------
    UserError
        If a key is unknown or missing, or a value is impossible.
    """
    inner = table.get("sweep", table)
    if not isinstance(inner, Mapping):
        raise ConfigError(f"sweep must be a table, not {inner!r}")
    for key in (*(key for key in table if inner is not table and key != "sweep"), *inner):
        if key not in _KEYS:
            raise UnknownNameError("key of a sweep", str(key), _KEYS)
    for key in ("traces", "policies"):
        if key not in inner:
            raise ConfigError(f"sweep lacks {key}: a list of at least one")
    return SweepConfig(**cast("dict[str, Any]", inner), folder=folder)


def load_sweep_file(path: str | PathLike[str]) -> SweepConfig:
    """Return the sweep that a TOML file describes; paths in it begin at its folder.

    Raises
    ------
    UserError
        If the file cannot be read, is not TOML, or has an unknown key or an impossible value; the
        message names the file and, where it is known, the line.
    """
    file = checked_path(path)
    text, table = read_toml(file)
    try:
        return sweep_config(table, folder=file.parent)
    except UserError as error:
        first_line = _first_line(text, getattr(error, "__notes__", []))
        raise ConfigError(f"{place(file, text, error, first_line=first_line)}: {error}") from error


def _first_line(text: str, sections: list[str]) -> int:
    """Return the line at which the first of `sections` begins; 1 if there is none."""
    for section in sections:
        name, _, number = section.partition(" ")
        head = re.compile(rf"^[ \t]*\[+[ \t]*sweep[ \t]*\.[ \t]*{name}[ \t]*\]", re.MULTILINE)
        starts = [found.start() for found in head.finditer(text)]
        index = int(number or 1) - 1
        if index < len(starts):
            return text.count("\n", 0, starts[index]) + 1
    return 1


def _check_clock(config: ReplayConfig) -> None:
    if config.clock is not Clock.VIRTUAL:
        raise ConfigError(
            f"backend {config.backend!r} runs on the wall clock: cells that run at the same time"
            " would measure each other; a sweep takes 'sim'"
        )


def _variant(number: int) -> str:
    return f"configs {number}"


def _values(name: str, values: object) -> tuple[object, ...]:
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence):
        raise ConfigError(f"{name} must be a list, not {values!r}")
    if name != "configs":
        _check_unlike(name, values)
    return tuple(values)


def _check_unlike(name: str, values: Sequence[object]) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ConfigError(f"{name} has {value!r} twice: leave one out")
