"""What the engine did step by step, and what every tier's blocks were used for meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvsim.analysis.frames import frame_of
from kvsim.analysis.metrics import tier_name
from kvsim.analysis.occupancy import USES, Occupancy
from kvsim.analysis.timeline import timed_events
from kvsim.core.ops import Completion, Forward
from kvsim.events import AttemptEnded, EndReason, RequestAdmitted, RequestEnded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from kvsim.analysis.timeline import TurnRecord
    from kvsim.events import Event
    from kvsim.types import OpId, Request, TierIndex

STEP_COLUMNS: Final = {
    "op_id": "int64",
    "instance": "int64",
    "submitted_at_ns": "int64",
    "started_at_ns": "Int64",
    "finished_at_ns": "Int64",
    "outcome": "string",
    "num_steps": "int64",
    "num_steps_done": "int64",
    "num_prefill_requests": "int64",
    "num_prefill_tokens": "int64",
    "num_decodes": "int64",
    "num_context_tokens": "int64",
    "num_awaited_ops": "int64",
    "num_waiting": "int64",
    "num_running": "int64",
    "num_admitted": "int64",
    "num_preempted": "int64",
}
"""Column of the steps' frame -> dtype; `hit_columns`, `use_columns` and `clock` follow."""

RESIDENCY_COLUMNS: Final = {
    "at_ns": "int64",
    "tier": "string",
    "capacity_blocks": "int64",
    **{f"num_{use}_blocks": "int64" for use in USES},
    "clock": "string",
}
"""Column of the residency's frame -> dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """What a run in time has left, if it was asked to keep its events.

    Parameters
    ----------
    events, turns
        As they happened.
    requests
        All that arrived, in order of arrival.
    tier_blocks
        Blocks of each tier that there is, the GPU first.
    clock
        "virtual" or "wall".
    """

    events: Sequence[Event]
    turns: Sequence[TurnRecord]
    requests: Sequence[Request]
    tier_blocks: tuple[int, ...]
    clock: str

    def timed_events(self) -> Iterator[tuple[int, Event]]:
        """Yield (time in ns, event), in order."""
        return timed_events(self.events, self.turns)

    def uses(self) -> Iterator[tuple[int, TierIndex, list[int]]]:
        """Yield (time in ns, tier, blocks in each of `USES`) whenever that has changed."""
        occupancy = Occupancy(self.tier_blocks)
        last: list[list[int]] = [[] for _ in self.tier_blocks]

        def changed(at: int) -> Iterator[tuple[int, TierIndex, list[int]]]:
            for tier, seen in enumerate(occupancy.tiers):
                if seen.num_in != last[tier]:
                    last[tier] = list(seen.num_in)
                    yield at, tier, last[tier]

        before = 0
        for at, event in self.timed_events():
            if at != before:
                yield from changed(before)
                before = at
            occupancy.emit(event)
        yield from changed(before)

    def completions(self) -> dict[OpId, Completion]:
        """Return the one Completion of each op that had one."""
        return {
            answer.op_id: answer
            for turn in self.turns
            for answer in turn.answers
            if isinstance(answer, Completion)
        }


def hit_columns(num_tiers: int) -> dict[str, str]:
    """Return the columns of the steps' frame with the blocks that were hit, by tier."""
    return {f"num_{tier_name(tier)}_hit_blocks": "int64" for tier in range(num_tiers)}


def use_columns(num_tiers: int) -> dict[str, str]:
    """Return the columns of the steps' frame with the use of the blocks, by tier."""
    names = map(tier_name, range(num_tiers))
    return {f"num_{name}_{use}_blocks": "int64" for name in names for use in USES}


def steps_frame(log: RunLog) -> pd.DataFrame:
    """Return one row a Forward, in the order in which they were submitted.

    Counts are those after the decisions of the step that submitted it; admissions, hits and
    preemptions those since the Forward before.
    """
    num_tiers = len(log.tier_blocks)
    columns = STEP_COLUMNS | hit_columns(num_tiers) | use_columns(num_tiers) | {"clock": "string"}
    return frame_of(_step_rows(log), columns)


def residency_frame(log: RunLog) -> pd.DataFrame:
    """Return one row a tier and time at which the use of its blocks changed; the first is empty."""
    return frame_of(_residency_rows(log), RESIDENCY_COLUMNS)


class _Crowd:
    """How many requests wait and run, and what has happened since the last Forward."""

    def __init__(self, log: RunLog) -> None:
        self._arrivals = [request.arrived_at for request in log.requests]
        self._num_tiers = len(log.tier_blocks)
        self._num_arrived = self._num_ended = 0
        self.num_running = 0
        self.forget()

    def forget(self) -> None:
        """Begin to count anew what happens between two Forwards."""
        self.num_admitted = self.num_preempted = 0
        self.num_hits = [0] * self._num_tiers

    def num_waiting(self, now: int) -> int:
        """Return how many have arrived by `now`, have not ended and do not run."""
        while self._num_arrived < len(self._arrivals) and (
            self._arrivals[self._num_arrived] <= now
        ):
            self._num_arrived += 1
        return self._num_arrived - self._num_ended - self.num_running

    def take(self, event: Event) -> None:
        """Count one event."""
        match event:
            case RequestAdmitted():
                self.num_running += 1
                self.num_admitted += 1
                for tier, keys in enumerate(event.hit_keys):
                    self.num_hits[tier] += len(keys)
            case AttemptEnded():
                self.num_running -= 1
                self.num_preempted += event.reason is EndReason.PREEMPTED
            case RequestEnded():
                self._num_ended += 1
            case _:
                pass


def _step_rows(log: RunLog) -> Iterator[tuple[object, ...]]:
    completions = log.completions()
    occupancy = Occupancy(log.tier_blocks)
    crowd = _Crowd(log)
    taken = 0
    for turn in log.turns:
        forwards = [each for each in turn.commands if isinstance(each, Forward)]
        for event in log.events[taken : turn.num_step_events]:
            occupancy.emit(event)
            crowd.take(event)
        for forward in forwards:
            answer = completions.get(forward.op_id)
            yield (
                forward.op_id,
                forward.instance,
                turn.now,
                None if answer is None else answer.started_at,
                None if answer is None else answer.finished_at,
                None if answer is None else str(answer.outcome),
                forward.num_steps,
                0 if answer is None else answer.steps_done,
                len(forward.prefill),
                sum(piece.num_tokens for piece in forward.prefill),
                forward.num_decodes,
                forward.context_tokens,
                len(forward.after),
                crowd.num_waiting(turn.now),
                crowd.num_running,
                crowd.num_admitted,
                crowd.num_preempted,
                *crowd.num_hits,
                *(count for tier in occupancy.tiers for count in tier.num_in),
                log.clock,
            )
            crowd.forget()
        taken = turn.num_step_events


def _residency_rows(log: RunLog) -> Iterator[tuple[object, ...]]:
    for at, tier, num_in in log.uses():
        # What the tier began with is not what it has: it may have been resized since.
        yield at, tier_name(tier), sum(num_in), *num_in, log.clock
