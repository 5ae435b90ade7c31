"""The file of a `SessionModel`: TOML for people to read and change (docs/workloads.md)."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from kvsim.errors import ConfigError, UnknownNameError, UserError
from kvsim.trace.paths import checked_path
from kvsim.trace.synthesis.session_model import (
    PURPOSE,
    FitReport,
    RequestClass,
    SessionModel,
    SharedPrefix,
)
from kvsim.trace.toml_file import place, read_toml
from kvsim.trace.writing import write_whole
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike
    from pathlib import Path

FORMAT, VERSION = "kvsim-workload", 1

_PARTS: Final = {"prefixes": SharedPrefix, "first": RequestClass, "continued": RequestClass}
_TOP: Final = ("format", "version", "workload", *_PARTS, "report")
_WIDTH: Final = 98
_HEADER: Final = re.compile(r"\s*\[+\s*[\w\"']+\s*\]+\s*(#.*)?$")
_Part = TypeVar("_Part", SessionModel, SharedPrefix, RequestClass, FitReport)

_HEAD: Final = f"""\
# A workload of kvsim as a few numbers: `kvsim trace synth THIS-FILE` draws requests from it.
# {PURPOSE[0]}
# {PURPOSE[1]}
# Nothing of the source but these numbers is in here. docs/workloads.md describes them.
"""
_COMMENTS: Final = {
    "workload": "Means of equally likely bins, smallest first, unless said otherwise",
    "prefixes": "What many sessions begin with; `share` of the sessions",
    "first": "Requests that begin a session, by length, and what continues them",
    "continued": "Requests that continue a session, by length, and what continues them",
    "report": "How far it is from its source, on seeds that were not used in the fit",
}


def load_model(path: str | PathLike[str]) -> SessionModel:
    """Return the model in a file.

    Raises
    ------
    UserError
        If the file cannot be read, or is not a model that can be right; the message names the file
        and, where it is known, the line.
    """
    file = checked_path(path)
    text, table = read_toml(file)
    reader = _Reader(file, text)
    reader.check_top(table)
    values = dict(reader.table(table, "workload"))
    for name, kind in _PARTS.items():
        values[name] = reader.parts(table.get(name, []), name, kind)
    if "report" in table:
        values["report"] = reader.made(FitReport, reader.table(table, "report"), "[report]", 0)
    return reader.made(SessionModel, values, "[workload]", 0)


def write_model(model: SessionModel, path: str | PathLike[str]) -> None:
    """Write a model to a file; equal models give equal bytes.

    Raises
    ------
    TraceError
        If it cannot be written.
    """
    write_whole(checked_path(path), encoded(model).encode())


def encoded(model: SessionModel) -> str:
    """Return the text of the file that `load_model` reads `model` from."""
    lines = [_HEAD, f'format = "{FORMAT}"', f"version = {VERSION}"]
    lines += _section("workload", "[workload]", model)
    for name in _PARTS:
        for index, part in enumerate(getattr(model, name)):
            lines += _section(name if index == 0 else "", f"[[{name}]]", part)
    if model.report is not None:
        lines += _section("report", "[report]", model.report)
    return "\n".join(lines) + "\n"


class _Reader:
    """Makes values from tables; its errors say where in the file."""

    def __init__(self, file: Path, text: str) -> None:
        self._file, self._text = file, text

    def check_top(self, table: Mapping[str, object]) -> None:
        """Raise `ConfigError` unless this is such a file, of this version, with known tables."""
        if table.get("format") != FORMAT:
            raise self._error(
                f"format must be {FORMAT!r} in a workload model, not {table.get('format')!r}"
            )
        if type(table.get("version")) is not int or table["version"] != VERSION:
            raise self._error(f"version must be {VERSION}, not {table.get('version')!r}")
        for name in table:
            if name not in _TOP:
                error = UnknownNameError("key of a workload model", name, _TOP)
                raise ConfigError(f"{place(self._file, self._text, error)}: {error}")

    def table(self, table: Mapping[str, object], name: str) -> dict[str, object]:
        """Return the table `name`."""
        found = table.get(name)
        if not isinstance(found, dict):
            raise self._error(f"{name} must be a table, not {found!r}")
        return found

    def parts(self, found: object, name: str, kind: type[_Part]) -> tuple[_Part, ...]:
        """Return the values of an array of tables."""
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise self._error(f"{name} must be tables [[{name}]], not {found!r}")
        return tuple(
            self.made(kind, each, f"[[{name}]]", index) for index, each in enumerate(found)
        )

    def made(self, kind: type[_Part], values: Mapping[str, object], head: str, index: int) -> _Part:
        """Return a value of `kind`; `head` and `index` say which table it is."""
        line = self._line_of(head, index)
        known = {each.name: each for each in fields(kind)}
        made: dict[str, object] = {}
        for name, value in values.items():
            if name not in known:
                error = UnknownNameError(f"key of {head}", name, known)
                raise self._placed(error, line)
            made[name] = self._value(str(known[name].type), name, value, line)
        for name, each in known.items():
            if name not in made and each.default is MISSING:
                raise ConfigError(f"{self._file}:{line}: {head} lacks {name}")
        try:
            return kind(**cast("dict[str, Any]", made))
        except UserError as error:
            raise self._placed(error, line) from error

    def _value(self, kind: str, name: str, value: object, line: int) -> object:
        if kind == "PartialRule":
            if value not in list(PartialRule):
                error = ConfigError(f"{name} must be count or never, not {value!r}")
                raise self._placed(error, line)
            return PartialRule(str(value))
        if kind.startswith("tuple") and not isinstance(value, tuple):
            if not isinstance(value, list):
                error = ConfigError(f"{name} must be a list of numbers, not {value!r}")
                raise self._placed(error, line)
            return tuple(value)
        return value

    def _line_of(self, head: str, index: int) -> int:
        """Return the line of the `index`-th table of this name, from 0."""
        pattern = re.compile(rf"\s*{re.escape(head)}\s*(#.*)?$")
        lines = [
            number
            for number, line in enumerate(self._text.splitlines(), start=1)
            if pattern.match(line)
        ]
        return lines[index] if index < len(lines) else 1

    def _placed(self, error: UserError, line: int) -> ConfigError:
        """Return the error with the line of its key in the table of `line`, or of that table."""
        lines = self._text.splitlines()
        end = next((i for i in range(line, len(lines)) if _HEADER.match(lines[i])), len(lines))
        where = place(self._file, "\n".join(lines[:end]), error, first_line=line)
        if where == str(self._file):
            name = str(error).partition(" ")[0]
            line = self._line_of(f"[[{name}]]", 0) if name in _PARTS else line
            where = f"{self._file}:{line}"
        return ConfigError(f"{where}: {error}")

    def _error(self, problem: str) -> ConfigError:
        return self._placed(ConfigError(problem), 1)


def _section(comment: str, head: str, part: _Part) -> list[str]:
    lines = ["", *([f"# {_COMMENTS[comment]}."] if comment else []), head]
    for each in fields(part):
        value = getattr(part, each.name)
        if each.name in (*_PARTS, "report") or value is None or value == ():
            continue
        lines.append(f"{each.name} = {_written(value, len(each.name) + 3)}")
    return lines


def _written(value: object, used: int) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if not isinstance(value, tuple):
        return repr(value)
    flat = f"[{', '.join(map(repr, value))}]"
    if used + len(flat) <= _WIDTH:
        return flat
    lines, line = [], "   "
    for item in map(repr, value):
        if len(line) + len(item) + 2 > _WIDTH:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join(["[", *lines, line, "]"])
