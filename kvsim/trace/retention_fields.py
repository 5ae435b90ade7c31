"""How long blocks are worth keeping, as fields of kvsim's own trace formats."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from kvsim.core.retention import check_ranges
from kvsim.errors import ConfigError
from kvsim.trace.values import in_ns, is_number, plausible_ns, shown
from kvsim.types import DEFAULT_PRIORITY, RetentionRange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.trace.source import Source
    from kvsim.types import Request

_RANGE: Final = ("from", "to", "priority", "for")
_OUTPUT: Final = ("priority", "for")


def read_ranges(source: Source, value: object, unit_ns: int) -> tuple[RetentionRange, ...]:
    """Return the ranges of a prompt, as the field `retention` has them; None: none.

    Raises
    ------
    TraceError
        If one is impossible, or two overlap.
    """
    if value is None:
        return ()
    if type(value) is not list:
        raise source.error(f"retention must be a list of ranges, not {shown(value)}")
    ranges = tuple(_range(source, "retention", each, _RANGE, unit_ns) for each in value)
    if problem := check_ranges(ranges):
        raise source.error(problem)
    return ranges


def read_output(source: Source, value: object, unit_ns: int) -> RetentionRange | None:
    """Return what the field `output_retention` says.

    Raises
    ------
    TraceError
        If it is impossible.
    """
    if value is None:
        return None
    return _range(source, "output_retention", value, _OUTPUT, unit_ns)


def written_ranges(request: Request, unit_ns: int) -> dict[str, object]:
    """Return the two fields of a request, without what is as it is anyway."""
    fields: dict[str, object] = {}
    if request.retention:
        fields["retention"] = [_written(each, unit_ns) for each in request.retention]
    if request.output_retention is not None:
        fields["output_retention"] = _written(request.output_retention, unit_ns)
    return fields


def durations_ns(request: Request) -> set[int]:
    """Return all durations that a request names."""
    kept = [*request.retention, *filter(None, [request.output_retention])]
    return {each.duration_ns for each in kept if each.duration_ns is not None}


def as_text(request: Request) -> str | None:
    """Return both fields as one JSON text, times in nanoseconds; None: nothing is said."""
    fields = written_ranges(request, 1)
    return json.dumps(fields, separators=(",", ":")) if fields else None


def from_text(source: Source, text: str | None) -> dict[str, Any]:
    """Return the fields of `Request` from what `as_text` made.

    Raises
    ------
    TraceError
        If it did not.
    """
    fields: object = {}
    if text is not None:
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise source.error(f"retention is not readable: {error}") from error
    if not isinstance(fields, dict):
        raise source.error(f"retention must be an object, not {shown(fields)}")
    return {
        "retention": read_ranges(source, fields.get("retention"), 1),
        "output_retention": read_output(source, fields.get("output_retention"), 1),
    }


def _range(
    source: Source, field: str, value: object, known: tuple[str, ...], unit_ns: int
) -> RetentionRange:
    if not isinstance(value, dict):
        raise source.error(f"{field} must have objects with {', '.join(known)}, not {shown(value)}")
    for name in value:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise source.error(f"unknown field {shown(name)} of {field}; {hint}")
    duration = value.get("for")
    if duration is not None and not is_number(duration):
        raise source.error(f"for of {field} must be a number, not {shown(duration)}")
    try:
        return RetentionRange(
            first_token=value.get("from", 0),
            end_token=value.get("to"),
            priority=value.get("priority", DEFAULT_PRIORITY),
            duration_ns=None
            if duration is None
            else plausible_ns(source, "for", in_ns(duration, unit_ns)),
        )
    except ConfigError as error:
        raise source.error(str(error)) from error


def _written(each: RetentionRange, unit_ns: int) -> Mapping[str, object]:
    fields: dict[str, object] = {}
    if each.first_token:
        fields["from"] = each.first_token
    if each.end_token is not None:
        fields["to"] = each.end_token
    fields["priority"] = each.priority
    if each.duration_ns is not None:
        fields["for"] = each.duration_ns // unit_ns
    return fields
