"""What it costs to load a trace, as multiples of a floor measured in the same run.

The floor is `json.loads` over the lines of the file. Each figure is a ratio of two CPU times, each
the least of several tries taken in turn, since whatever else the machine does only adds to them.
Reads the folder named by KVSIM_TRACES.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from kvsim.trace import load, mooncake, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.trace import Trace

REPEATS = 9


def least_seconds(measures: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the least CPU time of each measure, tried in turn."""
    seconds = dict.fromkeys(measures, float("inf"))
    for _ in range(REPEATS):
        for name, measure in measures.items():
            began = time.process_time()
            made = measure()  # to free it is not part of the time
            seconds[name] = min(seconds[name], time.process_time() - began)
            del made
    return seconds


def load_with_standard_library(path: Path) -> Trace:
    """Load as where msgspec is not installed."""
    with patch.object(mooncake, "plain_decoder", lambda: mooncake.decode_plainly):
        return load(path)


def main() -> int:
    """Print every figure beside its target."""
    folder = os.environ.get("KVSIM_TRACES")
    if not folder:
        print("bench: set KVSIM_TRACES to the folder that holds mooncake/conversation_trace.jsonl")
        return 2
    path = Path(folder) / "mooncake" / "conversation_trace.jsonl"
    lines = path.read_bytes().splitlines()
    trace = load(path)
    with tempfile.TemporaryDirectory() as name:
        table, own = Path(name) / "trace.parquet", Path(name) / "trace.jsonl"
        write(trace, table)
        write(trace, own)
        seconds = least_seconds(
            {
                "floor": lambda: [json.loads(line) for line in lines],
                "mooncake": lambda: load(path),
                "standard library": lambda: load_with_standard_library(path),
                "own JSON Lines": lambda: load(own),
                "parquet": lambda: load(table),
            }
        )
    floor = seconds["floor"]
    print(
        f"{path.stem}, {trace.num_requests:,} requests, {trace.num_references:,} references;"
        f" floor: json.loads over the lines; Python {sys.version.split()[0]}"
    )
    for what, figure, target in (
        (
            "loaded and interned, msgspec",
            seconds["mooncake"] / floor,
            "x floor, target 2.5, aim 1.5",
        ),
        (
            "loaded and interned, standard library",
            seconds["standard library"] / floor,
            "x floor, target 2.5",
        ),
        ("own JSON Lines", seconds["own JSON Lines"] / floor, "x floor"),
        ("Parquet", seconds["parquet"] / floor, "x floor"),
        (
            "Parquet faster than JSON Lines by",
            seconds["mooncake"] / seconds["parquet"],
            "(msgspec), target 3",
        ),
        (
            "Parquet faster than JSON Lines by",
            seconds["standard library"] / seconds["parquet"],
            "(standard library), target 3",
        ),
    ):
        print(f"{what:40} {figure:5.2f} {target}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
