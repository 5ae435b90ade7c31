"""The rules of known engines as presets, and what makes their hit rates differ.

docs/engines.md says where each rule comes from, and what is not simulated.
"""

from __future__ import annotations

from kvsim.engines.explanation import EngineRow, Explanation, Step, explain
from kvsim.engines.presets import (
    ENGINES,
    EnginePreset,
    LastToken,
    Rule,
    Unit,
    find_engine,
)
from kvsim.engines.replays import Evicts, Tail

__all__ = [
    "ENGINES",
    "EnginePreset",
    "EngineRow",
    "Evicts",
    "Explanation",
    "LastToken",
    "Rule",
    "Step",
    "Tail",
    "Unit",
    "explain",
    "find_engine",
]
