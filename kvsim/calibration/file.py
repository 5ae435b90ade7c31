"""A calibration as a TOML file: `[hardware]` is what a replay reads, `[calibration]` the rest."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from kvsim.calibration.fit import Line
from kvsim.calibration.result import Calibration, Conditions, Measured, Origin
from kvsim.errors import ConfigError, UserError
from kvsim.presets import find_hardware
from kvsim.saving import new_files
from kvsim.trace.paths import checked_path
from kvsim.trace.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from os import PathLike

    Table = dict[str, object]

_Part = TypeVar("_Part", Conditions, Origin, Line)
_PARTS: Final = {
    "conditions": Conditions,
    "origin": Origin,
    "swap_in": Line,
    "swap_out": Line,
    "step": Line,
}
_NUMBERS: Final = ("duplex_factor", "wait_ns", "turn_ns")


def save_calibration(found: Calibration, path: str | PathLike[str]) -> None:
    """Write a calibration to a TOML file, which appears whole or not at all.

    Raises
    ------
    UserError
        If it cannot be written.
    """
    file = checked_path(path)
    if file.is_dir():
        raise UserError(f"{file}: cannot save there: it is a folder; name a file")
    with new_files(file.absolute().parent, last=file.name) as folder:
        (folder / file.name).write_text(to_toml(found), encoding="utf-8")


def to_toml(found: Calibration) -> str:
    """Return the text of the file."""
    hardware = found.hardware
    link = hardware.host_link
    tables: dict[str, Mapping[str, object]] = {
        "hardware": {"base": found.base, "name": hardware.name},
        "hardware.host_link": asdict(link),
        "calibration": {name: getattr(found, name) for name in _NUMBERS},
    }
    for name in _PARTS:
        tables[f"calibration.{name}"] = asdict(getattr(found, name))
    lines = ["# Measured by `kvsim calibrate`. Times in ns, of the slowest rank; rates per second."]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_lines(table)]
    for each in found.sizes:
        lines += ["", "[[calibration.sizes]]", *_lines(each._asdict())]
    return "\n".join([*lines, ""])


def load_calibration(path: str | PathLike[str]) -> Calibration:
    """Return the calibration in a file that `kvsim calibrate` wrote.

    Raises
    ------
    ConfigError
        If the file cannot be read, is no calibration, or a value is impossible; the message names
        the file and the key.
    """
    file = checked_path(path)
    _, table = read_toml(file)
    try:
        return _calibration(table)
    except UserError as error:
        raise ConfigError(f"{file}: {error}") from error


def _calibration(table: Table) -> Calibration:
    hardware, found = _table(table, "hardware"), _table(table, "calibration")
    base = _value(hardware, "base", str, "hardware")
    find_hardware(base)
    parts = {name: _part(found, name, kind) for name, kind in _PARTS.items()}
    numbers = {name: _number(found, name, "calibration") for name in _NUMBERS}
    if not 0.5 <= numbers["duplex_factor"] <= 1:
        raise ConfigError(f"duplex_factor must be 0.5 to 1, not {numbers['duplex_factor']!r}")
    for name in ("swap_in", "swap_out"):
        line = cast("Line", parts[name])
        if line.block_ns <= 0 or line.op_ns < 0:
            raise ConfigError(
                f"{name} must have a block_ns above 0 and an op_ns of at least 0,"
                f" not {line.block_ns!r} and {line.op_ns!r}"
            )
    sizes = found.get("sizes")
    if not isinstance(sizes, list) or not all(isinstance(each, dict) for each in sizes):
        raise ConfigError("sizes of calibration must be a list of tables")
    return Calibration(
        base=base,
        duplex_factor=numbers["duplex_factor"],
        wait_ns=round(numbers["wait_ns"]),
        turn_ns=round(numbers["turn_ns"]),
        sizes=tuple(_measured(each) for each in sizes),
        **cast("dict[str, Any]", parts),
    )


def _measured(table: Table) -> Measured:
    return Measured(*(round(_number(table, name, "sizes")) for name in Measured._fields))


def _part(table: Table, name: str, kind: type[_Part]) -> _Part:
    part = _table(table, name)
    values: dict[str, Any] = {}
    for each in fields(kind):
        if each.type == "str":
            values[each.name] = _value(part, each.name, str, name)
            continue
        least = -inf if each.name == "tail_ns" else 0
        number = _number(part, each.name, name, least=least)
        values[each.name] = round(number) if each.type == "int" else number
    return kind(**values)


def _table(table: Table, name: str) -> Table:
    found = table.get(name)
    if not isinstance(found, dict):
        raise ConfigError(
            f"no table [{name}]: not a file that `kvsim calibrate` wrote, or not all of it"
        )
    return cast("Table", found)


def _number(table: Table, name: str, where: str, *, least: float = 0) -> float:
    value = table.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not isfinite(cast("float", value)) or cast("float", value) < least:
        raise ConfigError(f"{name} of {where} must be a number of at least 0, not {value!r}")
    return cast("float", value)


def _value(table: Table, name: str, kind: type[str], where: str) -> str:
    value = table.get(name)
    if not isinstance(value, kind):
        raise ConfigError(f"{name} of {where} must be text, not {value!r}")
    return value


def _lines(table: Mapping[str, object]) -> Iterator[str]:
    for name, value in table.items():
        yield f"{name} = {_literal(value)}"


def _literal(value: object) -> str:
    """Return a value as TOML has it; a text of JSON is one of TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(round(value, 6))
    return str(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)
