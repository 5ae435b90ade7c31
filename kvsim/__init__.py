"""A simulation-first research toolkit for the KV cache of LLM serving.

The one call most people need is `kvsim.replay(...)`. Importing kvsim loads neither pandas nor
matplotlib; each public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from kvsim.version import __version__

if TYPE_CHECKING:
    from kvsim.api import ReplayConfig, ReplayResult, replay, sample
    from kvsim.calibration import calibrate
    from kvsim.capacity import size
    from kvsim.comparing import Comparison, compare
    from kvsim.engines import explain
    from kvsim.hitrate.timed import attribute_misses
    from kvsim.installation import doctor
    from kvsim.splitting import SplitResult, split, split_sweep
    from kvsim.sweeping.run import SweepConfig, SweepResult, sweep
    from kvsim.trace.loading import load as load_trace
    from kvsim.transfer_bench import bench_transfer
    from kvsim.validation import validate

__all__ = [
    "Comparison",
    "ReplayConfig",
    "ReplayResult",
    "SplitResult",
    "SweepConfig",
    "SweepResult",
    "__version__",
    "attribute_misses",
    "bench_transfer",
    "calibrate",
    "compare",
    "doctor",
    "explain",
    "load_trace",
    "replay",
    "sample",
    "size",
    "split",
    "split_sweep",
    "sweep",
    "validate",
]

_HOME: Final = {
    "Comparison": ("kvsim.comparing", "Comparison"),
    "ReplayConfig": ("kvsim.api", "ReplayConfig"),
    "ReplayResult": ("kvsim.api", "ReplayResult"),
    "SplitResult": ("kvsim.splitting", "SplitResult"),
    "SweepConfig": ("kvsim.sweeping.run", "SweepConfig"),
    "SweepResult": ("kvsim.sweeping.run", "SweepResult"),
    "bench_transfer": ("kvsim.transfer_bench", "bench_transfer"),
    "attribute_misses": ("kvsim.hitrate.timed", "attribute_misses"),
    "compare": ("kvsim.comparing", "compare"),
    "calibrate": ("kvsim.calibration", "calibrate"),
    "doctor": ("kvsim.installation", "doctor"),
    "explain": ("kvsim.engines", "explain"),
    "load_trace": ("kvsim.trace.loading", "load"),
    "replay": ("kvsim.api", "replay"),
    "sample": ("kvsim.api", "sample"),
    "size": ("kvsim.capacity", "size"),
    "split": ("kvsim.splitting", "split"),
    "split_sweep": ("kvsim.splitting", "split_sweep"),
    "sweep": ("kvsim.sweeping.run", "sweep"),
    "validate": ("kvsim.validation", "validate"),
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'kvsim' has no attribute {name!r}")
    module, attribute = _HOME[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
