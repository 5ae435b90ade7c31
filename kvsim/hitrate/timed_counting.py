"""What each prompt block of a run met, read off its events."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kvsim.analysis.metrics import tier_name
from kvsim.analysis.occupancy import Occupancy
from kvsim.events import (
    AttemptEnded,
    BlocksDuplicated,
    EndReason,
    FillIssued,
    RequestAdmitted,
    RequestEnded,
)
from kvsim.hitrate.bounds import opt_runs
from kvsim.hitrate.paths import find_pieces
from kvsim.trace import Trace
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.events import Event
    from kvsim.types import BlockKey, Request, RequestId


class Found(NamedTuple):
    """What the events say of a run's requests.

    Parameters
    ----------
    order
        Those that were admitted, in the order of their first admissions.
    hits
        By request: what became of each block of the leading run that its first attempt found.
    duplicates
        By request: keys that its first attempt missed while another was computing them.
    num_again
        By why the attempt before had ended: blocks that were computed once more.
    """

    order: list[RequestId]
    hits: dict[RequestId, dict[BlockKey, str]]
    duplicates: dict[RequestId, set[BlockKey]]
    num_again: Counter[str]


class HitReader:
    """Reads the events of a run one after another.

    Parameters
    ----------
    tier_blocks
        Blocks of each tier.
    """

    def __init__(self, tier_blocks: Sequence[int]) -> None:
        self.found = Found([], {}, {}, Counter())
        self._occupancy = Occupancy(tier_blocks)
        # Hits of first attempts that failed before these had arrived.
        self._missing: dict[RequestId, set[BlockKey]] = {}
        self._computed: dict[RequestId, set[BlockKey]] = {}
        self._ended_by: dict[RequestId, str] = {}

    def take(self, event: Event) -> None:
        """Take one event."""
        match event:
            case RequestAdmitted():
                self._admit(event)
            case FillIssued() | BlocksDuplicated():
                self._compute(event)
            case AttemptEnded():
                self._end_attempt(event)
            case RequestEnded():
                self._computed.pop(event.request_id, None)
                self._ended_by.pop(event.request_id, None)
                self._missing.pop(event.request_id, None)
            case _:
                pass
        self._occupancy.emit(event)

    def _admit(self, event: RequestAdmitted) -> None:
        request_id = event.request_id
        known = {key for keys in event.hit_keys for key in keys}
        self._computed.setdefault(request_id, set()).update(known)
        if event.attempt:
            return
        gpu = self._occupancy.tiers[0].block_of
        self.found.order.append(request_id)
        hits = {key: "hit_gpu" if key in gpu else "in_flight" for key in event.hit_keys[0]}
        for tier, keys in enumerate(event.hit_keys[1:], 1):
            hits.update(dict.fromkeys(keys, f"hit_{tier_name(tier)}"))
        self.found.hits[request_id] = hits

    def _compute(self, event: FillIssued | BlocksDuplicated) -> None:
        computed = self._computed[event.request_id]
        if event.attempt:
            again = computed.intersection(event.keys)
            self.found.num_again[self._ended_by[event.request_id]] += len(again)
            missing = self._missing.get(event.request_id, set()).intersection(event.keys)
            self.found.hits[event.request_id].update(dict.fromkeys(missing, "reload_failed"))
        elif isinstance(event, BlocksDuplicated):
            self.found.duplicates.setdefault(event.request_id, set()).update(event.keys)
        computed.update(event.keys)

    def _end_attempt(self, event: AttemptEnded) -> None:
        self._ended_by[event.request_id] = str(event.reason)
        if event.reason is not EndReason.RESTARTED or event.attempt:
            return
        gpu = self._occupancy.tiers[0].block_of
        hits = self.found.hits[event.request_id]
        self._missing[event.request_id] = {key for key in hits if key not in gpu}


def best_runs(
    requests: Sequence[Request], order: Sequence[RequestId], block_size: int, capacity: int
) -> tuple[dict[RequestId, int], dict[RequestId, int]]:
    """Return, by request, the leading blocks that had occurred, and that the optimum would hit.

    The requests are taken one after another in the order of their admissions, with nothing in
    flight; the optimum ("resident") has `capacity` blocks.

    Raises
    ------
    UserError
        If their keys do not name their whole prefix.
    """
    stream = tuple(
        replace(requests[request_id], request_id=index, arrived_at=0)
        for index, request_id in enumerate(order)
    )
    if not any(request.block_keys for request in stream):
        nothing = dict.fromkeys(order, 0)
        return nothing, nothing
    is_full = all(len(r.block_keys) * block_size <= r.num_input_tokens for r in stream)
    trace = Trace(
        requests=stream,
        block_size=block_size,
        partial=PartialRule.NEVER if is_full else PartialRule.COUNT,
        name="of this run",
        format="",
    )
    pieces = find_pieces(trace)
    best = opt_runs(pieces.following(), pieces.lengths, capacity)
    return dict(zip(order, pieces.known(), strict=True)), dict(zip(order, best, strict=True))
