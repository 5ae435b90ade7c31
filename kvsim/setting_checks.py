"""Checks of single settings; a message begins with the name of the setting."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeGuard, TypeVar

from kvsim.errors import ConfigError, UnknownNameError

LARGEST_SIZE: Final = 1 << 53
"""Bound of every size, in blocks or GiB: JSON tools lose digits above it (RFC 8259, section 6)."""

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
