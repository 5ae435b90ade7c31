"""Two runs of one trace, request by request: what became slower, and why."""

from __future__ import annotations

from kvsim.comparing.comparison import Comparison, compare
from kvsim.comparing.saved_run import SavedRun, load_run
from kvsim.comparing.side_by_side import side_by_side

__all__ = ["Comparison", "SavedRun", "compare", "load_run", "side_by_side"]
