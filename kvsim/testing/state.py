"""What a run has done to the state: a mirror of its events, and a digest of any object."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, cast

from kvsim.errors import InvariantError
from kvsim.events import BlocksRemoved, BlocksStored

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.events import Event
    from kvsim.types import BlockKey


class EventMirror:
    """An event sink that follows which keys are readable in each tier, from the events alone."""

    def __init__(self, num_tiers: int) -> None:
        self.readable: list[set[BlockKey]] = [set() for _ in range(num_tiers)]
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        """Take one event.

        Raises
        ------
        InvariantError
            If a block is stored that is there, or removed that is not.
        """
        self.events.append(event)
        if isinstance(event, BlocksStored):
            readable = self.readable[event.tier]
            if len(set(event.keys)) != len(event.keys) or not readable.isdisjoint(event.keys):
                raise InvariantError(f"stored twice: {event}")
            readable.update(event.keys)
        elif isinstance(event, BlocksRemoved):
            readable = self.readable[event.tier]
            if not readable.issuperset(event.keys):
                raise InvariantError(f"removed without being there: {event}")
            readable.difference_update(event.keys)


# What is compared as it is. Most of a cache's state are long lists of numbers: a loop in C.
_PLAIN: Final = frozenset({int, str, bytes, float, bool, type(None)})


def digest(value: object, *, without: Iterable[object] = ()) -> object:
    """Return a value that compares equal exactly when the state reachable from `value` does.

    Walks containers, slots and instance dictionaries. Functions and the objects in `without` are
    taken as they are.
    """
    return _digest(value, {id(each) for each in without}, {})


def _digest(value: object, stop: set[int], seen: dict[int, int]) -> object:
    if value is None or isinstance(value, int | str | bytes | float | Enum | type):
        return value
    if isinstance(value, bytearray):
        return bytes(value)
    if id(value) in stop or callable(value):
        return id(value)
    if id(value) in seen:
        return ("seen", seen[id(value)])
    seen[id(value)] = len(seen)
    if isinstance(value, dict):
        if _PLAIN.issuperset(map(type, value)) and _PLAIN.issuperset(map(type, value.values())):
            return list(value.items())
        return [(_digest(k, stop, seen), _digest(v, stop, seen)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        if _PLAIN.issuperset(map(type, value)):
            return list(value)
        return [each if type(each) in _PLAIN else _digest(each, stop, seen) for each in value]
    if isinstance(value, set | frozenset):
        return {id(each) if not isinstance(each, int | str | tuple) else each for each in value}
    names = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
    own = [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    own += sorted(cast("dict[str, object]", getattr(value, "__dict__", {})).items())
    return [
        (name, each if type(each) in _PLAIN else _digest(each, stop, seen)) for name, each in own
    ]
