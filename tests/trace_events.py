"""Holds a timeline against the trace-event format: what ui.perfetto.dev would show askew.

Source: Google, "Trace Event Format": phases, required fields, nesting, flows.
"""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal
from typing import Any, Final

_REQUIRED: Final = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "pid", "tid", "ts", "dur"},
    "C": {"name", "pid", "ts", "args"},
    "b": {"name", "pid", "ts", "cat", "id"},
    "e": {"name", "pid", "ts", "cat", "id"},
    "s": {"name", "pid", "tid", "ts", "cat", "id"},
    "f": {"name", "pid", "tid", "ts", "cat", "id"},
}
Event = dict[str, Any]
Row = tuple[int, int]


def read_timeline(text: str) -> list[Event]:
    """Return the events of a file; times are exact decimals, in microseconds."""
    document = json.loads(text, parse_float=Decimal)
    assert document["displayTimeUnit"] == "ns"
    events: list[Event] = document["traceEvents"]
    return events


def check_timeline(events: list[Event]) -> None:
    """Assert that the events are what the format asks for, and that nothing is left open."""
    for event in events:
        assert event["ph"] in _REQUIRED, f"unknown phase: {event}"
        missing = _REQUIRED[event["ph"]] - event.keys()
        assert not missing, f"{missing} of {event}"
        if "ts" in event:
            assert event["ts"] >= 0, f"before the start: {event}"
            assert event["ts"] * 1000 == int(event["ts"] * 1000), f"a part of a ns: {event}"
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
    timed = [event for event in events if event["ph"] != "M"]
    times = [event["ts"] for event in timed]
    assert times == sorted(times), "out of order"
    _check_names(events)
    slices = _check_slices(timed)
    _check_spans(timed)
    _check_flows(timed, slices)


def _check_names(events: list[Event]) -> None:
    named = {
        (event["name"], event["pid"], event["tid"] if event["name"] == "thread_name" else 0)
        for event in events
        if event["ph"] == "M"
    }
    assert len(named) == sum(event["ph"] == "M" for event in events), "a row is named twice"
    for event in events:
        assert ("process_name", event["pid"], 0) in named, f"no name for the process of {event}"
        if event["ph"] == "X":
            row = ("thread_name", event["pid"], event["tid"])
            assert row in named, f"no name for the row of {event}"


def _check_slices(timed: list[Event]) -> dict[Row, list[tuple[Decimal, Decimal]]]:
    """Assert that slices of a row are one after another or within one another; return them."""
    rows: dict[Row, list[tuple[Decimal, Decimal]]] = defaultdict(list)
    stacks: dict[Row, list[Decimal]] = defaultdict(list)
    for event in timed:
        if event["ph"] != "X":
            continue
        row = (event["pid"], event["tid"])
        start, end = event["ts"], event["ts"] + event["dur"]
        assert event["dur"] >= 0
        stack = stacks[row]
        while stack and stack[-1] <= start:
            stack.pop()
        assert not stack or end <= stack[-1], f"overlaps the slice around it: {event}"
        stack.append(end)
        rows[row].append((start, end))
    return rows


def _check_spans(timed: list[Event]) -> None:
    open_spans: dict[tuple[int, str, str], list[str]] = defaultdict(list)
    for event in timed:
        if event["ph"] in "be":
            span = open_spans[event["pid"], event["cat"], event["id"]]
            if event["ph"] == "b":
                span.append(event["name"])
            else:
                assert span, f"ends what never began: {event}"
                assert span.pop() == event["name"], f"ends in the wrong order: {event}"
    left = [key for key, names in open_spans.items() if names]
    assert not left, f"never end: {left}"


def _check_flows(timed: list[Event], slices: dict[Row, list[tuple[Decimal, Decimal]]]) -> None:
    starts: dict[tuple[str, Any], Decimal] = {}
    ends = set()
    for event in timed:
        if event["ph"] not in "sf":
            continue
        key = (event["cat"], event["id"])
        those = slices[event["pid"], event["tid"]]
        at = event["ts"]
        assert any(start <= at <= end for start, end in those), f"on no slice: {event}"
        if event["ph"] == "s":
            assert key not in starts, f"two arrows of one number: {event}"
            starts[key] = at
        else:
            assert event["bp"] == "e", f"would point to the next slice: {event}"
            assert starts[key] <= at, f"points back in time: {event}"
            ends.add(key)
    assert ends == starts.keys(), "an arrow without an end"
