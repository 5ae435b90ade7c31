"""Run files: the settings of a replay as TOML, under the names that `ReplayConfig` gives them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from kvsim.config import LinkConfig
from kvsim.cost import Hardware, KvKind, ModelShape
from kvsim.errors import ConfigError, UnknownNameError, UserError
from kvsim.presets import find_hardware, find_model
from kvsim.replay_config import ReplayConfig, check_names
from kvsim.trace.paths import checked_path
from kvsim.trace.toml_file import place, read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    Table: TypeAlias = dict[str, object]

_TOML: Final = ".toml"
_KINDS: Final = {"int": int, "str": str, "bool": bool}
_Shape = TypeVar("_Shape", ModelShape, Hardware, LinkConfig)


def load_run_file(path: str | PathLike[str]) -> ReplayConfig:
    """Return the settings in a TOML file.

    Keys are the fields of `ReplayConfig`. `model` and `hardware` may be tables with the fields of
    `ModelShape` and `Hardware`; `base` in such a table names a preset that gives the rest.

    Raises
    ------
    UserError
        If the file cannot be read, is not TOML, or has an unknown key or an impossible value; the
        message names the file and, where it is known, the line.
    """
    file = checked_path(path)
    text, table = read_toml(file)
    try:
        return config_of(table)
    except UserError as error:
        raise ConfigError(f"{place(file, text, error)}: {error}") from error


def config_of(table: Table) -> ReplayConfig:
    """Return the settings in a table, as a run file or `ReplayConfig.to_dict` has them.

    Raises
    ------
    UserError
        If a key is unknown or a value impossible.
    """
    check_names(table)
    return ReplayConfig().with_settings(with_shapes(table))


def with_shapes(table: Mapping[str, object]) -> Table:
    """Return the settings with objects in place of the tables `model` and `hardware`.

    A `hardware` that ends in ".toml" is the path of a file with a table `[hardware]`, as
    `kvsim calibrate` writes it.

    Raises
    ------
    UserError
        If such a table has an unknown key, lacks one, or has an impossible value, or the file
        cannot be read.
    """
    made = dict(table)
    model, hardware = table.get("model"), table.get("hardware")
    if isinstance(model, dict):
        made["model"] = _model(model)
    if isinstance(hardware, dict):
        made["hardware"] = _machine(hardware)
    elif isinstance(hardware, str) and hardware.endswith(_TOML):
        made["hardware"] = load_hardware(hardware)
    return made


def load_hardware(path: str | PathLike[str]) -> Hardware:
    """Return the machine in the table `[hardware]` of a TOML file.

    Raises
    ------
    ConfigError
        If the file cannot be read or has no such table, or the table is impossible; the message
        names the file and, where it is known, the line.
    """
    file = checked_path(path)
    text, table = read_toml(file)
    hardware = table.get("hardware")
    if not isinstance(hardware, dict):
        raise ConfigError(f"{file}: no table [hardware]: `kvsim calibrate` writes a file with one")
    try:
        return _machine(hardware)
    except UserError as error:
        raise ConfigError(f"{place(file, text, error)}: {error}") from error


def _model(table: Table) -> ModelShape:
    base = _base(table)
    values = _checked("model", table, ModelShape)
    if "kv_kind" in values:
        kind = values["kv_kind"]
        if kind not in set(KvKind):
            raise UnknownNameError("kv_kind", str(kind), [str(each) for each in KvKind])
        values["kv_kind"] = KvKind(str(kind))
    return _made("model", ModelShape, None if base is None else find_model(base), values)


def _machine(table: Table) -> Hardware:
    base = _base(table)
    machine = None if base is None else find_hardware(base)
    values = _checked("hardware", table, Hardware)
    for name in ("host_link", "disk_link"):
        link = values.get(name)
        if isinstance(link, dict):
            old = None if machine is None else getattr(machine, name)
            known = _checked(name, link, LinkConfig)
            values[name] = _made(name, LinkConfig, old, known)
        elif link is not None:
            raise ConfigError(f"{name} must be a table, not {link!r}")
    return _made("hardware", Hardware, machine, values)


def _base(table: Table) -> str | None:
    base = table.get("base")
    if base is None or isinstance(base, str):
        return base
    raise ConfigError(f"base must be the name of a preset, not {base!r}")


def _checked(name: str, table: Table, shape: type) -> Table:
    """Return the table without `base`; its keys must be fields of `shape`, its values as theirs."""
    values = {key: value for key, value in table.items() if key != "base"}
    kinds = {each.name: str(each.type) for each in fields(shape)}
    for key, value in values.items():
        if key not in kinds:
            raise UnknownNameError(f"key of {name}", key, [*kinds, "base"])
        if kinds[key] in _KINDS and type(value) is not _KINDS[kinds[key]]:
            raise ConfigError(f"{key} of {name} must be of type {kinds[key]}, not {value!r}")
    return values


def _made(name: str, shape: type[_Shape], base: _Shape | None, values: Table) -> _Shape:
    arguments = cast("dict[str, Any]", values)
    if base is not None:
        return replace(base, **arguments)
    try:
        return shape(**arguments)
    except TypeError as error:
        missing = str(error).partition(": ")[2]
        raise ConfigError(
            f"{name} lacks {missing}: give them, or a preset as base that has them"
        ) from error
