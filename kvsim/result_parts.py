"""What a result is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from kvsim.analysis.metrics import HitFigure


class RecordingFigures(TypedDict):
    """Turns that were recorded, and whether the core decided the same again; None: not tried."""

    turns: int
    identical: bool | None


class TierFigures(TypedDict):
    """One tier: its size, its part of the hits, and those whose copy was still being written."""

    capacity_blocks: int
    hits: dict[str, HitFigure]
    in_flight_hit_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """What was replayed."""

    name: str
    format: str
    block_size: int
    partial: str
    num_requests: int
