"""How far the simulator is from real tensors: the same trace on both, and what each took."""

from __future__ import annotations

from kvsim.validation.result import Validation
from kvsim.validation.run import validate

__all__ = ["Validation", "validate"]
