"""Read TOML, and say where in the file something is wrong."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Final, TypeAlias

from kvsim.errors import ConfigError, UnknownNameError
from kvsim.trace.paths import os_problem

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.errors import UserError

    Table: TypeAlias = dict[str, object]

_AT_LINE: Final = re.compile(r"\(at (?:line (\d+), column \d+|end of document)\)")


def read_toml(file: Path) -> tuple[str, Table]:
    """Return the text of a TOML file and what it says.

    Raises
    ------
    ConfigError
        If the file cannot be read or is not TOML; the message names the file and the line.
    """
    text = _text(file)
    try:
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(_toml_problem(file, text, str(error))) from error


def place(file: Path, text: str, error: UserError, *, first_line: int = 1) -> str:
    """Return the file, and the line of the key that `error` is about if that can be told.

    Lines before `first_line` are about something else.
    """
    key = error.name if isinstance(error, UnknownNameError) else str(error).partition(" ")[0]
    for candidate in (key, getattr(error, "kind", "")):
        pattern = re.compile(rf'\s*\[?["\']?{re.escape(candidate)}["\']?\s*(=|\])')
        for number, line in enumerate(text.splitlines(), start=1):
            if candidate and number >= first_line and pattern.match(line):
                return f"{file}:{number}"
    return f"{file}"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: {os_problem(error)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text, so not TOML") from error


def _toml_problem(file: Path, text: str, problem: str) -> str:
    found = _AT_LINE.search(problem)
    if found is None:
        return f"{file}: not valid TOML: {problem}"
    line = found[1] or max(1, len(text.splitlines()))
    return f"{file}:{line}: not valid TOML: {problem[: found.start()].strip()}"
