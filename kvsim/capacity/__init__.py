"""How large the tiers must be: capacities for a hit rate, and what one more GiB is worth.

docs/sizing.md says how to read the answers, and what room to leave for running requests.
"""

from __future__ import annotations

from kvsim.capacity.answer import KNEE_PERCENTS, Sizing, TierPoint, Worth
from kvsim.capacity.room import Room, Running
from kvsim.capacity.search import size

__all__ = ["KNEE_PERCENTS", "Room", "Running", "Sizing", "TierPoint", "Worth", "size"]
