"""Read, write, make and change traces."""

from __future__ import annotations

from kvsim.trace.arrivals import ArrivalModel
from kvsim.trace.base import ReadOptions, Row, RowSource, Trace, TraceReader
from kvsim.trace.fetching import fetch
from kvsim.trace.loading import TRACES, format_names, load, reader
from kvsim.trace.samples import SAMPLES, load_sample, open_trace
from kvsim.trace.selection import mix, sample_requests, take_between, take_sessions
from kvsim.trace.sharing import SHARING, TurnsSharing, ZipfSharing
from kvsim.trace.synthesis import load_model, synthesize, write_model
from kvsim.trace.tokenizers import ByteTokenizer, FileTokenizer
from kvsim.trace.transform import (
    annotate_next_use,
    close_loop,
    reblock,
    scale_time,
    spread_arrivals,
)
from kvsim.trace.writing import write

__all__ = [
    "SAMPLES",
    "SHARING",
    "TRACES",
    "ArrivalModel",
    "ByteTokenizer",
    "FileTokenizer",
    "ReadOptions",
    "Row",
    "RowSource",
    "Trace",
    "TraceReader",
    "TurnsSharing",
    "ZipfSharing",
    "annotate_next_use",
    "close_loop",
    "fetch",
    "format_names",
    "load",
    "load_model",
    "load_sample",
    "mix",
    "open_trace",
    "reader",
    "reblock",
    "sample_requests",
    "scale_time",
    "spread_arrivals",
    "synthesize",
    "take_between",
    "take_sessions",
    "write",
    "write_model",
]
