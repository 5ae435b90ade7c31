"""The hit-rate laboratory: the limit of no requests in flight, exact and fast.

docs/hit-rate.md says which question each function answers, and when its answer may be trusted.
"""

from __future__ import annotations

from kvsim.hitrate.attribution import CAUSES, MissAttribution, miss_attribution
from kvsim.hitrate.curves import HitCurve, lru_curve, opt_curve, replay_curve
from kvsim.hitrate.distances import Reuse, reuse
from kvsim.hitrate.flat import FlatHits, flat_curve, flat_replay
from kvsim.hitrate.league import PolicyLeague, policy_league
from kvsim.hitrate.pins import PinEffect, PinPoint, pin_effect
from kvsim.hitrate.plane import TierPlane, tier_plane
from kvsim.hitrate.replays import HitReplay, replay
from kvsim.hitrate.sampling import SampledCurve, sampled_replay
from kvsim.hitrate.tier_bound import TierCosts, TwoTierBound, two_tier_bound
from kvsim.hitrate.timed import CLASSES, TimedAttribution, attribute_misses

__all__ = [
    "CAUSES",
    "CLASSES",
    "FlatHits",
    "HitCurve",
    "HitReplay",
    "MissAttribution",
    "PinEffect",
    "PinPoint",
    "PolicyLeague",
    "Reuse",
    "SampledCurve",
    "TierCosts",
    "TierPlane",
    "TimedAttribution",
    "TwoTierBound",
    "attribute_misses",
    "flat_curve",
    "flat_replay",
    "lru_curve",
    "miss_attribution",
    "opt_curve",
    "pin_effect",
    "policy_league",
    "replay",
    "replay_curve",
    "reuse",
    "sampled_replay",
    "tier_plane",
    "two_tier_bound",
]
