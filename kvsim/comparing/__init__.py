"""Two runs of one trace, request by request: what became slower, and why."""

from __future__ import annotations

from kvsim.comparing.comparison import Comparison, compare
from kvsim.comparing.saved_run import SavedRun, load_run

__all__ = ["Comparison", "SavedRun", "compare", "load_run"]
