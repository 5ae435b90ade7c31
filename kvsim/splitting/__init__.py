"""Prefill on some instances, decode on others: what the split costs, and what hides it."""

from __future__ import annotations

from kvsim.splitting.call import split
from kvsim.splitting.result import SplitResult
from kvsim.splitting.settings import SplitSettings
from kvsim.splitting.sweep import split_sweep

__all__ = ["SplitResult", "SplitSettings", "split", "split_sweep"]
