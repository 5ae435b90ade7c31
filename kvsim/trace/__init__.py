"""Read, write, make and change traces."""

from __future__ import annotations

from kvsim.trace.base import Trace, TraceReader
from kvsim.trace.kvsim_jsonl import write
from kvsim.trace.loading import TRACES, format_names, load, reader
from kvsim.trace.samples import SAMPLES, load_sample, open_trace
from kvsim.trace.transform import annotate_next_use, reblock, scale_time, spread_arrivals

__all__ = [
    "SAMPLES",
    "TRACES",
    "Trace",
    "TraceReader",
    "annotate_next_use",
    "format_names",
    "load",
    "load_sample",
    "open_trace",
    "reader",
    "reblock",
    "scale_time",
    "spread_arrivals",
    "write",
]
