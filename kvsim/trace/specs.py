"""Models that are named on one line: `zipf:prefixes=8,share=0.5`."""

from __future__ import annotations

from dataclasses import fields
from math import isfinite
from typing import TYPE_CHECKING, TypeVar

from kvsim.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

Model = TypeVar("Model")


def parse_spec(text: str, what: str, known: Mapping[str, type[Model]]) -> Model:
    """Return the model that `text` names, its numbers given as `name=value`.

    Raises
    ------
    UnknownNameError
        If there is no such model, or it has no such number.
    ConfigError
        If a number is none, or is impossible.
    """
    name, _, rest = text.partition(":")
    if name not in known:
        raise UnknownNameError(what, name, known)
    model = known[name]
    types = {each.name: each.type for each in fields(model)}  # type: ignore[arg-type]
    values: dict[str, float | int] = {}
    for part in filter(None, rest.split(",")):
        field, _, value = part.partition("=")
        if field not in types:
            raise UnknownNameError(f"number of {what} {name}", field, types)
        try:
            values[field] = int(value) if types[field] == "int" else float(value)
        except ValueError as error:
            kind = "a whole number" if types[field] == "int" else "a number"
            raise ConfigError(f"{field} of {what} {name} must be {kind}, not {value!r}") from error
    return model(**values)


def spec_of(name: str, model: object) -> str:
    """Return the line that `parse_spec` makes `model` from, all numbers written out."""
    numbers = (f"{each.name}={getattr(model, each.name)}" for each in fields(model))  # type: ignore[arg-type]
    return f"{name}:{','.join(numbers)}"


def check_number(
    what: str, value: object, *, least: float = 0, most: float = float("inf"), whole: bool = False
) -> None:
    """Raise `ConfigError` unless `value` is a finite number from `least` to `most`."""
    right = type(value) is int or (not whole and type(value) is float and isfinite(value))
    if right and isinstance(value, int | float) and least <= value <= most:
        return
    upper = "" if most == float("inf") else f" and at most {most:g}"
    kind = "an integer" if whole else "a number"
    raise ConfigError(f"{what} must be {kind} of at least {least:g}{upper}, not {value!r}")
