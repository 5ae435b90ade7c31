"""Fit a small model to a trace, so that its workload can be shared without its data."""

from __future__ import annotations

from kvsim.fitting.comparison import Source, default_capacities
from kvsim.fitting.fit import fit

__all__ = ["Source", "default_capacities", "fit"]
