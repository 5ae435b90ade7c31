"""JSON values of a trace file, checked one at a time, with errors that say what would be right."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeGuard, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.errors import TraceError
    from kvsim.trace.source import Source

Value = TypeVar("Value")

LARGEST_NUMBER = 1 << 53
"""The largest number a trace may contain: above it, other JSON tools lose digits.

Source: RFC 8259, section 6 (interoperable integers).
"""

MOST_MADE_TOKENS = 1 << 24
"""The longest prompt for which blocks are made that the file does not name: 16,777,216 tokens, ten
times the longest context there is. A wrong digit must not fill the memory."""

_LATEST_NS = 1 << 62
"""146 years: no trace is so long, and none was recorded so late."""

_MAX_SHOWN = 40
_MAX_FIELDS_SHOWN = 8


def parse_object(source: Source, text: str, *, what: str = "a row") -> dict[str, object]:
    """Return the JSON object that `text` is: one line, or a whole file.

    Raises
    ------
    TraceError
        If the line is not one JSON object, or contains NaN or Infinity.
    """
    try:
        value = checked_json(source, lambda: DECODER.decode(text), what)
    except json.JSONDecodeError as error:
        raise json_problem(source, text, error) from error
    if type(value) is not dict:
        raise source.error(f"{what} must be a JSON object, not {shown(value)}")
    return value


def checked_json(source: Source, decode: Callable[[], Value], what: str = "JSON") -> Value:
    """Return what `decode` returns; of its errors only `json.JSONDecodeError` is passed on."""
    try:
        return decode()
    except json.JSONDecodeError:
        raise
    except _NotJsonError as error:
        raise source.error(str(error)) from error
    except ValueError as error:
        raise source.error("not valid JSON: a number with too many digits") from error
    except RecursionError as error:
        raise source.error(f"not {what}: brackets are nested too deeply") from error


def json_problem(source: Source, text: str, error: json.JSONDecodeError) -> TraceError:
    """Return what to tell about text that is not JSON: where it ends if that is why."""
    if error.lineno > 1 and source.line is None:
        source.line = error.lineno
    cut = "" if text.endswith("\n") else "; the file seems to be cut short"
    return source.error(f"not valid JSON: {error.msg} at column {error.colno}{cut}")


def required(source: Source, record: dict[str, object], field: str) -> object:
    """Return the value of a field that must be there."""
    if field not in record:
        found = ", ".join(map(shown, list(record)[:_MAX_FIELDS_SHOWN])) or "none"
        raise source.error(f"field {field!r} is missing; fields seen: {found}")
    return record[field]


def whole_number(
    source: Source, record: dict[str, object], field: str, *, least: int, unit: str = ""
) -> int:
    """Return the value of a field that must be a whole number from `least` to `LARGEST_NUMBER`."""
    value = required(source, record, field)
    if type(value) is not int or not least <= value <= LARGEST_NUMBER:
        of = f" of {unit}" if unit else ""
        raise source.error(
            f"{field} must be a whole number{of} from {least} to 2**53, not {shown(value)}"
        )
    return value


def made_length(source: Source, record: dict[str, object], field: str) -> int:
    """Return the length of a prompt whose blocks are made from it: at least 1, and not absurd."""
    value = whole_number(source, record, field, least=1)
    if value > MOST_MADE_TOKENS:
        raise source.error(f"{field} must be at most {MOST_MADE_TOKENS}, not {value}")
    return value


def seconds_ns(
    source: Source, record: dict[str, object], field: str, *, unit: str, unit_ns: int
) -> int:
    """Return the nanoseconds of a field that must be a number of `unit` from 0."""
    value = required(source, record, field)
    if not is_number(value):
        raise source.error(
            f"{field} must be a number of {unit} from 0 to 2**53, not {shown(value)}"
        )
    return plausible_ns(source, field, in_ns(value, unit_ns))


def plausible_ns(source: Source, field: str, at_ns: int) -> int:
    """Return `at_ns`; a time since the epoch in a smaller unit than it is taken for is refused."""
    if at_ns > _LATEST_NS:
        raise source.error(
            f"{field} lies {at_ns // _LATEST_NS * 146} years or more after 0 or 1970: the unit must"
            " be wrong"
        )
    return at_ns


def in_ns(value: float, unit_ns: int) -> int:
    """Return `value` units in nanoseconds, rounded once: a product would lose 100 ns of today."""
    whole = int(value)
    return whole * unit_ns + round((value - whole) * unit_ns)


def int_list(source: Source, record: dict[str, object], field: str) -> list[int]:
    """Return the value of a field that must be a list of whole numbers up to `LARGEST_NUMBER`."""
    ids = required(source, record, field)
    if type(ids) is not list:
        raise source.error(f"{field} must be a list of whole numbers, not {shown(ids)}")
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) > LARGEST_NUMBER):
        wrong = next(each for each in ids if not is_id(each))
        raise source.error(
            f"each of {field} must be a whole number from 0 to 2**53, not {shown(wrong)}"
        )
    return ids


def session_text(source: Source, field: str, value: object) -> str | None:
    """Return a name of a session: text, or a whole number as text; None if there is none."""
    return str(value) if is_id(value) else optional_text(source, field, value)


def optional_text(source: Source, field: str, value: object) -> str | None:
    """Return `value` if it is None or text that can be written again, else raise."""
    if value is None or is_text(value):
        return value
    raise source.error(f"{field} must be text, not {shown(value)}")


def is_text(value: object) -> TypeGuard[str]:
    """Return whether `value` is a string without lone surrogates, which no file can hold."""
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_id(value: object) -> TypeGuard[int]:
    """Return whether `value` is a whole number from 0 to `LARGEST_NUMBER`."""
    return type(value) is int and 0 <= value <= LARGEST_NUMBER


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether `value` is a number from 0 to `LARGEST_NUMBER`."""
    return (type(value) is int or type(value) is float) and 0 <= value <= LARGEST_NUMBER


def shown(value: object) -> str:
    """Return a short form of any JSON value, on one line, for messages."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int) and abs(value) >= 10**_MAX_SHOWN:
        return f"a number of more than {_MAX_SHOWN} digits"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


class _NotJsonError(ValueError):
    """Python's decoder accepts it, JSON does not."""


def _refuse(constant: str) -> object:
    raise _NotJsonError(f"{constant} is not a number; a trace has finite numbers only")


DECODER = json.JSONDecoder(parse_constant=_refuse)
