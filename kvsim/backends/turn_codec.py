"""The values of a recording and their bytes: MessagePack, checked against types when read.

A value travels as an array of its fields in order; commands, answers and events begin with the
name of their type. The types of the fields are read from the named tuples of the core themselves,
so there is no second list of them that could be forgotten.

msgspec is in the extra `workers`, so it is imported by the first call, not with this module.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import GenericAlias, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from kvsim import events, types
from kvsim.core import ops
from kvsim.errors import ConfigError
from kvsim.types import PartialRule, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kvsim.core.ops import Answer, Command
    from kvsim.events import Event
    from kvsim.types import BlockKey

Scalar: TypeAlias = bool | int | float | str | None
Settings: TypeAlias = dict[str, Scalar | list[str] | dict[str, Scalar | dict[str, Scalar]]]
"""The settings of a run, as `ReplayConfig.to_dict` gives them."""

_LEAST_INT: Final = -(1 << 63)
_LARGEST_INT: Final = (1 << 64) - 1  # the range of integers in MessagePack


class Header(NamedTuple):
    """What a run was given, apart from its requests: settings with policy and seed, and the trace.

    `settings` is `ReplayConfig.to_dict()` with nothing left open. The fields from `name` on are
    those of `kvsim.trace.Trace`.
    """

    kvsim_version: str
    settings: Settings
    name: str
    format: str
    sha256: str | None
    block_size: int
    partial: PartialRule
    num_requests: int


class Turn(NamedTuple):
    """One turn of the engine's loop.

    `now` is the time read (ns). `answers` is None if `wait` did not return: the run ended before.
    `events` are those of the turn, the ones from settling its answers included.
    """

    now: int
    commands: tuple[Command, ...]
    answers: tuple[Answer, ...] | None
    events: tuple[Event, ...]


class Failure(NamedTuple):
    """The error that a run ended with: the name of its type, its text, and who raised it.

    `by_backend` is whether it came out of a call of the backend; if not, the core raised it.
    """

    kind: str
    text: str
    by_backend: bool


class End(NamedTuple):
    """The end of a run: how many turns it had, and the error it ended with, if it did."""

    num_turns: int
    failure: Failure | None


class BadValueError(ValueError):
    """Bytes that are not what they should be, or a value that has no place in the format."""


def tagged(value: Command | Answer | Event) -> tuple[object, ...]:
    """Return the fields of a command, an answer or an event, with the name of its type before."""
    return (type(value).__name__, *value)


def encode(value: object) -> bytes:
    """Return the bytes of a value made of tuples, numbers, texts, bytes and enums.

    Raises
    ------
    BadValueError
        If something in it is of another type, or too large.
    ConfigError
        If msgspec is not installed.
    """
    codec = _codec()
    try:
        return codec.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadValueError(str(error)) from error


def request_fields(request: Request) -> tuple[object, ...]:
    """Return the fields of a request, in order.

    Raises
    ------
    BadValueError
        If a block key is of a type that would not come back as it is.
    """
    for position, key in enumerate(request.block_keys):
        if not _can_be_key(key):
            raise BadValueError(
                f"block key {position} of request {request.request_id} must be a 64-bit integer,"
                f" text, bytes, or a tuple of these, not {shown(key)}"
            )
    values: dict[str, object] = {name: getattr(request, name) for name in _REQUEST_FIELDS}
    for name in ("block_keys", "next_use_at"):  # any sequence
        if values[name] is not None:
            values[name] = tuple(cast("Sequence[object]", values[name]))
    return tuple(values.values())


def decode_header(body: bytes) -> Header:
    """Return the header. Raises `BadValueError`, like those below."""
    return cast("Header", _decoded(_codec().header, body))


def decode_request(body: bytes) -> Request:
    """Return a request."""
    return cast("Request", _decoded(_codec().request, body))


def decode_turn_or_end(body: bytes) -> Turn | End:
    """Return a turn or the end."""
    return cast("Turn | End", _decoded(_codec().turn_or_end, body))


def shown(value: object) -> str:
    """Return a short form of any value, on one line, for messages."""
    try:
        text = ascii(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


_MAX_SHOWN: Final = 60
_REQUEST_FIELDS: Final = tuple(each.name for each in fields(Request))

_Build: TypeAlias = "Callable[[Any], object]"


class _Shape(NamedTuple):
    """What msgspec shall read, and what is made of that; None: nothing, it is the value."""

    wire: Any
    build: _Build | None


class _Codec(NamedTuple):
    encode: Callable[[object], bytes]
    header: Callable[[bytes], object]
    request: Callable[[bytes], object]
    turn_or_end: Callable[[bytes], object]
    error: type[Exception]


def _decoded(decode: Callable[[bytes], object], body: bytes) -> object:
    try:
        return decode(body)
    except RecursionError as error:
        raise BadValueError("values are nested too deeply") from error
    except _codec().error as error:
        raise BadValueError(str(error)) from error


@cache
def _codec() -> _Codec:
    try:
        import msgspec
    except ImportError as error:
        raise ConfigError(
            "recordings need msgspec, which is not installed: pip install 'kvsim[workers]'"
        ) from error

    def decoder(**frames: type) -> Callable[[bytes], object]:
        whole = _tagged_union(frames)
        decode, build = msgspec.msgpack.Decoder(whole.wire).decode, whole.build
        return decode if build is None else lambda body: build(decode(body))

    return _Codec(
        encode=msgspec.msgpack.Encoder().encode,
        header=decoder(header=Header),
        request=decoder(request=Request),
        turn_or_end=decoder(turn=Turn, end=End),
        error=msgspec.MsgspecError,
    )


def _shape(hint: Any) -> _Shape:  # noqa: ANN401  a type, or what typing makes of several
    """Return how a field with this type hint is read."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Hashable:
        return _Shape(Any, _key)
    if origin is Sequence or (origin is tuple and parts[-1] is Ellipsis):
        item = _shape(parts[0])
        build = None if item.build is None else partial(_each, item.build)
        return _Shape(GenericAlias(tuple, (item.wire, ...)), build)
    if origin is Union or origin is UnionType:
        return _union([part for part in parts if part is not type(None)], hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _struct(hint)
    if isinstance(hint, type) and issubclass(hint, tuple):
        shapes = _field_shapes(hint)
        wire = GenericAlias(tuple, tuple(each.wire for each in shapes.values()))
        return _Shape(wire, partial(_made, hint, shapes))
    return _Shape(hint, None)


def _union(parts: list[type], hint: object) -> _Shape:
    """Return how one of several is read: tuples by the name of their type, or a value or None."""
    if len(parts) > 1:
        if not all(isinstance(part, type) and issubclass(part, tuple) for part in parts):
            return _Shape(hint, None)
        return _tagged_union({part.__name__: part for part in parts})
    inner = _shape(parts[0])
    build = inner.build
    if build is None:
        return _Shape(inner.wire | None, None)
    return _Shape(inner.wire | None, lambda value: None if value is None else build(value))


def _tagged_union(parts: Mapping[str, type]) -> _Shape:
    shapes = [_struct(part, tag=tag) for tag, part in parts.items()]
    builds = {each.wire: each.build for each in shapes if each.build is not None}
    union: Any = Union  # the parts are known at run time only
    return _Shape(union[tuple(builds)], lambda value: builds[type(value)](value))


def _struct(kind: type, *, tag: str | None = None) -> _Shape:
    """Return how a value with fields is read: an array that begins with `tag`, else a mapping."""
    from msgspec import defstruct
    from msgspec.structs import astuple

    shapes = _field_shapes(kind)
    wire = defstruct(
        kind.__name__,
        [(name, each.wire) for name, each in shapes.items()],
        array_like=tag is not None,
        tag=tag,
        forbid_unknown_fields=True,
    )
    return _Shape(wire, lambda value: _made(kind, shapes, astuple(value)))


def _field_shapes(kind: type) -> dict[str, _Shape]:
    names = {**vars(types), **vars(ops), **vars(events)}
    return {name: _shape(hint) for name, hint in get_type_hints(kind, None, names).items()}


def _made(kind: type, shapes: Mapping[str, _Shape], values: Iterable[object]) -> object:
    pairs = zip(shapes.items(), values, strict=True)
    return kind(
        **{
            name: value if shape.build is None else shape.build(value)
            for (name, shape), value in pairs
        }
    )


def _each(build: _Build, values: Iterable[object]) -> tuple[object, ...]:
    return tuple(map(build, values))


def _key(value: object) -> BlockKey:
    """Return a block key from what MessagePack makes of it, in which tuples are lists."""
    if type(value) is list:
        return tuple(map(_key, value))
    if type(value) in (int, str, bytes):
        return value
    raise BadValueError(
        f"a block key must be an integer, text, bytes, or an array of these, not {shown(value)}"
    )


def _can_be_key(value: object) -> bool:
    if isinstance(value, tuple):
        try:
            return all(map(_can_be_key, value))
        except RecursionError:
            return False
    if type(value) is int:
        return _LEAST_INT <= value <= _LARGEST_INT
    return type(value) in (str, bytes)
