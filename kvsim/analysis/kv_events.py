"""What can be read where, as the events that engines publish for routers.

The names of the events and of their fields are those of vLLM: BlockStored, BlockRemoved and
AllBlocksCleared. One of them says something about a key, not about a block of memory: a key is
stored when the first copy of it in a medium can be read, and removed with the last.

Source: vLLM, `vllm/distributed/kv_events.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kvsim.analysis.metrics import TIER_NAMES
from kvsim.analysis.timeline import timed_events
from kvsim.errors import UserError
from kvsim.events import BlocksRemoved, BlocksStored, CacheCleared

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kvsim.analysis.records import RequestRecord
    from kvsim.analysis.timeline import TurnRecord
    from kvsim.events import Event
    from kvsim.types import BlockKey, Request, TierIndex


class BlockStored(NamedTuple):
    """Keys can be read in a medium from now on: a piece of one path, parents first.

    `at_ns` is None in an instant replay. `parent_block_hash` is the key before the first; None if
    that begins a prompt. `token_ids` is empty: a trace names blocks, not tokens.
    """

    sequence: int
    at_ns: int | None
    block_hashes: tuple[BlockKey, ...]
    parent_block_hash: BlockKey | None
    token_ids: tuple[int, ...]
    block_size: int
    medium: str


class BlockRemoved(NamedTuple):
    """Keys can no longer be read in a medium."""

    sequence: int
    at_ns: int | None
    block_hashes: tuple[BlockKey, ...]
    medium: str


class AllBlocksCleared(NamedTuple):
    """No key can be read anywhere."""

    sequence: int
    at_ns: int | None


KvEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class KvEventStream:
    """Turns the events of the core into those of engines, one after another.

    Parameters
    ----------
    mediums
        Name of the medium of each tier. Tiers of one medium are one place for a reader.
    parent_of
        The key before each key; None before the first of a prompt.
    block_size
        Tokens a block.
    """

    def __init__(
        self,
        mediums: Sequence[str],
        parent_of: Mapping[BlockKey, BlockKey | None],
        block_size: int,
    ) -> None:
        self._mediums = tuple(mediums)
        self._parent_of = parent_of
        self._block_size = block_size
        self._num_copies: dict[tuple[str, BlockKey], int] = {}
        self._sequence = 0

    def take(self, event: Event, at_ns: int | None = None) -> Iterator[KvEvent]:
        """Yield what a reader must be told of one event."""
        match event:
            case BlocksStored():
                new = self._count(event.tier, event.keys, 1)
                for parent, piece in self._pieces(new):
                    medium = self._mediums[event.tier]
                    size = self._block_size
                    yield BlockStored(self._next(), at_ns, piece, parent, (), size, medium)
            case BlocksRemoved():
                gone = self._count(event.tier, event.keys, -1)
                if gone:
                    yield BlockRemoved(self._next(), at_ns, gone, self._mediums[event.tier])
            case CacheCleared():
                self._num_copies.clear()
                yield AllBlocksCleared(self._next(), at_ns)
            case _:
                pass

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence - 1

    def _count(
        self, tier: TierIndex, keys: tuple[BlockKey, ...], change: int
    ) -> tuple[BlockKey, ...]:
        """Count copies; return the keys whose first copy in the medium came, or last went."""
        medium, copies = self._mediums[tier], self._num_copies
        changed = []
        for key in keys:
            old = copies.get((medium, key), 0)
            new = copies[medium, key] = old + change
            if not new:
                del copies[medium, key]
            if not (old and new):
                changed.append(key)
        return tuple(changed)

    def _pieces(
        self, keys: tuple[BlockKey, ...]
    ) -> Iterator[tuple[BlockKey | None, tuple[BlockKey, ...]]]:
        """Cut keys of several paths into pieces of one, each with the key before it."""
        parent_of = self._parent_of
        start = 0
        for end in range(1, len(keys) + 1):
            if end == len(keys) or parent_of.get(keys[end]) != keys[end - 1]:
                yield parent_of.get(keys[start]), keys[start:end]
                start = end


class Parents(dict["BlockKey", "BlockKey | None"]):
    """The key before each key of some prompts, and of the output blocks that follow them."""

    def __init__(self, requests: Iterable[Request]) -> None:
        super().__init__()
        self._last: dict[object, tuple[int, BlockKey | None]] = {}
        for request in requests:
            above: BlockKey | None = None
            for key in request.block_keys:
                self[key] = above
                above = key
            self._last[request.request_id] = (len(request.block_keys), above)

    def get(self, key: BlockKey, default: BlockKey | None = None) -> BlockKey | None:
        """Return the key before `key`; an output block follows the block before it."""
        if key in self:
            return self[key]
        match key:
            case ("output", request_id, int(index)) if request_id in self._last:
                num_keys, last = self._last[request_id]
                return ("output", request_id, index - 1) if index > num_keys else last
        return default


def kv_events(
    events: Iterable[tuple[int | None, Event]],
    *,
    mediums: Sequence[str],
    requests: Iterable[Request],
    block_size: int,
) -> Iterator[KvEvent]:
    """Yield what a reader of the cache's contents is told, in order, numbered without holes.

    Parameters
    ----------
    events
        (time in ns, event) of a run; the time is None if it had none.
    mediums
        Name of the medium of each tier.
    requests
        Whose prompts the blocks belong to.
    block_size
        Tokens a block.
    """
    stream = KvEventStream(mediums, Parents(requests), block_size)
    for at_ns, event in events:
        yield from stream.take(event, at_ns)


def kv_events_of(
    events: Sequence[Event] | None,
    turns: Sequence[TurnRecord] | None,
    records: Iterable[RequestRecord],
    block_size: int,
) -> Iterator[KvEvent]:
    """Return what a reader is told in the course of a run; without turns it had no times.

    Raises
    ------
    UserError
        If the run did not keep its events.
    """
    if events is None:
        raise UserError("the events of this run were not kept: ask for them with events=True")
    timeless = ((None, event) for event in events)
    return kv_events(
        timeless if turns is None else timed_events(events, turns),
        mediums=[name.upper() for name in TIER_NAMES],
        requests=[record.request for record in records],
        block_size=block_size,
    )


def json_line(event: KvEvent) -> str:
    """Return one event as a line of JSON, without the line's end.

    Keys that are bytes are written in hexadecimal, those that are tuples with colons between
    their parts.
    """
    values: dict[str, object] = {
        name: [_plain(key) for key in value] if isinstance(value, tuple) else value
        for name, value in event._asdict().items()
    }
    if isinstance(event, BlockStored) and event.parent_block_hash is not None:
        values["parent_block_hash"] = _plain(event.parent_block_hash)
    return json.dumps({"type": type(event).__name__, **values})


def _plain(key: BlockKey) -> int | str:
    if isinstance(key, int | str):
        return key
    if isinstance(key, bytes):
        return key.hex()
    if isinstance(key, tuple):
        return ":".join(str(_plain(part)) for part in key)
    return str(key)
